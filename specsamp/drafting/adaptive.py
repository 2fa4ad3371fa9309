"""Adaptive draft length: each round's depth is chosen on the device.

A round takes the depth with the most expected tokens per second, see `policy`.
The choice depends on earlier acceptances in all rows, and in an engine those of
earlier requests. These used random bits that no row uses again (`mixes_rows`),
so the output follows the target's distribution.
"""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.drafting.draft import Draft, DynamicTree, TokenTree, Verdict
from specsamp.drafting.drafter import (
  CATCH_UP,
  Drafter,
  Scored,
  SkippingDrafter,
  root_of,
  with_params,
)
from specsamp.drafting.features import within
from specsamp.drafting.language_model import LanguageModelDrafter
from specsamp.drafting.policy import Policy
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.utils import flow

# The features of this many rounds without a draft are kept for a drafter that
# reads features. It then reads them, even if it does not draft.
_MAX_BEHIND = 64


class CostAwareDrafter(Drafter):
  """Base of drafters that choose in each round how much another one drafts.

  A derived class has the fields `drafter`, and `ms`, float32 [K], the cost of a
  round of each choice.
  """

  mixes_rows: ClassVar[bool] = True
  tree = property(operator.attrgetter('drafter.tree'))
  law = property(operator.attrgetter('drafter.law'))
  taps = property(operator.attrgetter('drafter.taps'))

  def at_each_choice(self) -> list['CostAwareDrafter']:
    """Returns a drafter per choice, whose costs make all rounds take it.

    All run the same program.
    """
    is_chosen_kk = jnp.eye(len(self.ms), dtype=bool)
    return [
      self.replace(ms=jnp.where(is_chosen_k, jnp.float32(1), jnp.float32(1e6)))
      for is_chosen_k in is_chosen_kk
    ]

  def check(self, target: LanguageModel, batch: int) -> None:
    self.drafter.check(target, batch)

  def with_params(self, params=None, target=None):
    return self.replace(drafter=with_params(self.drafter, params, target))


@struct.dataclass
class AdaptiveState:
  """State of an `AdaptiveDrafter`.

  Attributes:
    drafter: state of the drafter that it adapts.
    policy: counts of accepted tokens.
    depth: int32 [], depth chosen for the round.
    length: int32 [B], lengths of the rows when the round began.
    active: bool [B], rows that have grown since the round before.
    behind: int32 [], rounds that the drafter has not read; -1 between `propose`
      and `commit` of a round with a draft.
    features: [B, W, F], the target's features at the roots of these rounds,
      those of position t at t mod W.
  """

  drafter: Any
  policy: Policy
  depth: jax.Array
  length: jax.Array
  active: jax.Array
  behind: jax.Array
  features: jax.Array


