"""Choice of the draft depth that pays, from accepted tokens and round costs.

The best depth has the most expected tokens per second: 1 + S_1 + .. + S_γ, with
S_i a row's chance to accept i tokens, over the cost of such a round. A batch
that ends together takes as long as its slowest row, so the smallest value of
its rows counts. Where finished rows are replaced, the mean counts (goodput, Liu
et al. 2406.14066).
"""

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.scipy.special import betaln

from specsamp.drafting.draft import Draft
from specsamp.drafting.drafter import SharedState

# Factor by which counts decay with each round that drafts. Counts of all rows
# are more certain and decay slowly: otherwise a few unlucky rounds would stop a
# draft that pays.
_DECAY, _SHARED_DECAY = 0.97, 0.99
# Prior chance that a token of a useful draft is accepted, and its weight in
# tokens.
PRIOR, _PRIOR_WEIGHT = 0.75, 16.0
# Weight, in tokens, of the estimate over all rows in that of a row, and of a
# row's over all depths in that of a depth. Depths differ by less than counts of
# a few rounds do. With half of this weight the choice at temperature 1 follows
# noise.
_WEIGHT = 32.0
# Share of drafts that are useless, and the chance that a token of theirs is
# accepted. The first few tokens of all rows reveal a useless draft. With the
# weight above alone it would be drafted for several more rounds.
_USELESS, _USELESS_CHANCE = 0.1, 0.02
# Weight, in rounds, of the prior that no draft was cut short.
_UNCUT_ROUNDS = 1.0
# Rounds without a draft before one is tried. The wait doubles with every try
# that no other draft follows, up to the maximum, and up to what keeps the time
# that tries are expected to lose below this share. Otherwise a draft that pays,
# but seemed slightly worse than none after a few rejections, would be off for
# whole texts.
FIRST_WAIT, _MAX_WAIT = 2, 512
_LOST_IN_TRIES = 0.005


@struct.dataclass
class SharedCounts(SharedState):
  """Acceptance counts shared by all rows.

  Attributes:
    judged: float32 [2], accepted and rejected tokens, recent ones weighted
      more.
    planned: float32 [γ], rounds that were to draft to each depth, with the same
      weights.
    drafted: float32 [γ], rounds in which some row drafted to this depth.
    waited: int32 [], rounds since the last draft.
    wait: int32 [], rounds without a draft before the next try.
  """

  judged: jax.Array
  planned: jax.Array
  drafted: jax.Array
  waited: jax.Array
  wait: jax.Array


