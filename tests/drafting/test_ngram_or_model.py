"""n-grams or a model: which of the two drafts for a row, and the cache."""

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
LENGTH = 3
# Rows that always have a match, that never have one, that sometimes do; and
# one that begins with a single token.
PROMPTS = [[1, 2] * 6, [3, 4, 5], [6, 7, 8, 6, 7], [9]]


@pytest.fixture(scope='module')
def pair():
  target = tiny.model(VOCAB, 28)
  return target, tiny.first_layer(target)


def _drafter(pair, longer=0):
  """Returns a drafter whose matches are longer than the model's drafts."""
  return ngram_or_model(
    ngram_drafter(LENGTH + longer, 3, 2), model_drafter(pair[1], LENGTH)
  )


def _make(pair, prompts, drafter, temperature=None):
  if temperature is None:
    temperature = np.resize([1.0, 0.7, 0.0], len(prompts))
  return Request.make(
    pair[0], prompts, drafter, sampling=SamplingParams(temperature),
    max_new_tokens=40, seed=3, stop_tokens=[],
  )  # fmt: skip


@pytest.mark.parametrize('longer', [0, 4])
@pytest.mark.parametrize(
  'prompts', [PROMPTS, PROMPTS[:1] * 4], ids=['some', 'all']
)
def test_the_model_drafts_from_the_whole_text(pair, prompts, longer):
  behind = _behind(pair, prompts, _drafter(pair, longer))
  assert len(behind) >= 5 and max(behind) > 2


def test_the_model_reads_the_matches_of_many_rounds(pair):
  """More tokens than one pass reads."""
  (text,) = _decoded(pair, PROMPTS[2:3], None).tokens
  drafter = ngram_or_model(
    ngram_drafter(LENGTH, 3, 2, reference=[PROMPTS[2] + text[:24]]),
    model_drafter(pair[1], LENGTH),
  )
  behind = _behind(pair, PROMPTS[2:3], drafter, temperature=0.0)
  assert max(behind) > 2 * CATCH_UP


def _behind(pair, prompts, drafter, temperature=None):
  """Checks that the model drafts in every round as one that has read the text.

  Returns:
    The number of tokens that it had not read, for each round that it ran in.
  """
  target, draft = pair
  request = _make(pair, prompts, drafter, temperature)

  @jax.jit
  def read(tokens):
    batch, length = tokens.shape
    cache = draft.transformer.init_cache(draft.params, batch, length + 9)
    variables = {'params': draft.params}
    return draft.transformer.apply(variables, tokens, cache=cache).cache

  propose = jax.jit(lambda drafter, *args: drafter.propose(*args))
  state, behind = request.prefill(), []
  for _ in range(12):
    inputs = state.tokens, state.length, request.inputs.sampling, state.keys
    reference = read(state.tokens)
    drafted, after = propose(drafter, state.drafter, *inputs)
    alone, _ = propose(drafter.model, reference, *inputs)
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
  return behind


@pytest.mark.parametrize('longer', [0, 2])
def test_a_row_drafts_from_its_match_or_from_the_model(pair, longer):
  drafter = _drafter(pair, longer)
  request = _make(pair, PROMPTS, drafter)
  state = request.prefill()
  inputs = state.tokens, state.length, request.inputs.sampling, state.keys
  propose = jax.jit(lambda drafter, *args: drafter.propose(*args)[0])
  draft = propose(drafter, state.drafter, *inputs)
  model = propose(drafter.model, state.drafter.cache, *inputs)
  match = propose(drafter.ngram, (), *inputs)
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


def test_a_pass_is_as_long_as_the_drafts(pair):
  """As long as the model's draft or a match, whichever the rows have."""
  drafter = _drafter(pair, 4)
  assert drafter.passes == (LENGTH + 1, LENGTH + 5)
  assert _drafter(pair).passes == (LENGTH + 1,)
  longest = _decoded(pair, PROMPTS[:1], drafter)
  assert longest.num_drafted_per_pos[0, -1] > 0
  alone = _decoded(pair, [[3, 4, 5]], drafter, max_new_tokens=4)
  assert alone.num_drafted_per_pos[0].tolist()[LENGTH:] == [0] * 4


def _decoded(pair, prompts, drafter, max_new_tokens=30):
  return specsamp.generate(
    pair[0],
    prompts,
    drafter=drafter,
    sampling=SamplingParams(temperature=0.0),
    max_new_tokens=max_new_tokens,
    stop_tokens=[],
  )


def test_greedy_text_is_the_targets(pair):
  """With its text as reference, so that long matches are accepted whole."""
  plain = _decoded(pair, PROMPTS, None)
  texts = [[*a, *b] for a, b in zip(PROMPTS, plain.tokens, strict=True)]
  drafter = ngram_or_model(
    ngram_drafter(LENGTH + 4, 3, 2, reference=texts),
    model_drafter(pair[1], LENGTH),
  )
  drafted = _decoded(pair, PROMPTS, drafter)
  assert drafted.tokens == plain.tokens
  assert drafted.num_accepted_per_pos[:, -1].any()


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