@struct.dataclass
class AdaptiveDrafter(CostAwareDrafter, SkippingDrafter):
  """Drafter that adapts the draft length of another drafter.

  Attributes:
    drafter: drafts to the maximum depth.
    ms: float32 [K], cost of a round of each depth.
    least_confidence: float32 [], probability of the path below which a row
      stops drafting; None never stops.
    depths: depths to choose from, ascending; 0 is a round without a draft.
      Static.
    refilled: True in an engine, which refills the slots of finished rows; else
      a batch takes as long as its slowest row. Static.
  """

  drafter: Drafter
  ms: jax.Array
  least_confidence: jax.Array | None
  depths: tuple[int, ...] = struct.field(pytree_node=False)
  refilled: bool = struct.field(pytree_node=False, default=False)

  @property
  def passes(self) -> tuple[int, ...]:
    return tuple(self.tree.down_to(depth).size for depth in self.depths)

  def at_each_choice(self) -> list['AdaptiveDrafter']:
    """Returns a drafter per depth; none ends a draft early."""
    confidence = None if self.least_confidence is None else jnp.float32(0)
    whole = self.replace(least_confidence=confidence)
    return super(AdaptiveDrafter, whole).at_each_choice()

  @property
  def overlap(self) -> int | None:
    overlap = self.drafter.overlap
    if overlap is None or not self._keeps_features:
      return overlap
    # The last `_MAX_BEHIND` tokens of a row that was done may have been read
    # with features that were not kept, because other rows were behind.
    return overlap + _MAX_BEHIND

  def init(self, tokens_bp, length_b, no_feature_b1f, capacity):
    inner = self.drafter.init(tokens_bp, length_b, no_feature_b1f, capacity)
    num_kept = _MAX_BEHIND if self._keeps_features else 0
    features_bwf = jnp.repeat(no_feature_b1f, num_kept, axis=1)
    return self._before_prompts(inner, length_b, features_bwf)

  def resume(self, state, tokens_bs, start_b, length_b):
    inner = state.drafter
    if not self._keeps_features:
      inner = self.drafter.catch_up(inner, tokens_bs, start_b + 3, state.behind)
    inner = self.drafter.resume(inner, tokens_bs, start_b, length_b)
    return self._before_prompts(inner, length_b, state.features)

  def _before_prompts(self, inner, length_b, features_bwf) -> AdaptiveState:
    return AdaptiveState(
      drafter=inner,
      policy=Policy.initial(len(length_b), self.tree.depth),
      depth=jnp.int32(0),
      length=jnp.zeros_like(length_b),
      active=jnp.zeros(length_b.shape, bool),
      behind=jnp.int32(0),
      features=features_bwf,
    )

  def prefill(self, state, tokens_bc, features_bcf, start_b, length_b):
    # The features at the end of the prompt are read if the row is inserted into
    # a batch that is behind.
    num_kept, size = state.features.shape[1], tokens_bc.shape[1]
    root_b1 = length_b[:, None] - 1
    slot_w = np.arange(num_kept, dtype=np.int32)[None]
    at_bw = root_b1 - (root_b1 - slot_w) % _MAX_BEHIND - start_b[:, None]
    is_new_bw = (at_bw >= 0) & (at_bw < size)
    new_bwf = jnp.take_along_axis(
      features_bcf, 1 + within(at_bw, size)[:, :, None], axis=1
    )
    return state.replace(
      drafter=self.drafter.prefill(
        state.drafter, tokens_bc, features_bcf, start_b, length_b
      ),
      features=jnp.where(is_new_bw[:, :, None], new_bwf, state.features),
    )

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    active_b = length_b > state.length
    chosen = state.policy.choose(self.depths, self.ms, active_b, self.refilled)
    depth = jnp.asarray(self.depths, jnp.int32)[chosen]
    reads = (depth > 0) & (state.behind > 0)
    if self._keeps_features:
      reads |= state.behind == _MAX_BEHIND
    inner = flow.cond_in_place(
      reads,
      lambda inner: self._catch_up(inner, tokens_bs, length_b, state),
      state.drafter,
    )
    inputs = tokens_bs, length_b, sampling, keys_b
    carry = self._empty_draft(inner, *inputs), inner
    for i, number in enumerate(self.depths):
      if number:
        carry = flow.cond_in_place(
          chosen == i,
          functools.partial(_propose_into, self._down_to(number), inputs),
          carry,
        )
    draft, inner = carry
    if self.least_confidence is not None:
      draft = while_confident(draft, self.least_confidence)
    behind = jnp.where(reads, 0, state.behind)
    return draft, state.replace(
      drafter=inner,
      depth=depth,
      length=length_b,
      active=active_b,
      behind=jnp.where(depth > 0, -1, behind),
    )

  def commit(self, state, draft, verdict, root_b, scored):
    active_b = state.active & scored.active
    policy = state.policy.after_round(
      draft, state.depth, verdict.num_accepted, active_b
    )

    def commit(inner):
      return self.drafter.commit(inner, draft, verdict, root_b, scored)

    if draft.tree.size == 1:
      inner = flow.cond_in_place(state.behind < 0, commit, state.drafter)
    else:
      inner = commit(state.drafter)
    features_bwf = state.features
    if self._keeps_features:
      features_bwf = jax.vmap(
        lambda row, new, slot: jax.lax.dynamic_update_slice(row, new, (slot, 0))
      )(features_bwf, scored.features[:, :1], root_b % _MAX_BEHIND)
    return state.replace(
      drafter=inner,
      policy=policy,
      behind=state.behind + 1,
      features=features_bwf,
    )

  @property
  def _keeps_features(self) -> bool:
    return not isinstance(self.drafter, LanguageModelDrafter)

  def _catch_up(self, inner, tokens_bs, length_b, state: AdaptiveState):
    """Returns the drafter's state after rounds in which it did not draft.

    In each of these rounds every row that was not done grew by one token. These
    tokens are committed as if they had been drafted and accepted, `CATCH_UP` a
    time. A row inserted after some of these rounds reads older tokens again.
    """
    behind, tree = state.behind, TokenTree.chain(CATCH_UP - 1)
    if not self._keeps_features:
      return self.drafter.catch_up(inner, tokens_bs, length_b, behind)
    at_n = np.arange(tree.size, dtype=np.int32)[None]
    batch, num_kept = state.features.shape[:2]
    first_b = length_b - 1 - behind  # negative in a row that is short

    def commit(carry):
      done, inner = carry
      end_b = first_b + jnp.minimum(behind, done + tree.size)
      start_b = jnp.maximum(first_b + done, 0)
      count_b = jnp.clip(end_b - start_b, 1, tree.size)
      at_bn = start_b[:, None] + at_n
      token = lambda at: jnp.take_along_axis(tokens_bs, at, axis=1, mode='clip')
      is_valid_bn = jnp.ones(at_bn.shape, bool)
      draft = Draft(token(at_bn), None, tree, 'deterministic', is_valid_bn)
      verdict = Verdict(
        node=count_b - 1,
        num_accepted=count_b - 1,
        path=jnp.broadcast_to(at_n, at_bn.shape),
        next_token=token(at_bn[:, :1] + count_b[:, None])[:, 0],
      )
      features_bnf = jnp.take_along_axis(
        state.features, (at_bn % num_kept)[:, :, None], axis=1
      )
      no_logits = jnp.zeros((batch, 0, 0), jnp.float32)
      scored = Scored(features_bnf, no_logits, jnp.ones((batch,), bool))
      inner = self.drafter.commit(inner, draft, verdict, at_bn[:, 0], scored)
      return done + tree.size, inner

    return jax.lax.while_loop(
      lambda carry: carry[0] < behind, commit, (jnp.int32(0), inner)
    )[1]

  def _down_to(self, depth: int) -> Drafter:
    shorter = self.drafter.replace(tree=self.tree.down_to(depth))
    # A model that draws may stop early. Deterministic drafts are kept whole.
    if self.law == 'deterministic' or not hasattr(shorter, 'least_confidence'):
      return shorter
    return shorter.replace(least_confidence=self.least_confidence)

  def _empty_draft(self, inner, tokens_bs, length_b, *others) -> Draft:
    """Returns a draft of the maximum depth without draft tokens."""
    shapes, _ = jax.eval_shape(
      self.drafter.propose, inner, tokens_bs, length_b, *others
    )
    draft = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return draft.replace(
      tokens=draft.tokens.at[:, :1].set(root_of(tokens_bs, length_b)),
      valid=draft.valid.at[:, :1].set(True),
    )


