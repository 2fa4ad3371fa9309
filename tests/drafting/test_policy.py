"""The depth that pays, by what was accepted and what rounds cost."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specsamp.drafting import TokenTree
from specsamp.drafting.draft import Draft
from specsamp.drafting.policy import PRIOR, Policy


def _draft(valid):
  valid = np.pad(np.asarray(valid, bool), ((0, 0), (1, 0)), constant_values=1)
  tree = TokenTree.chain(valid.shape[1] - 1)
  return Draft(np.zeros(valid.shape, np.int32), None, tree, 'iid', valid)


ALL = np.asarray([True, True])
MS = np.asarray([1.0, 1.4, 1.8, 2.6], np.float32)
DEPTHS = (0, 1, 2, 4)


def _after(rounds):
  """The policy after rounds of which each row accepted so many of 4."""
  policy = Policy.of(2, 4)
  for accepted in rounds:
    policy = policy.seen(_draft(np.ones((2, 4))), 4, np.asarray(accepted), ALL)
  return policy


@pytest.mark.parametrize(
  ('rounds', 'active', 'depth'),
  [
    ([(4, 4)] * 8, ALL, 4),
    ([(1, 1)] * 8, ALL, 1),
    ([(0, 0)] * 8, ALL, 0),
    ([(4, 0)] * 8, np.asarray([True, False]), 4),
    ([(4, 0)] * 24, np.asarray([False, True]), 0),
    # A batch takes as long as its slowest row.
    ([(4, 0)] * 24, ALL, 0),
    ([(4, 1)] * 16, ALL, 1),
    # That it is slow is not known after two rounds.
    ([(4, 0)] * 2, ALL, 2),
    # What was accepted long ago counts less.
    ([(0, 0)] * 40 + [(4, 4)] * 32, ALL, 4),
  ],
)
def test_the_depth_that_pays(rounds, active, depth):
  assert DEPTHS[int(_after(rounds).choose(DEPTHS, MS, active))] == depth


def test_a_draft_of_no_use_is_told_by_its_first_tokens():
  """Sooner than by their mean with the prior."""
  policy = Policy.of(1, 4)
  for _ in range(2):
    policy = policy.seen(_draft(np.ones((1, 4))), 4, np.zeros(1), ALL[:1])
  assert int(policy.choose(DEPTHS, MS, ALL[:1])) == 0
  of_use = 16 * PRIOR / (16 + 2)
  assert policy.acceptance()[0, 3] < 0.6 * of_use


def test_depths_tell_of_each_other():
  """What is known of the second to the fourth token is known of the first."""
  chance = lambda accepted: _after([(accepted,) * 2] * 24).acceptance()
  # Its own token was accepted in every round of either.
  assert (chance(1)[:, 0] < chance(4)[:, 0] - 0.02).all()
  first, _, _, last = chance(2)[0]
  assert first > last + 0.1


def test_rows_tell_of_each_other_but_not_those_that_are_done():
  one = np.asarray([True, False])

  def seen(accepted, rows):
    policy, draft = Policy.of(2, 4), _draft(np.ones((2, 4)))
    return policy.seen(draft, 4, np.asarray(accepted), rows).acceptance()

  alone, beside = seen([4, 0], one), seen([4, 0], ALL)
  np.testing.assert_array_equal(alone, seen([4, 4], one))
  assert (beside[0] < alone[0]).all()
  # A row of which nothing is known yet is taken for what the other is.
  assert (alone[1] > Policy.of(2, 4).acceptance()[1]).all()


def test_after_a_wait_the_draft_that_pays_best_is_tried():
  """Where one token costs as much as two, never one."""
  steep = np.asarray([1.0, 2.0, 2.1, 4.0], np.float32)
  policy = _after([(1, 1), (0, 0)] * 8)
  assert DEPTHS[int(policy.choose(DEPTHS, steep, ALL))] == 0
  of_all = policy.of_all.replace(waited=2 * policy.of_all.wait)
  waited = policy.replace(of_all=of_all)
  assert DEPTHS[int(waited.choose(DEPTHS, steep, ALL))] == 2


def test_what_hardly_loses_is_tried_soon():
  """However often it was, and what loses much is not."""
  policy = _after([(1, 1), (0, 0)] * 8)
  of_all = policy.of_all.replace(waited=jnp.int32(12), wait=jnp.int32(512))
  waited = policy.replace(of_all=of_all)
  tried = []
  for ms in (1.6, 2.4):
    costs = np.asarray([1.0, ms, ms, 4.0], np.float32)
    of_none, _, of_two, _ = policy.rates(DEPTHS, costs, ALL)
    assert of_two < of_none
    assert int(policy.choose(DEPTHS, costs, ALL)) == 0
    tried.append(DEPTHS[int(waited.choose(DEPTHS, costs, ALL))])
  assert tried == [2, 0]


def test_where_rows_are_refilled_their_mean_pays():
  policy = _after([(4, 0)] * 16)
  assert DEPTHS[int(policy.choose(DEPTHS, MS, ALL, refilled=True))] == 2


def test_a_draft_that_could_never_pay_is_not_tried():
  """Whatever has been waited: all of it accepted would take longer."""
  dear = np.asarray([1.0, 2.5, 3.5, 5.5], np.float32)
  policy = Policy.of(2, 4)
  waited = policy.replace(of_all=policy.of_all.replace(waited=jnp.int32(600)))
  assert DEPTHS[int(waited.choose(DEPTHS, MS, ALL))] > 0
  assert DEPTHS[int(waited.choose(DEPTHS, dear, ALL))] == 0
  # One that could is, if others could not.
  flat = np.asarray([1.0, 2.5, 3.5, 4.5], np.float32)
  assert DEPTHS[int(waited.choose(DEPTHS, flat, ALL))] == 4


def test_a_draft_of_no_use_is_tried_after_the_longest_wait():
  """An engine's next texts may be others."""
  policy = _after([(0, 0)] * 40)
  tries = lambda waited: int(
    policy.replace(
      of_all=policy.of_all.replace(waited=jnp.int32(waited))
    ).choose(DEPTHS, MS, ALL)
  )
  assert (tries(500), tries(512) > 0) == (0, True)


