"""n-grams or a model: which of the two drafts for a row, and the cache."""

import functools

import jax
import numpy as np
import pytest
from testing import tiny

import specsamp
from specsamp.decoding.request import Request
from specsamp.drafting import (
  TokenTree,
  model_drafter,
  ngram_drafter,
  ngram_or_model,
)
from specsamp.drafting.drafter import CATCH_UP
from specsamp.errors import UserError
from specsamp.sampling.transforms import SamplingParams

VOCAB = 11
LENGTH, LONGER = 3, 7
# Rows that always have a match, that never have one, that sometimes do; and
# one that begins with a single token.
PROMPTS = [[1, 2] * 6, [3, 4, 5], [6, 7, 8, 6, 7], [9]]
_propose = jax.jit(lambda drafter, *args: drafter.propose(*args))


@pytest.fixture(scope='module')
def pair():
  target = tiny.model(VOCAB, 28)
  return target, tiny.first_layer(target)


def _drafter(pair, length, reference=None):
  ngram = ngram_drafter(length, 3, 2, reference=reference)
  return ngram_or_model(ngram, model_drafter(pair[1], LENGTH))


def _make(pair, prompts, drafter, temperature):
  return Request.make(
    pair[0], prompts, drafter, sampling=SamplingParams(temperature),
    max_new_tokens=40, seed=3, stop_tokens=[],
  )  # fmt: skip


@pytest.mark.parametrize(
  'prompts', [PROMPTS, PROMPTS[:1] * 4], ids=['some', 'all']
)
def test_the_model_drafts_from_the_whole_text(pair, prompts):
  drafter = _drafter(pair, LONGER)
  assert drafter.passes == (LENGTH + 1, LONGER + 1)
  temperature = np.resize([1.0, 0.7, 0.0], len(prompts))
  behind, _ = _behind(pair, _make(pair, prompts, drafter, temperature))
  assert len(behind) >= 5 and max(behind) > 2


def test_the_model_reads_the_matches_of_many_rounds(pair):
  """More tokens than one pass reads, and the greedy text is the target's."""
  plain = specsamp.generate(
    pair[0], PROMPTS, sampling=SamplingParams(0.0), max_new_tokens=40,
    stop_tokens=[],
  ).tokens  # fmt: skip
  reference = [a + b[:24] for a, b in zip(PROMPTS, plain, strict=True)]
  drafter = _drafter(pair, LENGTH, reference)
  assert drafter.passes == (LENGTH + 1,)
  request = _make(pair, PROMPTS, drafter, 0.0)
  behind, state = _behind(pair, request)
  assert max(behind) > 2 * CATCH_UP
  state = request.decode(state)
  for tokens, prompt, text in zip(state.tokens, PROMPTS, plain, strict=True):
    assert tokens[len(prompt) :].tolist()[:40] == text


@functools.partial(jax.jit, static_argnums=0)
def _read(draft, params, tokens):
  batch, length = tokens.shape
  cache = draft.init_cache(params, batch, length + 9)
  return draft.apply({'params': params}, tokens, cache=cache).cache


def _behind(pair, request):
  """Checks that the model drafts in every round as one that has read the text.

  Returns:
    The number of tokens that it had not read, for each round that it ran in,
    and the state after these rounds.
  """
  draft, drafter = pair[1], request.inputs.drafter
  state, behind = request.prefill(), []
  for _ in range(12):
    inputs = state.tokens, state.length, request.inputs.sampling, state.keys
    reference = _read(draft.transformer, draft.params, state.tokens)
    drafted, after = _propose(drafter, state.drafter, *inputs)
    alone, _ = _propose(drafter.model, reference, *inputs)
    by_model = ~np.asarray(after.matched)
    np.testing.assert_array_equal(
      drafted.tokens[by_model, : LENGTH + 1], alone.tokens[by_model]
    )
    known = state.length if by_model.any() else state.drafter.known
    np.testing.assert_array_equal(after.known, known)
    if by_model.any():
      behind.append(int((state.length - state.drafter.known).max()))
    caches = [cache.keys + cache.values for cache in (after.cache, reference)]
    for one, other in zip(*caches, strict=True):
      for i, end in enumerate(np.asarray(known)):
        np.testing.assert_allclose(
          one[i, :, :end], other[i, :, :end], atol=1e-5
        )
    state = request.decode(state, rounds=1)
  return behind, state


def test_a_row_drafts_from_its_match_or_from_the_model(pair):
  drafter = _drafter(pair, LONGER)
  request = _make(pair, PROMPTS, drafter, np.resize([1.0, 0.7, 0.0], 4))
  state = request.prefill()
  inputs = state.tokens, state.length, request.inputs.sampling, state.keys
  draft, _ = _propose(drafter, state.drafter, *inputs)
  model, _ = _propose(drafter.model, state.drafter.cache, *inputs)
  match, _ = _propose(drafter.ngram, (), *inputs)
  is_match = np.asarray(match.valid[:, 1])
  assert is_match.tolist() == [True, False, True, False]
  for i in range(4):
    part = match if is_match[i] else model
    size = part.tree.size
    assert draft.tokens[i, :size].tolist() == part.tokens[i].tolist()
    assert draft.valid[i, :size].tolist() == part.valid[i].tolist()
    assert not draft.valid[i, size:].any()
    if is_match[i]:
      # A token that was looked up is a draw from its one-hot.
      one_hot = np.eye(VOCAB)[draft.tokens[i, 1:]]
      np.testing.assert_array_equal(draft.q[i], one_hot)
    else:
      np.testing.assert_array_equal(draft.q[i, : size - 1], model.q[i])


@pytest.mark.parametrize(
  ('ngram', 'model', 'law', 'message'),
  [
    (2, 3, 'iid', 'got 3 tokens from the model, expected at most the 2 of'),
    (TokenTree.branching((2, 1)),) * 2 + ('iid', 'both must draft chains'),
    (2, 2, 'top_plus_one', "law must be 'iid' or 'deterministic'"),
  ],
)
def test_invalid_arguments(pair, ngram, model, law, message):
  with pytest.raises(UserError, match=message):
    ngram_or_model(ngram_drafter(ngram), model_drafter(pair[1], model, law))
