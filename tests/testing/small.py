"""A small model, a run that trains it in seconds, and its metrics."""

import json

import numpy as np

from specsamp.models import TransformerConfig
from specsamp.training.pretrain import PretrainConfig

MODEL = TransformerConfig(
  vocab_size=300,
  width=16,
  num_layers=1,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  mlp_width=32,
  max_length=16,
)


def config(corpus) -> PretrainConfig:
  """Returns the config of a run on a folder of text."""
  return PretrainConfig(
    model=MODEL,
    corpus=str(corpus),
    pattern='*.txt',
    batch_size=4,
    length=16,
    steps=60,
    learning_rate=1e-2,
    warmup_steps=5,
    log_every=3,
    eval_every=20,
    eval_batches=2,
    checkpoint_every=6,
  )


def metrics(workdir):
  """Returns the lines of metrics.jsonl without the times."""
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  lines = [json.loads(line) for line in lines]
  for line in lines:
    assert line.pop('seconds') >= 0
    assert line.pop('tokens_per_second') >= 0
  return lines


def log_softmax(logits):
  logits = np.asarray(logits, np.float64)
  logits = logits - logits.max(-1, keepdims=True)
  return logits - np.log(np.exp(logits).sum(-1, keepdims=True))
