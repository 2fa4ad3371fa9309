"""The embedded pair: its shapes, and that its drafters draft well."""

import functools

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
_KINDS = (
  'model', 'medusa', 'hydra', 'eagle', 'medusa_parallel', 'eagle_parallel',
  'eagle_parallel_deep', 'ngram', 'lookahead', 'ngram_or_model',
)  # fmt: skip
# `test_papers.py` compares a few texts of the other drafters.
_MARKS = {'model': (), 'eagle_parallel': pytest.mark.extended}


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
  assert pair.target.config.vocab_size == pair.draft.config.vocab_size == 4096


def test_unknown_name_is_refused():
  with pytest.raises(specsamp.UserError, match='pycode'):
    zoo.load('nope')


def _decode(pair, drafter, count, new, temperature=0.0):
  is_fixed = drafter is not None and drafter.law == 'deterministic'
  return specsamp.generate(
    pair.target,
    _prompts(pair, count),
    drafter=drafter,
    verifier='naive' if is_fixed else 'token',
    sampling=specsamp.SamplingParams(temperature=temperature),
    max_new_tokens=new,
    stop_tokens=(),
  )


@pytest.fixture(scope='module')
def plain(pair):
  """(count, new) -> the target's greedy texts."""
  return functools.cache(lambda *size: _decode(pair, None, *size).tokens)


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
    pytest.param(
      *(kind, count, new),
      marks=_MARKS.get(kind, pytest.mark.slow)
      if count == 6
      else pytest.mark.slow,
    )
    for kind in _KINDS
    for count, new in ((6, 48), (32, 128))
  ],
)
def test_greedy_texts_are_equal(pair, plain, kind, count, new):
  """They may only differ where float32 cannot separate the two best logits.

  A pass over 5 tokens adds up in another order than a pass over 1.
  """
  out = _decode(pair, _drafter(pair, kind), count, new)
  assert out.block_efficiency > _MIN_TAU.get(kind, 2)
  texts, plain, fast = _prompts(pair, count), plain(count, new), out.tokens
  apply = jax.jit(pair.target.transformer.apply)
  diverged = 0
  for text, a, b in zip(texts, plain, fast, strict=True):
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
