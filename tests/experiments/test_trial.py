"""Trained drafters are tried when their folders are loaded."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from absl import logging
from testing import tiny

from specsamp.checkpoints import drafter_dir
from specsamp.experiments import loading, trial

VOCAB, WIDTH = 11, 16


@pytest.fixture
def lines(monkeypatch):
  """Returns the warnings of the log."""
  found = []
  monkeypatch.setattr(
    logging, 'warning', lambda line, *args: found.append(line % args)
  )
  return found


@pytest.fixture(scope='module')
def target():
  """Says the alphabet: its layers add nothing to the embedding of a token."""
  model = tiny.model(VOCAB, 0, num_layers=1)
  params = {
    name: dict(value) if isinstance(value, dict) else value
    for name, value in model.params.items()
  }
  layer = params['layers_0']
  params['layers_0'] = layer | {
    'attention': layer['attention'] | {'o': 0 * layer['attention']['o']},
    'mlp': layer['mlp'] | {'down': 0 * layer['mlp']['down']},
  }
  params['embedding'] = jnp.eye(VOCAB, WIDTH)
  params['final_norm'] = {'scale': jnp.ones(WIDTH)}
  params['head'] = 3 * jnp.roll(jnp.eye(VOCAB, WIDTH), 1, axis=0)
  return dataclasses.replace(model, params=params)


def _folder(folder, next_token):
  """Medusa's, of one head that drafts the token after the next one."""
  head = np.zeros((VOCAB, WIDTH), np.float32)
  for token in range(VOCAB):
    head[next_token(token), token] = 9
  tensors = {
    '0.0.linear.weight': np.zeros((WIDTH, WIDTH), np.float32),
    '0.0.linear.bias': np.zeros(WIDTH, np.float32),
    '0.1.weight': head,
  }
  folder.mkdir()
  values = dict(medusa_num_heads=1, medusa_num_layers=1)
  (folder / 'config.json').write_text(json.dumps(values))
  (folder / 'model.safetensors').write_bytes(safetensors.numpy.save(tensors))
  return str(folder)


def test_a_head_that_drafts_what_is_not_said(target, tmp_path, lines):
  good = _folder(tmp_path / 'good', lambda token: (token + 2) % VOCAB)
  bad = _folder(tmp_path / 'bad', lambda token: (token + 1) % VOCAB)
  models = loading.Models(target, lambda: target, {})
  models.drafter(good, 1, 'iid')
  assert lines == []
  models.drafter(bad, 1, 'iid')
  models.deepest(bad)
  (line,) = lines  # it is tried once
  assert line.startswith(f'drafter {bad}: 0.0')
  assert 'other weights' in line


def test_a_drafter_trained_here_is_tried_too(target, tmp_path, lines):
  """A drafter with almost no training, in a folder of `launch/distill.py`."""
  drafter_dir.save(tiny.trained(target, 'medusa'), tmp_path / 'drafter')
  models = loading.Models(target, lambda: target, {})
  models.drafter(str(tmp_path / 'drafter'), 1, 'iid')
  (line,) = lines
  assert line.startswith('drafter ') and 'trained too little' in line


def test_what_chance_is():
  assert trial.share_of_commonest([[3, 3, 1], [3]]) == 0.75
  assert trial.is_chance(0.1, 0.1)
  assert not trial.is_chance(0.2, 0.1)
  assert not trial.is_chance(1.0, 1.0)  # of a text of one token
