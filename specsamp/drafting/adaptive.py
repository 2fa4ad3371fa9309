"""Drafts as deep as pay: the depth of every round is chosen on the device.

Of a few depths that is taken whose round is expected to emit most tokens per
second, see `policy`. All that is known then is what the rows, and in an engine
the texts before theirs, have accepted so far, by random bits that no row will
use again (`mixes_rows`), and so the output follows the target's distribution.

Within a draft a row may be told to draft on only while its path is likely
enough: whether x_i is drafted may depend on what was drawn before it, never on
x_i itself.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.drafting.draft import Draft, DynamicTree, Law, TokenTree
from specsamp.drafting.drafter import CATCH_UP, Drafter, root_of
from specsamp.drafting.policy import Policy
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.utils import flow

# Rounds in which nothing is drafted are kept for a drafter until it drafts
# again, at most so many: then it reads them.
_MOST_BEHIND = 64


@struct.dataclass
class AdaptiveState:
  """What is carried from round to round.

  Attributes:
    drafter: the drafter's own state.
    policy: what was accepted.
    depth: int32 [], to which the round was to draft.
    length: int32 [B], of the rows when it began.
    active: bool [B], rows that have grown since the round before; the others
      are done.
    behind: int32 [], rounds that the drafter has not read; between `propose`
      and `commit` of a round in which it drafts, -1.
    features: [B, W, F], the target's at the roots of these rounds, that of
      position t at t mod W.
  """

  drafter: Any
  policy: Policy
  depth: jax.Array
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
    least_confidence: float32 [], of the path so far for a row to draft on;
      None is always.
    depths: ascending, 0 for rounds without a draft, static.
    refilled: whether other texts take the place of those that end, as in an
      engine, static; else a batch takes as long as its slowest row.
  """

  drafter: Drafter
  ms: jax.Array
  least_confidence: jax.Array | None
  depths: tuple[int, ...] = struct.field(pytree_node=False)
  refilled: bool = struct.field(pytree_node=False, default=False)
  mixes_rows: ClassVar[bool] = True

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

  @property
  def room(self) -> int:
    # What it reads later than it was written it reads in pieces. Caches are
    # rounded up for them: added by the drafter itself, they would leave rows of
    # slots that are not aligned.
    return max(self.drafter.room, CATCH_UP)

  def parts(self):
    """It with costs of which each depth in turn has by far the least, so that
    every round drafts so deep; nothing is left off early."""
    is_it_kk = jnp.eye(len(self.depths), dtype=bool)
    least = None if self.least_confidence is None else jnp.float32(0)
    return [
      self.replace(
        ms=jnp.where(is_it_k, jnp.float32(1), jnp.float32(1e6)),
        least_confidence=least,
      )
      for is_it_k in is_it_kk
    ]

  def check(self, target: LanguageModel, batch: int) -> None:
    self.drafter.check(target, batch)

  def with_params(self, params=None, target=None):
    return self.replace(drafter=self.drafter.with_params(params, target))

  def for_engine(self):
    return self.replace(refilled=True)

  def init(self, tokens_bp, length_b, features_bpd, capacity):
    batch = len(length_b)
    own = self.drafter.init(tokens_bp, length_b, features_bpd, capacity)
    # Of what it never reads nothing is kept; else the prompt's last, for a row
    # that comes to a batch which is behind.
    kept = _MOST_BEHIND if self.drafter.reads_features else 0
    root_b1 = length_b[:, None] - 1
    slot_w = np.arange(kept, dtype=np.int32)[None]
    at_bw = jnp.maximum(root_b1 - (root_b1 - slot_w) % _MOST_BEHIND, 0)
    return AdaptiveState(
      drafter=own,
      policy=Policy.of(batch, self.tree.depth),
      depth=jnp.int32(0),
      length=jnp.zeros_like(length_b),
      active=jnp.zeros(length_b.shape, bool),
      behind=jnp.int32(0),
      features=jnp.take_along_axis(features_bpd, at_bw[:, :, None], axis=1),
    )

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    active_b = length_b > state.length
    chosen = state.policy.choose(self.depths, self.ms, active_b, self.refilled)
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
        part = self._to(depth)
        ask = lambda carry, part=part: _ask(
          part, carry, tokens_bs, length_b, sampling, keys_b
        )
        carry = flow.cond_in_place(chosen == i, ask, carry)
    draft, own = carry
    if self.least_confidence is not None:
      draft = while_confident(draft, self.least_confidence)
    behind = jnp.where(reads, 0, state.behind)
    return draft, state.replace(
      drafter=own,
      depth=jnp.asarray(self.depths, jnp.int32)[chosen],
      length=length_b,
      active=active_b,
      behind=jnp.where(drafts, -1, behind),
    )

  def commit(self, state, draft, verdict, root_b, scored):
    policy = state.policy.seen(
      draft,
      state.depth,
      verdict.num_accepted,
      state.active & scored.active,
    )
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

  def _to(self, depth: int) -> Drafter:
    """The drafter to this depth, at most."""
    part = self.drafter.replace(tree=self._tree(depth))
    # A model drafts no further than anybody reads; of what is not drawn all is.
    if self.law == 'deterministic' or not hasattr(part, 'least_confidence'):
      return part
    return part.replace(least_confidence=self.least_confidence)

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
  row_g = np.searchsorted(tree.internal, tree.parents[1:]).astype(np.int32)
  gather = lambda q_iv, token_g: q_iv.at[row_g, token_g].get(mode='clip')
  q_bg = jax.vmap(gather)(draft.q, draft.tokens[:, 1:])
  paths = [jnp.ones_like(q_bg[:, 0])]
  for i, parent in enumerate(tree.parents[1:]):
    paths.append(paths[parent] * q_bg[:, i])
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
  least_confidence: float | None = None,
) -> AdaptiveDrafter:
  """A drafter that drafts as much as pays, chosen anew in every round.

  The choice is made on the device, from what was accepted before, and changes
  no distribution: verify as what it drafts from.

  Args:
    drafter: of the greatest depth; its chain or tree is cut at the others.
    depths: that are chosen from, ascending; 0 is a round without a draft.
    ms: what a round of each costs, in milliseconds or any other unit.
    least_confidence: a row drafts on while the probability of the path so far
      is at least this; None is always.

  Raises:
    UserError: no depths, depths that are not ascending or not the drafter's,
      another number of costs or one that is not above 0, a drafter whose depth
      cannot be chosen, a tree that cannot be cut, or a confidence that is no
      probability.
  """
  depths = tuple(depths)
  fields = {field.name for field in dataclasses.fields(drafter)}
  is_dynamic = isinstance(drafter.tree, DynamicTree)
  if is_dynamic or len(drafter.passes) > 1 or 'tree' not in fields:
    raise UserError(
      f'adaptive: got a {type(drafter).__name__}, which chooses itself how '
      'much it drafts'
    )
  if drafter.extra_tree.parents:
    raise UserError(
      f'adaptive: got a {type(drafter).__name__}, which sends tokens '
      'beside its draft'
    )
  if any(a > b for a, b in itertools.pairwise(drafter.tree.depths)):
    raise UserError(
      f'adaptive: got the parents {drafter.tree.parents}, expected a tree '
      'numbered depth by depth'
    )
  _check(depths, ms, least_confidence, drafter.tree.depth)
  least = None if least_confidence is None else jnp.float32(least_confidence)
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
  if least_confidence is not None and not 0 <= least_confidence <= 1:
    raise UserError(
      f'least_confidence: got {least_confidence}, expected 0 to 1'
    )
