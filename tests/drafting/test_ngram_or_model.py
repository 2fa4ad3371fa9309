"""n-grams with a model behind them: whose draft a row has, and the cache."""

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
  """Whose matches are so much longer than what the model drafts."""
  return ngram_or_model(
    ngram_drafter(LENGTH + longer, 3, 2), model_drafter(pair[1], LENGTH)
  )


def _job(pair, prompts, drafter, temperature=None):
  if temperature is None:
    temperature = np.resize([1.0, 0.7, 0.0], len(prompts))
  return Request.make(
    pair[0], prompts, drafter, 'token', SamplingParams(temperature),
    40, 3, [], True,
  )  # fmt: skip


@pytest.mark.parametrize('longer', [0, 4])
@pytest.mark.parametrize(
  'prompts', [PROMPTS, PROMPTS[:1] * 4], ids=['some', 'all']
)
def test_the_model_drafts_from_the_whole_text(pair, prompts, longer):
  behind = _behind(pair, prompts, _drafter(pair, longer))
  assert len(behind) >= 5 and max(behind) > 2


def test_the_model_reads_what_many_rounds_looked_up(pair):
  """More than a pass holds, when the known text ends."""
  (text,) = _decoded(pair, PROMPTS[2:3], None).tokens
  drafter = ngram_or_model(
    ngram_drafter(LENGTH, 3, 2, reference=[PROMPTS[2] + text[:24]]),
    model_drafter(pair[1], LENGTH),
  )
  behind = _behind(pair, PROMPTS[2:3], drafter, temperature=0.0)
  assert max(behind) > 2 * CATCH_UP


def _behind(pair, prompts, drafter, temperature=None):
  """Tokens that the model had not read whenever it was asked.

  In every round it is asked in, it drafts as a model that has read the text.
  """
  job = _job(pair, prompts, drafter, temperature)

  @jax.jit
  def read(tokens):
    batch, length = tokens.shape
    cache = pair[1].transformer.init_cache(pair[1].params, batch, length + 9)
    return (
      pair[1]
      .transformer.apply({'params': pair[1].params}, tokens, cache=cache)
      .cache
    )

  propose = jax.jit(lambda drafter, *args: drafter.propose(*args))
  state, behind = job.prefill(), []
  for _ in range(12):
    inputs = state.tokens, state.length, job.inputs.sampling, state.keys
    reference = read(state.tokens)
    draft, after = propose(drafter, state.drafter, *inputs)
    alone, _ = propose(drafter.model, reference, *inputs)
    asked = ~np.asarray(after.found)
    np.testing.assert_array_equal(
      draft.tokens[asked, : LENGTH + 1], alone.tokens[asked]
    )
    known = state.length if asked.any() else state.drafter.known
    np.testing.assert_array_equal(after.known, known)
    if asked.any():
      behind.append(int((state.length - state.drafter.known).max()))
    caches = [cache.keys + cache.values for cache in (after.cache, reference)]
    for got, wanted in zip(*caches, strict=True):
      for i, end in enumerate(np.asarray(known)):
        np.testing.assert_allclose(
          got[i, :, :end], wanted[i, :, :end], atol=1e-5
        )
    state = job.decode(state, rounds=1)
  return behind


@pytest.mark.parametrize('longer', [0, 2])
def test_a_row_drafts_from_its_match_or_from_the_model(pair, longer):
  drafter = _drafter(pair, longer)
  job = _job(pair, PROMPTS, drafter)
  state = job.prefill()
  inputs = (state.tokens, state.length, job.inputs.sampling, state.keys)
  draft, _ = jax.jit(type(drafter).propose)(drafter, state.drafter, *inputs)
  model, _ = jax.jit(type(drafter.model).propose)(
    drafter.model, state.drafter.cache, *inputs
  )
  match, _ = jax.jit(type(drafter.ngram).propose)(drafter.ngram, (), *inputs)
  found = np.asarray(match.valid[:, 1])
  assert found.tolist() == [True, False, True, False]
  for i in range(4):
    own = match if found[i] else model
    size = own.tree.size
    assert draft.tokens[i, :size].tolist() == own.tokens[i].tolist()
    assert draft.valid[i, :size].tolist() == own.valid[i].tolist()
    assert not draft.valid[i, size:].any()
    if found[i]:
      # What was looked up is a draw of what holds nothing else.
      one_hot = np.eye(VOCAB)[draft.tokens[i, 1:]]
      np.testing.assert_array_equal(draft.q[i], one_hot)
    else:
      np.testing.assert_array_equal(draft.q[i, : size - 1], model.q[i])


def test_a_pass_is_as_long_as_the_drafts(pair):
  """Of the model's draft or of a match, whichever rows have."""
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
  """With its own text to look in: all of a long match is accepted."""
  plain = _decoded(pair, PROMPTS, None)
  texts = [[*a, *b] for a, b in zip(PROMPTS, plain.tokens, strict=True)]
  drafter = ngram_or_model(
    ngram_drafter(LENGTH + 4, 3, 2, reference=texts),
    model_drafter(pair[1], LENGTH),
  )
  drafted = _decoded(pair, PROMPTS, drafter)
  assert drafted.tokens == plain.tokens
  assert drafted.num_accepted_per_pos[:, -1].any()


@pytest.mark.slow  # each row's draft is the model's: the test above
def test_rows_without_a_match_are_as_with_the_model_alone(pair):
  arguments = dict(
    prompts=[[3, 4, 5], [9]], max_new_tokens=30, seed=4, stop_tokens=[]
  )
  model = specsamp.generate(
    pair[0], drafter=model_drafter(pair[1], LENGTH), **arguments
  )
  drafter = ngram_or_model(
    ngram_drafter(LENGTH, 9, 9), model_drafter(pair[1], LENGTH)
  )
  got = specsamp.generate(pair[0], drafter=drafter, **arguments)
  assert got.tokens == model.tokens
  assert got.rounds.tolist() == model.rounds.tolist()


@pytest.mark.slow  # as of any drafter: `decoding/test_trees`
def test_coupled_it_emits_the_races_text(pair):
  """The text of a seed, whatever is drafted; the model runs the races too."""
  arguments = dict(
    prompts=PROMPTS, max_new_tokens=30, seed=4, stop_tokens=[],
    verifier='gumbel',
  )  # fmt: skip
  plain = specsamp.generate(pair[0], **arguments)
  model = model_drafter(pair[1], LENGTH, 'deterministic', coupled=True)
  drafter = ngram_or_model(ngram_drafter(LENGTH, 3, 2), model)
  got = specsamp.generate(pair[0], drafter=drafter, **arguments)
  assert got.tokens == plain.tokens
  assert got.num_accepted_per_pos.any()


@pytest.mark.parametrize(
  ('ngram', 'model', 'law', 'message'),
  [
    (2, 3, 'iid', 'got 3 tokens from the model, expected at most the 2 of'),
    (TokenTree.branching((2, 1)),) * 2 + ('iid', 'both must draft chains'),
    (2, 2, 'without_replacement', "law must be 'iid' or 'deterministic'"),
    (2, 2, 'top_plus_one', "law must be 'iid' or 'deterministic'"),
  ],
)
def test_refusals(pair, ngram, model, law, message):
  with pytest.raises(UserError, match=message):
    ngram_or_model(ngram_drafter(ngram), model_drafter(pair[1], model, law))
