"""Which depth of a draft pays: by what was accepted, and what rounds cost.

That one is taken whose round is expected to emit most tokens a second: those of
a row, 1 + S_1 + .. + S_γ with S_i its chance to accept i tokens, over what such
a round costs. A batch that ends together takes as long as its slowest row, and
so the least of the rows counts; where others take the place of rows that end,
their mean (goodput, Liu et al. 2406.14066).
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.scipy.special import betaln

from specsamp.drafting.draft import Draft
from specsamp.drafting.drafter import OfBatch

# What was accepted counts less with every round that drafted since; of all rows
# it is known better, and kept longer: by a few unlucky rounds of theirs a draft
# that pays would be left off.
_MEMORY, _MEMORY_OF_ALL = 0.97, 0.99
# Before anything is known, tokens of a draft that is of use are accepted with
# this chance, which weighs as much as so many of them.
PRIOR, _PRIOR_WEIGHT = 0.75, 16.0
# What is known of all rows, those that have ended included, stands for a row,
# and what is known of all its depths for each of them, until so many tokens of
# its own were judged: depths differ less than the counts of a few rounds do,
# and with half of this weight a choice at temperature 1 follows noise.
_WEIGHT = 32.0
# One draft in ten is of no use, whose tokens are hardly ever accepted: the few
# first tokens of all rows tell it from the others, where the weight above alone
# would have it drafted for several rounds more.
_USELESS, _USELESS_CHANCE = 0.1, 0.02
# As of how many rounds counts that nothing was left off early.
_ROUNDS_IN_FULL = 1.0
# Rounds without a draft before one is tried, which double with every try that
# no other draft follows, up to the most, and up to what it takes for tries to
# lose no more than this share of the time, as expected. Else a draft that is
# worth having, and which some rejections in a row made seem a little worse than
# none, would be left off for whole texts.
FIRST_WAIT, _MOST_WAIT = 2, 512
_LOST_IN_TRIES = 0.005


@struct.dataclass
class OfAll(OfBatch):
  """What is known of all rows, of which an engine has ever other ones.

  Attributes:
    judged: float32 [2], tokens that were accepted and that were rejected, those
      of the recent rounds counting most.
    asked: float32 [γ], rounds that were to draft so deep, likewise.
    drafted: float32 [γ], those in which any row did.
    waited: int32 [], rounds since the last draft.
    wait: int32 [], after how many the next is tried.
  """

  judged: jax.Array
  asked: jax.Array
  drafted: jax.Array
  waited: jax.Array
  wait: jax.Array

  def after(self, asked_g, drafted_g, judged) -> 'OfAll':
    """After a round.

    Args:
      asked_g: bool [γ], whether any row was to draft so deep.
      drafted_g: bool [γ], whether any did.
      judged: float32 [2], tokens of it that were accepted and rejected.
    """
    drafted = drafted_g.any()
    # A draft right after another pays; one after a wait is a try.
    longer = jnp.minimum(2 * self.wait, _MOST_WAIT)
    next_wait = jnp.where(self.waited > 0, longer, FIRST_WAIT)
    return OfAll(
      judged=_faded(self.judged, judged, asked_g.any(), _MEMORY_OF_ALL),
      asked=_faded(self.asked, asked_g, drafted),
      drafted=_faded(self.drafted, drafted_g, drafted),
      waited=jnp.where(drafted, 0, self.waited + 1),
      wait=jnp.where(drafted, next_wait, self.wait),
    )


@struct.dataclass
class Policy:
  """What the rows have accepted so far.

  Attributes:
    tried: float32 [B, γ], rounds in which the token of this depth was judged,
      the recent ones counting most.
    accepted: float32 [B, γ], those in which it was accepted.
    of_all: of all rows together.
  """

  tried: jax.Array
  accepted: jax.Array
  of_all: OfAll

  @classmethod
  def of(cls, batch: int, depth: int) -> 'Policy':
    zeros = lambda *shape: jnp.zeros(shape, jnp.float32)
    counts = zeros(2), zeros(depth), zeros(depth)
    of_all = OfAll(*counts, jnp.int32(0), jnp.int32(FIRST_WAIT))
    return cls(zeros(batch, depth), zeros(batch, depth), of_all)

  def acceptance(self) -> jax.Array:
    """The chance [B, γ] of each depth, once it is reached."""
    accepted_b = self.accepted.sum(axis=1)
    rejected_b = self.tried.sum(axis=1) - accepted_b
    of_rows = _mean(PRIOR, _PRIOR_WEIGHT, *self.of_all.judged)
    mean_b = _mean(of_rows, _WEIGHT, accepted_b, rejected_b)
    of_use = _chance_of_use(*self.of_all.judged)
    of_all_b = of_use * mean_b + (1 - of_use) * _USELESS_CHANCE
    rejected = self.tried - self.accepted
    return _mean(of_all_b[:, None], _WEIGHT, self.accepted, rejected)

  def choose(
    self, depths: Sequence[int], ms_k, active_b, refilled: bool = False
  ) -> jax.Array:
    """Which of the depths pays most, or after a wait of those above 0: int [].

    After a wait the best of those is tried that would pay if all of it were
    accepted; the wait is the longer, the likelier drafts are of no use and the
    more a try is expected to lose.

    Args:
      depths: ascending.
      ms_k: float32 [K], what a round of each costs.
      active_b: bool [B], the rows that count.
      refilled: whether others take the place of rows that end.
    """
    ms_k = jnp.asarray(ms_k)
    rates_k = self.rates(depths, ms_k, active_b, refilled)
    best = jnp.argmax(rates_k)
    if depths[0]:
      return best
    most_k = 1 + jnp.asarray(depths, jnp.float32)
    could_pay_k = most_k * ms_k[0] > ms_k
    best_draft = jnp.argmax(jnp.where(could_pay_k, rates_k, -1))
    # By a try, in rounds of none.
    lost = (1 - rates_k[best_draft] / rates_k[0]) * ms_k[best_draft] / ms_k[0]
    wait = jnp.minimum(
      self.of_all.wait.astype(jnp.float32), lost / _LOST_IN_TRIES
    )
    of_use = _chance_of_use(*self.of_all.judged)
    waited = self.of_all.waited.astype(jnp.float32)
    is_due = waited >= jnp.minimum(wait / of_use, _MOST_WAIT)
    is_try = (best == 0) & could_pay_k.any() & is_due
    return jnp.where(is_try, best_draft, best)

  def rates(
    self, depths: Sequence[int], ms_k, active_b, refilled: bool = False
  ) -> jax.Array:
    """Tokens a millisecond [K] of the row that counts, see `choose`."""
    reached_bg = jnp.cumprod(self.acceptance(), axis=1)
    expected_bg = jnp.pad(jnp.cumsum(reached_bg, axis=1), ((0, 0), (1, 0)))
    tokens_bk = 1 + expected_bg[:, np.asarray(depths)]
    if refilled:
      sum_k = jnp.where(active_b[:, None], tokens_bk, 0).sum(axis=0)
      tokens_k = sum_k / jnp.maximum(active_b.sum(dtype=jnp.float32), 1)
    else:
      tokens_k = jnp.where(active_b[:, None], tokens_bk, jnp.inf).min(axis=0)
    # A draft that all rows have left off early costs less.
    weight = jnp.float32(_ROUNDS_IN_FULL)
    share_g = (self.of_all.drafted + weight) / (self.of_all.asked + weight)
    each_g = _ms_a_token(depths, ms_k) * share_g
    sums_g = jnp.pad(jnp.cumsum(each_g), (1, 0))[np.asarray(depths)]
    # Where a deeper draft was measured as the cheaper one, shares of what it
    # saves may come to less than any round.
    cost_k = jnp.maximum(ms_k[0] + sums_g - sums_g[0], ms_k.min())
    return tokens_k / cost_k

  def seen(self, draft: Draft, depth, num_accepted_b, active_b) -> 'Policy':
    """After a round.

    A token that was not drafted for want of confidence counts as one that was
    not accepted: that much this depth is worth.

    Args:
      draft: of the round.
      depth: int [], how deep it was to draft.
      num_accepted_b: int [B], tokens of it that were accepted.
      active_b: bool [B], the rows that count.
    """
    depths = np.arange(1, self.tried.shape[1] + 1, dtype=np.int32)[None, :]
    is_at_ng = np.asarray(draft.tree.depths)[:, None] == depths
    valid_bg = (draft.valid[:, :, None] & is_at_ng[None]).any(axis=1)
    valid_bg &= active_b[:, None]
    asked_bg = active_b[:, None] & (depths <= depth)
    judged_bg = asked_bg & (depths <= num_accepted_b[:, None] + 1)
    accepted_bg = judged_bg & (depths <= num_accepted_b[:, None])
    drafts_b = asked_bg[:, 0]
    kept = accepted_bg.sum(dtype=jnp.float32)
    judged = jnp.stack([kept, judged_bg.sum(dtype=jnp.float32) - kept])
    return Policy(
      tried=_faded(self.tried, judged_bg, drafts_b[:, None]),
      accepted=_faded(self.accepted, accepted_bg, drafts_b[:, None]),
      of_all=self.of_all.after(
        asked_bg.any(axis=0), valid_bg.any(axis=0), judged
      ),
    )


def _faded(old, new, when, memory=_MEMORY):
  """With the counts of one more round, where it is one that counts."""
  return jnp.where(when, memory * old + new.astype(jnp.float32), old)


def _mean(prior, weight, accepted, rejected):
  """The chance of a token, of which so many were accepted and rejected."""
  return (weight * prior + accepted) / (weight + accepted + rejected)


def _chance_of_use(accepted, rejected):
  """That a draft is of use, by how well both explain these counts.

  The chance of one that is has a beta distribution before anything is known,
  that of one that is not is the same always.
  """
  prior = _PRIOR_WEIGHT * PRIOR, _PRIOR_WEIGHT * (1 - PRIOR)
  return jax.nn.sigmoid(
    math.log((1 - _USELESS) / _USELESS)
    + betaln(prior[0] + accepted, prior[1] + rejected)
    - betaln(*prior)
    - accepted * math.log(_USELESS_CHANCE)
    - rejected * math.log(1 - _USELESS_CHANCE)
  )


def _ms_a_token(depths: Sequence[int], ms_k) -> jax.Array:
  """[γ], what drafting and verifying each further token costs.

  Of the first ones, where no depth is chosen below, what a token of theirs
  costs beside a round of none is not known: it is a share of that round's.
  """
  ms_g = []
  below = 0
  for i, depth in enumerate(depths):
    if depth:
      step = ms_k[i] - ms_k[i - 1] if i else 0 * ms_k[i]
      ms_g += [step / (depth - below)] * (depth - below)
    below = depth
  return jnp.stack(ms_g)
