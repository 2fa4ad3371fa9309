"""The depth that pays, and the cost of choosing it in replayed texts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specsamp.drafting import TokenTree
from specsamp.drafting.draft import Draft
from specsamp.drafting.policy import Policy


def _draft(valid):
  valid = jnp.pad(valid, ((0, 0), (1, 0)), constant_values=True)
  tree = TokenTree.chain(valid.shape[1] - 1)
  return Draft(np.zeros(valid.shape, np.int32), None, tree, 'iid', valid)


ALL, ONE = np.asarray([True, True]), np.asarray([True, False])
MS = np.asarray([1.0, 1.4, 1.8, 2.6], np.float32)
DEPTHS = (0, 1, 2, 4)


@jax.jit
def _next(policy, valid, accepted, active):
  return policy.after_round(_draft(valid), 4, accepted, active)


def _after(rounds, active=ALL, valid=(1, 1, 1, 1)):
  """Returns the policy after rounds with these accepted lengths, of 4."""
  policy, valid = Policy.initial(2, 4), np.tile(np.bool_(valid), (2, 1))
  for accepted in rounds:
    policy = _next(policy, valid, np.asarray(accepted), active)
  return policy


@functools.partial(jax.jit, static_argnames='refilled')
def _chosen(policy, ms_k=MS, active_b=ALL, refilled=False):
  """Returns the depth that is chosen."""
  at = policy.choose(DEPTHS, ms_k, active_b, refilled)
  return jnp.asarray(DEPTHS)[at]


def _waiting(policy, **counts):
  """Returns a policy with other counts of rounds without a draft."""
  counts = {name: jnp.int32(count) for name, count in counts.items()}
  return policy.replace(shared=policy.shared.replace(**counts))


@pytest.mark.parametrize(
  ('rounds', 'options', 'depth'),
  [
    ([(4, 4)] * 8, {}, 4),
    ([(1, 1)] * 8, {}, 1),
    ([(0, 0)] * 8, {}, 0),
    ([(4, 0)] * 8, dict(active_b=ONE), 4),
    ([(4, 0)] * 24, dict(active_b=~ONE), 0),
    # A batch takes as long as its slowest row.
    ([(4, 0)] * 24, {}, 0),
    ([(4, 1)] * 16, {}, 1),
    # The mean of the rows counts if slots are refilled.
    ([(4, 0)] * 16, dict(refilled=True), 2),
    # Two rounds do not show that a row is slow.
    ([(4, 0)] * 2, {}, 2),
    # Tokens accepted long ago count less.
    ([(0, 0)] * 40 + [(4, 4)] * 32, {}, 4),
    # An expensive draft does not pay.
    ([(2, 2)] * 8, {}, 2),
    ([(2, 2)] * 8, dict(ms_k=np.float32([1, 4, 5, 6])), 0),
  ],
)
def test_the_depth_that_pays(rounds, options, depth):
  assert _chosen(_after(rounds), **options) == depth


def test_rows_that_are_not_done_inform_each_other():
  alone = _after([(4, 0)], ONE).acceptance()
  beside = _after([(4, 0)]).acceptance()
  np.testing.assert_array_equal(alone, _after([(4, 4)], ONE).acceptance())
  assert (beside[0] < alone[0]).all()
  # A row without counts is expected to be like the other.
  assert (alone[1] > Policy.initial(2, 4).acceptance()[1]).all()


def test_a_draft_that_could_never_pay_is_not_tried():
  """Even if all of it were accepted it would be slower."""
  dear = np.asarray([1.0, 2.5, 3.5, 5.5], np.float32)
  waited = _waiting(Policy.initial(2, 4), waited=600)
  assert _chosen(waited) > 0
  assert _chosen(waited, dear) == 0
  # One that could pay is tried, if others could not.
  flat = np.asarray([1.0, 2.5, 3.5, 4.5], np.float32)
  assert _chosen(waited, flat) == 4


def test_a_draft_that_never_pays_is_tried_less_and_less():
  policy, tried = Policy.initial(2, 4), []

  @functools.partial(jax.jit, static_argnums=1)
  def seen(policy, depth):
    draft = _draft(np.ones((2, depth), bool))
    # The counts of a row that is done do not matter.
    return policy.after_round(draft, depth, np.asarray([0, 4]), ONE)

  for round_ in range(700):
    depth = int(_chosen(policy, MS, ONE))
    if depth:
      tried.append(round_)
    policy = seen(policy, depth)
  assert 3 < len(tried) < 15
  gaps = np.diff(tried)
  assert gaps[-1] > 200
  assert (np.diff(gaps) >= 0).all()


def test_a_draft_that_is_cut_short_costs_less():
  """And is worth less: no cut token is accepted."""
  whole = _after([(2, 2)] * 8)
  cut = _after([(2, 2)] * 8, valid=(1, 1, 0, 0))
  np.testing.assert_allclose(cut.acceptance(), whole.acceptance())
  rates = lambda policy: np.asarray(policy.rates(DEPTHS, MS, ALL))
  assert rates(cut)[3] > 1.2 * rates(whole)[3]
  np.testing.assert_allclose(rates(cut)[:3], rates(whole)[:3], rtol=1e-6)


def test_a_round_costs_no_less_than_the_cheapest():
  """Two tokens were measured as cheaper than one, which was seldom drafted."""
  seldom = jnp.asarray([2, 0, 0, 0], jnp.float32)
  policy = Policy.initial(2, 4)
  shared = policy.shared.replace(planned=10 * seldom, drafted=seldom)
  policy = policy.replace(shared=shared)
  ms = jnp.asarray([1, 10, 2, 2], jnp.float32)
  rates = np.asarray(policy.rates(DEPTHS, ms, ALL))
  assert (rates > 0).all()
  assert (rates <= 5).all()


# Texts replayed with known chances.

_DEPTHS = (0, 1, 2, 4, 6, 8)
# Measured with the embedded target and EAGLE on two cores.
_MS = np.asarray([4.8, 7.9, 8.4, 9.5, 11.4, 14.6], np.float32)
_TREE = TokenTree.chain(_DEPTHS[-1])
_TEXTS, _TOKENS = 384, 128
_ACTIVE = np.ones(1, bool)


def _round(policy, chance, key):
  """Returns the policy after a round, its tokens and its milliseconds."""
  chosen = policy.choose(_DEPTHS, jnp.asarray(_MS), _ACTIVE, refilled=True)
  depth = jnp.asarray(_DEPTHS)[chosen]
  at = np.arange(_TREE.size)
  is_good = jax.random.uniform(key, (_TREE.depth,)) < chance
  accepted = jnp.cumprod(is_good & (at[1:] <= depth)).sum()
  draft = Draft(
    jnp.zeros((1, _TREE.size), jnp.int32), None, _TREE, 'iid',
    (at <= depth)[None],
  )  # fmt: skip
  policy = policy.after_round(draft, depth, accepted[None], _ACTIVE)
  return policy, 1 + accepted, jnp.asarray(_MS)[chosen]


@jax.jit
def _engine(chance_x, key):
  """Returns tokens per millisecond of successive texts with these chances."""

  def text(shared, inputs):
    chance, key = inputs

    def step(carry):
      policy, tokens, ms, key = carry
      key, round_key = jax.random.split(key)
      policy, new, taken = _round(policy, chance, round_key)
      return policy, tokens + new, ms + taken, key

    policy = Policy.initial(1, _TREE.depth).replace(shared=shared)
    policy, tokens, ms, _ = jax.lax.while_loop(
      lambda carry: carry[1] < _TOKENS, step, (policy, 0, 0.0, key)
    )
    return policy.shared, (tokens, ms)

  shared = Policy.initial(1, _TREE.depth).shared
  keys = jax.random.split(key, len(chance_x))
  _, (tokens_x, ms_x) = jax.lax.scan(text, shared, (chance_x, keys))
  return tokens_x.sum().astype(jnp.float32) / ms_x.sum()


def _fixed(chance):
  """Returns tokens per millisecond of each fixed depth."""
  tokens = [sum(chance**i for i in range(depth + 1)) for depth in _DEPTHS]
  return np.asarray(tokens) / _MS


@pytest.mark.parametrize('chance', [0.01, 0.4, 0.5, 0.6, 0.9])
def test_choosing_loses_little_for_texts_that_are_alike(chance):
  """There is nothing to gain; noise and tries lose something."""
  chosen = _engine(jnp.full(_TEXTS, chance), jax.random.key(0))
  assert chosen > 0.975 * max(_fixed(chance))


@pytest.mark.parametrize(
  ('chances', 'in_a_row', 'gain'),
  [((0.2, 0.9), 1, 1.2), ((0.3, 0.8), 1, 1.15), ((0.3, 0.8), 8, 1.17)],
)
def test_choosing_gains_for_texts_that_differ(chances, in_a_row, gain):
  """Over the one length that is best for all texts together."""
  chance_x = np.repeat(np.tile(chances, _TEXTS // 2 // in_a_row), in_a_row)
  chosen = _engine(jnp.float32(chance_x), jax.random.key(0))
  fixed = max(2 / sum(1 / _fixed(chance) for chance in chances))
  assert chosen > gain * fixed