def _propose_into(drafter: Drafter, inputs, carry):
  """Proposes a shorter draft and writes it over the beginning of a longer one.

  `carry` is the longer draft and the drafter's state.
  """
  whole, state = carry
  draft, state = drafter.propose(state, *inputs)

  def write(into, part):
    return jax.lax.dynamic_update_slice(into, part, (0,) * into.ndim)

  return jax.tree.map(write, whole, draft.replace(tree=whole.tree)), state


def while_confident(draft: Draft, least_confidence: jax.Array) -> Draft:
  """Returns the draft without nodes below a path that is too improbable.

  A decision to draft a token may depend on its ancestors, never on the token:
  the token that makes a path improbable is kept, and only its children are
  dropped. A deterministic draft is kept whole.
  """
  if draft.q is None or not draft.tree.depth:
    return draft
  parent_n = np.maximum(draft.tree.parents, 0)
  is_likely_bn = path_probs(draft)[:, parent_n] >= least_confidence
  return draft.replace(valid=draft.valid & is_likely_bn)


def path_probs(draft: Draft) -> jax.Array:
  """Returns the probability under q of the path to each node, [B, N]."""
  tree = draft.tree
  row_g = np.searchsorted(tree.internal, tree.parents[1:]).astype(np.int32)
  gather = lambda q_iv, token_g: q_iv.at[row_g, token_g].get(mode='clip')
  q_bg = jax.vmap(gather)(draft.q, draft.tokens[:, 1:])
  paths = [jnp.ones_like(q_bg[:, 0])]
  for i, parent in enumerate(tree.parents[1:]):
    paths.append(paths[parent] * q_bg[:, i])
  return jnp.stack(paths, axis=1)


