"""Drafts as deep as pay: the depth of every round is chosen on the device.

Of a few depths that is taken whose round is expected to emit most tokens a
second (goodput, Liu et al. 2406.14066): the sum over the rows of
1 + S_1 + .. + S_γ, S_i the chance that a row accepts i tokens, over what such
a round costs. S comes from what the rows have accepted so far, nothing else is
known when a depth is chosen, and so the output stays the target's.

A row then drafts on while the token before was likely enough: whether x_i is
drafted may depend on what was drawn before it, never on x_i itself.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp import flow
from specsamp.drafting.draft import Draft, DynamicTree, Law, TokenTree
from specsamp.drafting.drafter import CATCH_UP, Drafter, root_of
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel

# Rounds in which nothing is drafted are kept for a drafter until it drafts
# again, at most so many: then it reads them.
_MOST_BEHIND = 64
# What a row has accepted counts less with every round that it has drafted in.
_MEMORY = 0.9
# Before anything is known, tokens of a draft are accepted with this chance, as
# if it had been seen so many times.
_PRIOR, _PRIOR_WEIGHT = 0.8, 1.0
# Rounds without a draft before the shortest is tried, which double every time
# that it does not pay, up to the most.
FIRST_WAIT, _MOST_WAIT = 8, 512


@struct.dataclass
class Policy:
  """What the rows have accepted so far.

  Attributes:
    tried: float32 [B, γ], rounds in which the token of this depth was judged,
      the recent ones counting most.
    accepted: float32 [B, γ], those in which it was accepted.
    waited: int32 [], rounds since the last draft.
    wait: int32 [], after how many the next is tried.
  """

  tried: jax.Array
  accepted: jax.Array
  waited: jax.Array
  wait: jax.Array

  @classmethod
  def of(cls, batch: int, depth: int) -> 'Policy':
    zeros = jnp.zeros((batch, depth), jnp.float32)
    return cls(zeros, zeros, jnp.int32(0), jnp.int32(FIRST_WAIT))

  def acceptance(self) -> jax.Array:
    """The chance [B, γ] of each depth, once it is reached.

    What was not tried yet is taken for what the depth before it is.
    """
    chances, before = [], _PRIOR
    for tried_b, accepted_b in zip(self.tried.T, self.accepted.T, strict=True):
      before = (accepted_b + _PRIOR_WEIGHT * before) / (tried_b + _PRIOR_WEIGHT)
      chances.append(before)
    return jnp.stack(chances, axis=1)

  def choose(self, depths: Sequence[int], ms_k, active_b) -> jax.Array:
    """Which of the depths pays most, int [].

    Args:
      depths: ascending.
      ms_k: float32 [K], what a round of each costs.
      active_b: bool [B], the rows that count.
    """
    reached_bg = jnp.cumprod(self.acceptance(), axis=1)
    expected_bg = jnp.pad(jnp.cumsum(reached_bg, axis=1), ((0, 0), (1, 0)))
    tokens_bk = 1 + expected_bg[:, np.asarray(depths)]
    tokens_k = jnp.where(active_b[:, None], tokens_bk, 0).sum(axis=0)
    best = jnp.argmax(tokens_k / ms_k)
    if depths[0]:
      return best
    return jnp.where(self.waited >= self.wait, jnp.maximum(best, 1), best)

  def seen(self, draft: Draft, num_accepted_b, active_b) -> 'Policy':
    """After a round.

    Args:
      draft: of the round.
      num_accepted_b: int [B], tokens of it that were accepted.
      active_b: bool [B], the rows that count.
    """
    depths = np.arange(1, self.tried.shape[1] + 1, dtype=np.int32)[None, :]
    is_at_ng = np.asarray(draft.tree.depths)[:, None] == depths
    valid_bg = (draft.valid[:, :, None] & is_at_ng[None]).any(axis=1)
    valid_bg &= active_b[:, None]
    judged_bg = valid_bg & (depths <= num_accepted_b[:, None] + 1)
    accepted_bg = judged_bg & (depths <= num_accepted_b[:, None])
    fades = lambda old, new: jnp.where(
      valid_bg[:, :1], _MEMORY * old + new.astype(jnp.float32), old
    )
    drafted = valid_bg.any()
    # Of a draft after a wait that was in vain the next wait is longer.
    in_vain = drafted & (self.waited > 0)
    wait = jnp.where(in_vain, jnp.minimum(2 * self.wait, _MOST_WAIT), self.wait)
    return Policy(
      tried=fades(self.tried, judged_bg),
      accepted=fades(self.accepted, accepted_bg),
      waited=jnp.where(drafted, 0, self.waited + 1),
      wait=jnp.where(accepted_bg.any(), FIRST_WAIT, wait),
    )


@struct.dataclass
class AdaptiveState:
  """What is carried from round to round.

  Attributes:
    drafter: the drafter's own state.
    policy: what was accepted.
    length: int32 [B], of the rows when the round began.
    active: bool [B], rows that have grown since the round before; the others
      are done.
    behind: int32 [], rounds that the drafter has not read; between `propose`
      and `commit` of a round in which it drafts, -1.
    features: [B, W, F], the target's at the roots of these rounds, that of
      position t at t mod W.
  """

  drafter: Any
  policy: Policy
  length: jax.Array
  active: jax.Array
  behind: jax.Array
  features: jax.Array


@struct.dataclass
class AdaptiveDrafter(Drafter):
  """Drafts to the depth that pays, as another drafter drafts.

  Attributes:
    drafter: of the greatest depth.
    ms: float32 [K], what a round of each depth costs.
    least_confidence: float32 [], of the path so far for a row to draft on.
    depths: ascending, 0 for rounds without a draft, static.
  """

  drafter: Drafter
  ms: jax.Array
  least_confidence: jax.Array
  depths: tuple[int, ...] = struct.field(pytree_node=False)

  @property
  def tree(self) -> TokenTree:
    return self.drafter.tree

  @property
  def law(self) -> Law:
    return self.drafter.law

  @property
  def taps(self) -> tuple[int, ...]:
    return self.drafter.taps

  @property
  def passes(self) -> tuple[int, ...]:
    return tuple(self._tree(depth).size for depth in self.depths)

  def check(self, target: LanguageModel, batch: int) -> None:
    self.drafter.check(target, batch)

  def init(self, tokens_bp, length_b, features_bpd, capacity):
    batch = len(length_b)
    # What it reads later than it was written it reads in pieces.
    own = self.drafter.init(
      tokens_bp, length_b, features_bpd, capacity + CATCH_UP
    )
    # Of what it never reads nothing is kept.
    kept = _MOST_BEHIND if self.drafter.reads_features else 0
    shape = (batch, kept, features_bpd.shape[-1])
    return AdaptiveState(
      drafter=own,
      policy=Policy.of(batch, self.tree.depth),
      length=jnp.zeros_like(length_b),
      active=jnp.zeros(length_b.shape, bool),
      behind=jnp.int32(0),
      features=jnp.zeros(shape, features_bpd.dtype),
    )

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    active_b = length_b > state.length
    chosen = state.policy.choose(self.depths, self.ms, active_b)
    drafts = jnp.asarray(self.depths)[chosen] > 0
    reads = drafts & (state.behind > 0)
    if self.drafter.reads_features:
      reads |= state.behind == _MOST_BEHIND
    own = flow.cond_in_place(
      reads,
      lambda own: self.drafter.catch_up(
        own, tokens_bs, length_b, state.behind, state.features
      ),
      state.drafter,
    )
    carry = (
      self._blank(own, tokens_bs, length_b, sampling, keys_b),
      own,
    )
    for i, depth in enumerate(self.depths):
      if depth:
        part = self.drafter.replace(tree=self._tree(depth))
        ask = lambda carry, part=part: _ask(
          part, carry, tokens_bs, length_b, sampling, keys_b
        )
        carry = flow.cond_in_place(chosen == i, ask, carry)
    draft, own = carry
    draft = while_confident(draft, self.least_confidence)
    behind = jnp.where(reads, 0, state.behind)
    return draft, state.replace(
      drafter=own,
      length=length_b,
      active=active_b,
      behind=jnp.where(drafts, -1, behind),
    )

  def commit(self, state, draft, verdict, root_b, scored):
    policy = state.policy.seen(draft, verdict.num_accepted, state.active)
    read = lambda own: self.drafter.commit(own, draft, verdict, root_b, scored)
    if draft.tree.size == 1:
      own = flow.cond_in_place(state.behind < 0, read, state.drafter)
    else:
      own = read(state.drafter)
    return state.replace(
      drafter=own,
      policy=policy,
      behind=state.behind + 1,
      features=self._kept(state.features, scored.features, root_b),
    )

  def _kept(self, features_bwf, features_bnf, root_b):
    """With the features of the root, if they are ever read."""
    if not self.drafter.reads_features:
      return features_bwf
    slot_b = root_b % _MOST_BEHIND
    return jax.vmap(
      lambda kept, new, slot: jax.lax.dynamic_update_slice(kept, new, (slot, 0))
    )(features_bwf, features_bnf[:, :1], slot_b)

  def _tree(self, depth: int) -> TokenTree:
    """Down to this depth."""
    return self.tree.first(sum(at <= depth for at in self.tree.depths))

  def _blank(self, own, tokens_bs, length_b, *others) -> Draft:
    """A draft of which nothing was drafted."""
    shapes, _ = jax.eval_shape(
      self.drafter.propose, own, tokens_bs, length_b, *others
    )
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    into = lambda array, column: array.at[:, :1].set(column)
    return blank.replace(
      tokens=into(blank.tokens, root_of(tokens_bs, length_b)),
      valid=into(blank.valid, True),
    )


def while_confident(draft: Draft, least: jax.Array) -> Draft:
  """Without what stands behind a path that has become too unlikely.

  Whether a token is drafted depends on those above it: one that is itself
  unlikely is kept, and what would follow it is not.

  Args:
    draft: of any law; of deterministic ones all is kept.
    least: [], of the probability of the path to a token's parent, under q.
  """
  if draft.q is None or not draft.tree.depth:
    return draft
  parent_n = np.maximum(draft.tree.parents, 0)
  is_likely_bn = path_probs(draft)[:, parent_n] >= least
  return draft.replace(valid=draft.valid & is_likely_bn)


def path_probs(draft: Draft) -> jax.Array:
  """The probability under q of the path to each node, it included: [B, N]."""
  tree = draft.tree
  row_n = np.searchsorted(tree.internal, np.maximum(tree.parents, 0))
  q_bn = jnp.take_along_axis(
    draft.q[:, row_n], draft.tokens[:, :, None], axis=2
  )[:, :, 0]
  paths = [jnp.ones_like(q_bn[:, 0])]
  for node, parent in enumerate(tree.parents[1:], start=1):
    paths.append(paths[parent] * q_bn[:, node])
  return jnp.stack(paths, axis=1)


def _ask(drafter, carry, tokens_bs, length_b, sampling, keys_b):
  """A shorter drafter's draft, in the place of the longest one's."""
  draft, own = carry
  drafted, own = drafter.propose(own, tokens_bs, length_b, sampling, keys_b)

  def into(whole, part):
    start = (0,) * whole.ndim
    return jax.lax.dynamic_update_slice(whole, part, start)

  return draft.replace(
    tokens=into(draft.tokens, drafted.tokens),
    q=None if draft.q is None else into(draft.q, drafted.q),
    valid=into(draft.valid, drafted.valid),
  ), own


def adaptive_drafter(
  drafter: Drafter,
  depths: Sequence[int],
  ms: Sequence[float],
  least_confidence: float = 0.0,
) -> AdaptiveDrafter:
  """A drafter that drafts as much as pays, chosen anew in every round.

  The choice is made on the device, from what was accepted before, and changes
  no distribution: verify as what it drafts from.

  Args:
    drafter: of the greatest depth; its chain or tree is cut at the others.
    depths: that are chosen from, ascending; 0 is a round without a draft.
    ms: what a round of each costs, in milliseconds or any other unit.
    least_confidence: a row drafts on while the probability of the path so far
      is at least this; 0 is always. Of tokens that are drawn.

  Raises:
    UserError: no depths, depths that are not ascending or not the drafter's,
      another number of costs or one that is not above 0, a drafter whose depth
      cannot be chosen, or a confidence that is no probability.
  """
  depths = tuple(depths)
  fields = {field.name for field in dataclasses.fields(drafter)}
  is_dynamic = isinstance(drafter.tree, DynamicTree)
  if is_dynamic or len(drafter.passes) > 1 or 'tree' not in fields:
    raise UserError(
      f'adaptive: got a {type(drafter).__name__}, which chooses itself how '
      'much it drafts'
    )
  _check(depths, ms, least_confidence, drafter.tree.depth)
  least = jnp.float32(least_confidence)
  # A model drafts no further than anybody reads; of what is not drawn all is.
  if 'least_confidence' in fields and drafter.law != 'deterministic':
    drafter = drafter.replace(least_confidence=least)
  return AdaptiveDrafter(drafter, jnp.asarray(ms, jnp.float32), least, depths)


def _check(depths: tuple, ms, least_confidence, deepest: int) -> None:
  """Raises `UserError`: see `adaptive_drafter`."""
  if not depths:
    raise UserError('depths: got none, expected some to choose from')
  if any(type(depth) is not int or depth < 0 for depth in depths) or any(
    a >= b for a, b in itertools.pairwise(depths)
  ):
    raise UserError(f'depths: got {depths}, expected ascending numbers')
  if not depths[-1] or depths[-1] != deepest:
    raise UserError(
      f'depths: the greatest is {depths[-1]}, expected the {deepest} of the '
      'drafter, at least 1'
    )
  costs = np.asarray(ms)
  is_number = costs.dtype.kind in 'iuf'
  if (
    not is_number
    or costs.shape != (len(depths),)
    or not (np.isfinite(costs) & (costs > 0)).all()
  ):
    raise UserError(
      f'ms: got {ms!r}, expected a cost above 0 for each of the {len(depths)} '
      'depths'
    )
  if not 0 <= least_confidence <= 1:
    raise UserError(
      f'least_confidence: got {least_confidence}, expected 0 to 1'
    )