def test_a_dear_draft_does_not_pay():
  policy = _after([(2, 2)] * 8)
  assert DEPTHS[int(policy.choose(DEPTHS, MS, ALL))] == 2
  dear = np.asarray([1, 4, 5, 6], np.float32)
  assert DEPTHS[int(policy.choose(DEPTHS, dear, ALL))] == 0


def test_what_never_pays_is_tried_ever_more_seldom():
  policy, tried = Policy.of(2, 4), []
  one = np.asarray([True, False])
  choose = jax.jit(lambda policy: policy.choose(DEPTHS, MS, one))

  @functools.partial(jax.jit, static_argnums=1)
  def seen(policy, depth):
    draft = _draft(np.ones((2, depth)))
    # A row that is done accepts whatever it likes.
    return policy.seen(draft, depth, np.asarray([0, 4]), one)

  for round_ in range(700):
    depth = DEPTHS[int(choose(policy))]
    if depth:
      tried.append(round_)
    policy = seen(policy, depth)
  assert 3 < len(tried) < 15
  gaps = np.diff(tried)
  assert gaps[-1] > 200
  assert (np.diff(gaps) >= 0).all()


def test_a_draft_that_is_left_off_early_costs_less():
  """And is worth less: of what was cut nothing is accepted."""
  whole = _after([(2, 2)] * 8)
  cut = Policy.of(2, 4)
  valid = np.tile([1, 1, 0, 0], (2, 1))
  for _ in range(8):
    cut = cut.seen(_draft(valid), 4, np.asarray((2, 2)), ALL)
  np.testing.assert_allclose(cut.acceptance(), whole.acceptance())
  rates = lambda policy: np.asarray(policy.rates(DEPTHS, MS, ALL))
  assert rates(cut)[3] > 1.2 * rates(whole)[3]
  np.testing.assert_allclose(rates(cut)[:3], rates(whole)[:3], rtol=1e-6)


def test_a_round_costs_no_less_than_the_cheapest():
  """Two tokens were measured as cheaper than one, which is seldom drafted."""
  seldom = jnp.asarray([2, 0, 0, 0], jnp.float32)
  policy = Policy.of(2, 4)
  of_all = policy.of_all.replace(asked=10 * seldom, drafted=seldom)
  policy = policy.replace(of_all=of_all)
  ms = jnp.asarray([1, 10, 2, 2], jnp.float32)
  rates = np.asarray(policy.rates(DEPTHS, ms, ALL))
  assert (rates > 0).all()
  assert (rates <= 5).all()