def adaptive_drafter(
  drafter: Drafter,
  depths: Sequence[int],
  ms: Sequence[float],
  least_confidence: float | None = None,
) -> AdaptiveDrafter:
  """Returns a drafter that chooses how deep to draft in every round.

  The choice changes no distribution. Use the verifier of the given drafter.

  Args:
    drafter: drafts to the maximum depth; its chain or tree is cut at the other
      depths.
    depths: depths to choose from, ascending; 0 is a round without a draft.
    ms: cost of a round of each depth, in milliseconds or any other unit.
    least_confidence: a row drafts while the probability of its path is at least
      this; None always drafts.

  Raises:
    UserError: the drafter cannot be cut at these depths, the depths or costs
      are invalid, or the confidence is not a probability.
  """
  name, tree, depths = type(drafter).__name__, drafter.tree, tuple(depths)
  fields = {field.name for field in dataclasses.fields(drafter)}
  chooses = isinstance(tree, DynamicTree) or len(drafter.passes) > 1
  if chooses or 'tree' not in fields or drafter.extra_tree.parents:
    raise UserError(
      f'adaptive: got a {name}, which chooses itself how much it drafts or '
      'sends tokens alongside its draft'
    )
  if any(a > b for a, b in itertools.pairwise(tree.depths)):
    raise UserError(
      f'adaptive: got the parents {tree.parents}, expected a tree numbered '
      'depth by depth'
    )
  are_integers = all(type(depth) is int for depth in depths)
  is_ascending = are_integers and all(
    a < b for a, b in itertools.pairwise((-1, *depths))
  )
  if not (is_ascending and depths and 0 < depths[-1] == tree.depth):
    raise UserError(
      f'depths: got {depths}, expected ascending integers, the last being the '
      f'{tree.depth} of the drafter, at least 1'
    )
  costs = check_costs(ms, len(depths), 'depths')
  confidence = least_confidence
  if confidence is not None:
    if not 0 <= confidence <= 1:
      raise UserError(f'least_confidence: got {confidence}, expected 0 to 1')
    confidence = jnp.float32(confidence)
  return AdaptiveDrafter(drafter, costs, confidence, depths)


def check_costs(ms: Sequence[float], count: int, choices: str) -> jax.Array:
  """Returns the costs of `count` choices, float32 [K].

  Raises:
    UserError: they are not a number above 0 for each of the choices.
  """
  costs = np.asarray(ms)
  if (
    costs.dtype.kind not in 'iuf'
    or costs.shape != (count,)
    or not (np.isfinite(costs) & (costs > 0)).all()
  ):
    raise UserError(
      f'ms: got {ms!r}, expected a cost above 0 for each of the {count} '
      f'{choices}'
    )
  return jnp.asarray(costs, jnp.float32)
