"""n-grams with a model behind them: whose draft a row has, and the cache."""

import jax
import numpy as np
import pytest
import tiny

import specsamp
from specsamp.decoding.request import Request
from specsamp.drafting import (
  TokenTree,
  model_drafter,
  ngram_drafter,
  ngram_or_model,
)
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


def _job(pair, prompts, drafter):
  temperature = np.resize([1.0, 0.7, 0.0], len(prompts))
  return Request.make(
    pair[0], prompts, drafter, 'token', SamplingParams(temperature),
    40, 3, [], True,
  )  # fmt: skip


@pytest.mark.parametrize('longer', [0, 4])
@pytest.mark.parametrize(
  'prompts', [PROMPTS, PROMPTS[:1] * 4], ids=['some', 'all']
)
def test_the_models_cache_is_that_of_the_text(pair, prompts, longer):
  """After every round: looked up, drafted, and one after the other."""
  job = _job(pair, prompts, _drafter(pair, longer))
  draft = pair[1]

  @jax.jit
  def expected(tokens):
    cache = draft.transformer.init_cache(draft.params, *tokens.shape)
    return draft.transformer.apply(
      {'params': draft.params}, tokens, cache=cache
    ).cache

  state, kinds = job.prefill(), set()
  for _ in range(10):
    state = job.decode(state, rounds=1)
    found = np.asarray(state.drafter.found)
    kinds.add((bool(found.any()), bool(found.all())))
    reference = expected(np.asarray(state.tokens))
    for i, length in enumerate(np.asarray(state.length)):
      # The next round feeds the root and the token before it.
      known = max(length - 2, 0)
      for got, wanted in zip(
        state.drafter.cache.keys + state.drafter.cache.values,
        reference.keys + reference.values,
        strict=True,
      ):
        np.testing.assert_allclose(
          got[i, :, :known], wanted[i, :, :known], atol=1e-5
        )
  assert ((True, True) if prompts != PROMPTS else (True, False)) in kinds


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
