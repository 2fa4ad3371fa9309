"""Trees in the loop, token for token: texts, caches, counts, couplings.

The loop is the same for all verifiers, which are enumerated in `exactness`.
"""

import jax
import numpy as np
import pytest
from testing import tiny

import specsamp
from specsamp import SamplingParams
from specsamp.decoding.request import Request
from specsamp.drafting import TokenTree, model_drafter
from specsamp.drafting.draft import DynamicTree

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [2, 7, 1], [8, 2, 8, 1, 8], [5, 5]]
BUDGETS = [20, 7, 12, 1, 15]
GREEDY = dict(max_new_tokens=20, sampling=SamplingParams(temperature=0.0))
# Top-k leaves fewer tokens than candidates in two of the rows.
RAGGED = dict(
  max_new_tokens=BUDGETS,
  seed=[11, 3, 3, 2**31 - 1, 0],
  sampling=SamplingParams(
    temperature=np.array([1.0, 0.7, 1.5, 1.0, 0.0]),
    top_k=np.array([0, 1, 0, 2, 0]),
    top_p=np.array([1.0, 1.0, 0.9, 1.0, 0.5]),
  ),
)
# Leaves at three depths, and nodes of a level with different numbers of
# children.
IRREGULAR = TokenTree((-1, 0, 0, 0, 1, 1, 3, 4, 4))


def _run(pair, shape, law='without_replacement', coupled=False, **args):
  target, draft = pair
  args = {'verifier': 'multi_candidate', 'prompts': PROMPTS, **args}
  drafter = shape and model_drafter(draft, shape, law, coupled)
  return specsamp.generate(target, drafter=drafter, stop_tokens=[], **args)


@pytest.fixture(scope='module')
def greedy(pair):
  texts = _run(pair, None, **GREEDY).tokens
  assert all(len(set(text)) > 3 for text in texts)
  return texts


def test_greedy_equals_autoregressive(pair, greedy):
  got = _run(pair, IRREGULAR, **GREEDY)
  assert got.tokens == greedy
  # Others than the first candidates were accepted too: at temperature 0 the
  # most probable ones are drafted.
  assert got.num_accepted_per_rank[:, 1:].any()


@pytest.mark.parametrize('sizes', [(4, 3, 2), (6, 3, 3)])
def test_dynamic_trees_are_greedy_too(pair, greedy, sizes):
  """As deep as they have nodes too, where their bounds are those of a chain."""
  tree = DynamicTree.of(*sizes)
  got = _run(pair, tree, 'deterministic', verifier='naive', **GREEDY)
  assert got.tokens == greedy


def test_a_row_is_the_same_alone_and_among_others(pair):
  together = _run(pair, IRREGULAR, **RAGGED)
  assert [len(text) for text in together.tokens] == BUDGETS
  rows = RAGGED['sampling'].broadcast(5)
  for order in ([4, 3, 2, 1, 0], [0]):
    pick = lambda values, order=order: [values[i] for i in order]
    got = _run(
      pair,
      IRREGULAR,
      prompts=pick(PROMPTS),
      max_new_tokens=pick(BUDGETS),
      seed=pick(RAGGED['seed']),
      sampling=jax.tree.map(lambda v, order=order: v[np.array(order)], rows),
    )
    assert got.tokens == pick(together.tokens)
    for name in (
      'rounds',
      'num_accepted_per_pos',
      'num_tried_per_rank',
      'num_accepted_per_rank',
    ):
      np.testing.assert_array_equal(
        getattr(got, name), pick(getattr(together, name))
      )


