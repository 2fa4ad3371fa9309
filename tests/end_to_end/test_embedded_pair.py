"""The embedded pair: its shapes, and that its drafters draft well."""

import jax
import numpy as np
import pytest

import specsamp
from specsamp import zoo
from specsamp.data import corpora, prompts
from specsamp.drafting import (
  lookahead_drafter,
  model_drafter,
  ngram_drafter,
  ngram_or_model,
  trained_drafter,
)

# Lower bounds on the block efficiency. Those of other drafters are two.
_MIN_TAU = {
  'ngram': 1.2, 'lookahead': 1.3, 'medusa': 1.4, 'medusa_parallel': 1.5,
}  # fmt: skip
_SLOW = (
  'medusa', 'hydra', 'eagle', 'medusa_parallel', 'eagle_parallel', 'ngram',
  'lookahead', 'ngram_or_model',
)  # fmt: skip


@pytest.fixture(scope='module')
def pair():
  return zoo.load('pycode')


def _prompts(pair, count):
  held_out = corpora.held_out_library()
  found = prompts.functions(held_out, pair.target.tokenizer, count, 64)
  return [prompt.text for prompt in found]


def test_shapes(pair):
  """A deep target of 20 to 30M parameters, a shallow draft, one tokenizer."""
  assert 20e6 < pair.target.num_params < 30e6
  assert pair.target.config.num_layers >= 4 * pair.draft.config.num_layers
  assert pair.draft.num_params < pair.target.num_params / 5
  assert pair.draft.tokenizer == pair.target.tokenizer
  with pytest.raises(specsamp.UserError, match='pycode'):
    zoo.load('nope')


def _decode(pair, drafter, count, new, temperature=0.0):
  return specsamp.generate(
    pair.target,
    _prompts(pair, count),
    drafter=drafter,
    sampling=specsamp.SamplingParams(temperature=temperature),
    max_new_tokens=new,
    stop_tokens=(),
  )


def _drafter(pair, kind):
  model = model_drafter(pair.draft, 4)
  if kind in pair.drafters:
    return trained_drafter(pair.drafters[kind], pair.target, 4)
  return {
    'model': model,
    'ngram': ngram_drafter(4),
    'lookahead': lookahead_drafter(4),
    'ngram_or_model': ngram_or_model(ngram_drafter(4), model),
  }[kind]


@pytest.mark.parametrize(
  ('kind', 'count', 'new'),
  [
    ('model', 6, 48),
    *(
      pytest.param(kind, 32, 128, marks=pytest.mark.slow)
      for kind in ('model', *_SLOW)
    ),
  ],
)
def test_greedy_texts_are_equal(pair, kind, count, new):
  """They may only differ where float32 cannot separate the two best logits.

  A pass over 5 tokens adds up in another order than a pass over 1.
  """
  out = _decode(pair, _drafter(pair, kind), count, new)
  assert out.block_efficiency > _MIN_TAU.get(kind, 2)
  plain = _decode(pair, None, count, new).tokens
  texts = _prompts(pair, count)
  apply = jax.jit(pair.target.transformer.apply)
  diverged = 0
  for text, a, b in zip(texts, plain, out.tokens, strict=True):
    assert len(a) == len(b) == new
    if a != b:
      diverged += 1
      first = next(i for i in range(new) if a[i] != b[i])
      ids = pair.target.tokenizer.encode(text) + a[:first]
      logits = apply({'params': pair.target.params}, np.asarray([ids])).logits
      second, best = np.sort(np.asarray(logits[0, -1]))[-2:]
      assert best - second < 1e-3, (text, first)
  assert diverged <= count // 8


def test_sampled_drafts_are_accepted(pair):
  out = _decode(pair, model_drafter(pair.draft, 4), 6, 48, temperature=1.0)
  assert out.block_efficiency > 1.8
