"""The pair that comes with the package."""

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

# The least block efficiency of a drafter, where it is not two.
_LOOKUPS = {'ngram': 1.2, 'lookahead': 1.3}
_LEAST = {**_LOOKUPS, 'medusa': 1.4, 'medusa_parallel': 1.5}


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


def _greedy(pair, drafter, count, new):
  return specsamp.generate(
    pair.target,
    _prompts(pair, count),
    drafter=drafter,
    verifier='naive' if drafter and drafter.law == 'deterministic' else 'token',
    sampling=specsamp.SamplingParams(temperature=0.0),
    max_new_tokens=new,
    stop_tokens=(),
  )


@pytest.fixture(scope='module')
def plain(pair):
  """(count, new) -> the target's own greedy texts."""
  return functools.cache(lambda *size: _greedy(pair, None, *size).tokens)


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


_SLOW = pytest.mark.slow
_TRAINED = (
  *('medusa', 'hydra', 'eagle', 'medusa_parallel', 'eagle_parallel'),
  'eagle_parallel_deep',
)
_KINDS = ['model', *_TRAINED, *_LOOKUPS, 'ngram_or_model']
# Of the others a few texts are compared by `test_papers.py`.
_QUICK = {'model': (), 'eagle_parallel': pytest.mark.extended}


@pytest.mark.parametrize(
  ('kind', 'count', 'new'),
  [
    pytest.param(
      *(kind, count, new),
      marks=_QUICK.get(kind, _SLOW) if count == 6 else _SLOW,
    )
    for kind in _KINDS
    for count, new in ((6, 48), (32, 128))
  ],
)
def test_greedy_is_greedy(pair, plain, kind, count, new):
  """Token for token, but where float32 cannot tell the two best apart.

  A pass over 5 tokens adds up in another order than a pass over 1. And every
  drafter emits at least as many tokens a round as stand above for its kind.
  """
  out = _greedy(pair, _drafter(pair, kind), count, new)
  assert out.block_efficiency > _LEAST.get(kind, 2)
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
  print(
    f'{kind}: {diverged} of {count} greedy texts diverged, all at near ties'
  )
  assert diverged <= count // 8


def test_draft_helps(pair):
  """Not a timing: the draft is accepted often enough to be worth its name."""
  for temperature in (0.0, 1.0):
    out = specsamp.generate(
      pair.target,
      _prompts(pair, 6),
      drafter=model_drafter(pair.draft, 4),
      sampling=specsamp.SamplingParams(temperature=temperature, top_p=0.95),
      max_new_tokens=48,
      stop_tokens=(),
    )
    assert out.block_efficiency > 1.8, temperature