def test_no_stale_slot_after_any_round(pair):
  """What was accepted stands where one pass over the text would put it."""
  target, draft = pair
  job = Request.make(
    target,
    PROMPTS,
    model_drafter(draft, IRREGULAR, 'without_replacement'),
    'multi_candidate',
    stop_tokens=[],
    **RAGGED,
  )
  state = job.prefill()
  for _ in range(5):
    state = job.decode(state, rounds=1)
    for cache, model, missing in (
      (state.cache, target, 1),
      (state.drafter, draft, 2),
    ):
      wanted = _whole_cache(model, state.tokens)
      for part in ('keys', 'values'):
        for one, other in zip(
          getattr(cache, part), getattr(wanted, part), strict=True
        ):
          for row, length in enumerate(np.asarray(state.length) - missing):
            np.testing.assert_allclose(
              one[row, :, :length], other[row, :, :length], atol=2e-5
            )
  # Paths that had to move, of several lengths.
  assert np.asarray(state.stats.num_accepted_per_rank)[:, 1:].any()
  assert np.asarray(state.stats.num_accepted_per_pos)[:, 1].any()


def _whole_cache(model, tokens):
  cache = model.transformer.init_cache(model.params, *tokens.shape)
  apply = jax.jit(model.transformer.apply)
  return apply({'params': model.params}, tokens, cache=cache).cache


def test_paths_in_rows_of_their_own_emit_the_same(pair):
  """The ablation differs in time only."""
  for args in (RAGGED, GREEDY):
    one = _run(pair, IRREGULAR, **args)
    other = _run(pair, IRREGULAR, tree_attention=False, **args)
    assert one.tokens == other.tokens
    np.testing.assert_array_equal(
      one.num_accepted_per_rank, other.num_accepted_per_rank
    )


def test_counts_by_rank(pair):
  target, draft = pair
  drafter = model_drafter(draft, IRREGULAR, 'without_replacement')
  args = dict(drafter=drafter, verifier='multi_candidate', stop_tokens=[])
  args |= RAGGED | dict(max_new_tokens=20)
  whole = specsamp.generate(target, PROMPTS, **args)
  np.testing.assert_array_equal(
    whole.num_accepted_per_rank.sum(axis=1),
    whole.num_accepted_per_pos.sum(axis=1),
  )
  # By hand: a round passes the root and every node that it accepts.
  assert whole.num_tried_per_rank.shape == (5, 3)
  np.testing.assert_array_equal(
    whole.num_tried_per_rank[:, 2], whole.rounds
  )  # of three candidates only the root's
  assert (
    whole.num_tried_per_rank[:, 0] >= whole.num_tried_per_rank[:, 1]
  ).all()
  assert (whole.num_tried_per_rank[:, 1] > whole.rounds).any()
  assert (whole.num_accepted_per_rank <= whole.num_tried_per_rank).all()
  np.testing.assert_array_equal(
    whole.num_drafted_per_pos, np.repeat(whole.rounds[:, None], 3, 1)
  )


@pytest.mark.slow  # drafting/test_trained_drafters.py has trees of each
@pytest.mark.parametrize('positions', ['relative', 'learned'])
def test_other_positions(positions):
  """To the last position of the target, where a draft hangs over the end."""
  target = tiny.model(11, 5, positions=positions)
  draft = tiny.model(11, 6, positions=positions, num_layers=1)
  args = dict(prompts=PROMPTS[:2], max_new_tokens=[56, 63])
  args['sampling'] = SamplingParams(temperature=0.0)
  alone = _run((target, draft), None, **args)
  got = _run((target, draft), IRREGULAR, verifier='traversal', **args)
  assert got.tokens == alone.tokens
  assert got.num_accepted_per_rank.any()


# Gumbel coupling.


def test_coupled_text_is_the_same_whatever_is_drafted(pair):
  target, _ = pair
  run = lambda pair, shape, **args: _run(
    pair, shape, 'deterministic', True, **dict(verifier='gumbel', **args)
  )
  alone = run(pair, None, **RAGGED)
  assert [len(text) for text in alone.tokens] == BUDGETS
  assert run(pair, IRREGULAR, **RAGGED).tokens == alone.tokens
  # A draft that is the target runs the same races.
  equal = run((target, target), 2, **RAGGED)
  assert equal.tokens == alone.tokens
  assert (equal.num_accepted_per_pos == equal.rounds[:, None]).all()
  # Not because there is one text only.
  other = run(pair, IRREGULAR, **RAGGED | dict(seed=1))
  assert other.tokens[0] != alone.tokens[0]
  assert other.tokens[4] == alone.tokens[4]  # the greedy row