@struct.dataclass
class Policy:
  """Acceptance counts of the rows, and the choice that follows from them.

  Attributes:
    tried: float32 [B, γ], rounds in which the token of each depth was judged,
      recent ones weighted more.
    accepted: float32 [B, γ], rounds in which it was accepted.
    shared: counts of all rows together.
  """

  tried: jax.Array
  accepted: jax.Array
  shared: SharedCounts

  @classmethod
  def initial(cls, batch: int, depth: int) -> 'Policy':
    """Returns the policy before the first round."""
    zeros = lambda *shape: jnp.zeros(shape, jnp.float32)
    counts = zeros(2), zeros(depth), zeros(depth)
    shared = SharedCounts(*counts, jnp.int32(0), jnp.int32(FIRST_WAIT))
    return cls(zeros(batch, depth), zeros(batch, depth), shared)

  def acceptance(self) -> jax.Array:
    """Returns the chance [B, γ] to accept a token whose parent is accepted."""
    accepted_b = self.accepted.sum(axis=1)
    rejected_b = self.tried.sum(axis=1) - accepted_b
    mean = _posterior(PRIOR, _PRIOR_WEIGHT, *self.shared.judged)
    mean_b = _posterior(mean, _WEIGHT, accepted_b, rejected_b)
    useful = _useful_chance(*self.shared.judged)
    mean_b = useful * mean_b + (1 - useful) * _USELESS_CHANCE
    rejected_bg = self.tried - self.accepted
    return _posterior(mean_b[:, None], _WEIGHT, self.accepted, rejected_bg)

  def choose(
    self, depths: Sequence[int], ms_k, active_b, refilled: bool = False
  ) -> jax.Array:
    """Returns the index of the depth that pays best, int [].

    After a wait the choice is a trial: the best depth above 0 that would pay if
    its whole draft were accepted.

    Args:
      depths: depths to choose from, ascending.
      ms_k: float32 [K], cost of a round of each depth.
      active_b: bool [B], rows that count.
      refilled: True if other rows replace finished ones.
    """
    ms_k = jnp.asarray(ms_k)
    rates_k = self.rates(depths, ms_k, active_b, refilled)
    best = jnp.argmax(rates_k)
    if depths[0]:
      return best
    max_tokens_k = 1 + jnp.asarray(depths, jnp.float32)
    could_pay_k = max_tokens_k * ms_k[0] > ms_k
    best_draft = jnp.argmax(jnp.where(could_pay_k, rates_k, -1))
    # Expected loss of a try, in rounds without a draft.
    lost = (1 - rates_k[best_draft] / rates_k[0]) * ms_k[best_draft] / ms_k[0]
    wait = jnp.minimum(
      self.shared.wait.astype(jnp.float32), lost / _LOST_IN_TRIES
    )
    useful = _useful_chance(*self.shared.judged)
    waited = self.shared.waited.astype(jnp.float32)
    is_due = waited >= jnp.minimum(wait / useful, _MAX_WAIT)
    is_try = (best == 0) & could_pay_k.any() & is_due
    return jnp.where(is_try, best_draft, best)

  def rates(
    self, depths: Sequence[int], ms_k, active_b, refilled: bool = False
  ) -> jax.Array:
    """Returns tokens per millisecond [K]; see `choose`."""
    reached_bg = jnp.cumprod(self.acceptance(), axis=1)
    expected_bg = jnp.pad(jnp.cumsum(reached_bg, axis=1), ((0, 0), (1, 0)))
    tokens_bk = 1 + expected_bg[:, np.asarray(depths)]
    if refilled:
      sum_k = jnp.where(active_b[:, None], tokens_bk, 0).sum(axis=0)
      tokens_k = sum_k / jnp.maximum(active_b.sum(dtype=jnp.float32), 1)
    else:
      tokens_k = jnp.where(active_b[:, None], tokens_bk, jnp.inf).min(axis=0)
    # A draft that all rows have cut short costs less.
    weight = jnp.float32(_UNCUT_ROUNDS)
    share_g = (self.shared.drafted + weight) / (self.shared.planned + weight)
    ms_g = _ms_per_token(depths, ms_k) * share_g
    sums_g = jnp.pad(jnp.cumsum(ms_g), (1, 0))[np.asarray(depths)]
    # If a deeper draft was measured as cheaper, shares of the saving may add up
    # to less than any round costs.
    cost_k = jnp.maximum(ms_k[0] + sums_g - sums_g[0], ms_k.min())
    return tokens_k / cost_k

  def after_round(
    self, draft: Draft, depth, num_accepted_b, active_b
  ) -> 'Policy':
    """Returns the policy after a round of this depth; active rows count.

    A token that was not drafted for lack of confidence counts as not accepted:
    the depth is worth that much less.
    """
    depths = np.arange(1, self.tried.shape[1] + 1, dtype=np.int32)[None, :]
    at_depth_ng = np.asarray(draft.tree.depths)[:, None] == depths
    valid_bg = (draft.valid[:, :, None] & at_depth_ng[None]).any(axis=1)
    valid_bg &= active_b[:, None]
    planned_bg = active_b[:, None] & (depths <= depth)
    judged_bg = planned_bg & (depths <= num_accepted_b[:, None] + 1)
    accepted_bg = judged_bg & (depths <= num_accepted_b[:, None])
    num_accepted = accepted_bg.sum(dtype=jnp.float32)
    num_rejected = judged_bg.sum(dtype=jnp.float32) - num_accepted
    judged = jnp.stack([num_accepted, num_rejected])
    planned_g, drafted_g = planned_bg.any(axis=0), valid_bg.any(axis=0)
    drafted = drafted_g.any()
    old = self.shared
    # A draft right after another one pays; a draft after a wait is a try.
    longer = jnp.minimum(2 * old.wait, _MAX_WAIT)
    next_wait = jnp.where(old.waited > 0, longer, FIRST_WAIT)
    return Policy(
      tried=_decayed(self.tried, judged_bg, planned_bg[:, :1]),
      accepted=_decayed(self.accepted, accepted_bg, planned_bg[:, :1]),
      shared=SharedCounts(
        judged=_decayed(old.judged, judged, planned_g.any(), _SHARED_DECAY),
        planned=_decayed(old.planned, planned_g, drafted),
        drafted=_decayed(old.drafted, drafted_g, drafted),
        waited=jnp.where(drafted, 0, old.waited + 1),
        wait=jnp.where(drafted, next_wait, old.wait),
      ),
    )


def _decayed(old, new, counts, decay=_DECAY):
  """Returns the old counts decayed plus the new ones, where a round counts."""
  return jnp.where(counts, decay * old + new.astype(jnp.float32), old)


def _posterior(prior, weight, accepted, rejected):
  """Returns the mean chance of acceptance, from a prior and counts."""
  return (weight * prior + accepted) / (weight + accepted + rejected)


def _useful_chance(accepted, rejected):
  """Returns the probability that a draft is useful, given counts of tokens.

  Acceptance has a beta prior if a draft is useful, and is a constant if not.
  """
  prior = _PRIOR_WEIGHT * PRIOR, _PRIOR_WEIGHT * (1 - PRIOR)
  return jax.nn.sigmoid(
    math.log((1 - _USELESS) / _USELESS)
    + betaln(prior[0] + accepted, prior[1] + rejected)
    - betaln(*prior)
    - accepted * math.log(_USELESS_CHANCE)
    - rejected * math.log(1 - _USELESS_CHANCE)
  )


def _ms_per_token(depths: Sequence[int], ms_k) -> jax.Array:
  """Returns the cost [γ] of each added draft token, 0 up to the least depth."""
  ms_g = [0 * ms_k[0]] * depths[0]
  for i, (below, depth) in enumerate(itertools.pairwise(depths), start=1):
    step = (ms_k[i] - ms_k[i - 1]) / (depth - below)
    ms_g += [step] * (depth - below)
  return jnp.stack(ms_g)
