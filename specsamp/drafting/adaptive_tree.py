"""Adaptive tree size: each round's number of nodes is chosen on the device.

A dynamic tree has its most probable nodes first, so its first n nodes are the
best tree of n nodes. A node pays if the probability of its path exceeds the
tokens that other rounds emit in the time that it costs. BASTION (2605.29727)
compares a node with the other nodes of its round instead. Rounds of a certain
draft, which emit many tokens anyway, then take too small trees, and those of an
uncertain one too large trees: the whole may be slower than any fixed size.

The choice depends on q and on earlier rounds, in all rows and in an engine in
earlier requests. The tokens of a dynamic tree are not drawn, so its size may
depend on them. Earlier rounds used random bits that no row uses again
(`mixes_rows`). So the output follows the target's distribution.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.drafting.adaptive import CostAwareDrafter, check_costs
from specsamp.drafting.draft import DynamicTree
from specsamp.drafting.drafter import Drafter, SharedState
from specsamp.errors import UserError

_DECAY = 0.99  # of the past, with each round


@struct.dataclass
class Past(SharedState):
  """Sums over earlier rounds, recent ones weighted more.

  They are shared by all rows, and an engine keeps them.

  Attributes:
    tokens: float32 [], tokens of a row that its trees were expected to emit.
    ms: float32 [], costs of the rounds.
  """

  tokens: jax.Array
  ms: jax.Array

  @classmethod
  def none(cls) -> 'Past':
    """Returns the past of the first round."""
    return cls(jnp.float32(0), jnp.float32(0))

  def choose(self, tokens_k: jax.Array, ms_k: jax.Array) -> jax.Array:
    """Returns the index of the size that pays best, int [].

    With it the past and this round have the most tokens per millisecond.
    Without a past that is BASTION's rule.

    Args:
      tokens_k: float32 [K], expected tokens of a row, from `expected_tokens`.
      ms_k: float32 [K], cost of a round of each size.
    """
    return jnp.argmax((self.tokens + tokens_k) / (self.ms + ms_k))

  def after_round(self, tokens: jax.Array, ms: jax.Array) -> 'Past':
    """Returns the past after a round of these expected tokens and cost."""
    return Past(_DECAY * self.tokens + tokens, _DECAY * self.ms + ms)


def expected_tokens(
  path_probs_bn: jax.Array, active_b: jax.Array, sizes: Sequence[int]
) -> jax.Array:
  """Returns the expected tokens of trees of the first nodes, float32 [K].

  The token after the accepted path is counted as the root, whose path has
  probability 1. The result is the mean over active rows, bool [B].
  """
  is_first_nk = np.arange(path_probs_bn.shape[1])[:, None] < np.asarray(sizes)
  tokens_bk = path_probs_bn @ is_first_nk.astype(path_probs_bn.dtype)
  sum_k = jnp.where(active_b[:, None], tokens_bk, 0).sum(axis=0)
  return sum_k / jnp.maximum(active_b.sum(dtype=sum_k.dtype), 1)


@struct.dataclass
class AdaptiveTreeState:
  """State of an `AdaptiveTreeDrafter`.

  Attributes:
    drafter: state of the drafter of whole trees.
    past: sums over earlier rounds.
    length: int32 [B], lengths of the rows when the last round began.
  """

  drafter: Any
  past: Past
  length: jax.Array


@struct.dataclass
class AdaptiveTreeDrafter(CostAwareDrafter):
  """Drafter that adapts the size of another drafter's dynamic trees.

  Attributes:
    drafter: drafts trees of the maximum size.
    ms: float32 [K], cost of a round of each size.
    sizes: numbers of nodes to choose from, the root included, ascending.
      Static.
  """

  drafter: Drafter
  ms: jax.Array
  sizes: tuple[int, ...] = struct.field(pytree_node=False)

  @property
  def passes(self) -> tuple[int, ...]:
    return self.sizes

  @property
  def overlap(self) -> int | None:
    return self.drafter.overlap

  def init(self, tokens_bp, length_b, no_feature_b1f, capacity):
    inner = self.drafter.init(tokens_bp, length_b, no_feature_b1f, capacity)
    return AdaptiveTreeState(inner, Past.none(), jnp.zeros_like(length_b))

  def resume(self, state, tokens_bs, start_b, length_b):
    inner = self.drafter.resume(state.drafter, tokens_bs, start_b, length_b)
    return AdaptiveTreeState(inner, Past.none(), jnp.zeros_like(length_b))

  def prefill(self, state, *chunk):
    return state.replace(drafter=self.drafter.prefill(state.drafter, *chunk))

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    draft, inner = self.drafter.propose(
      state.drafter, tokens_bs, length_b, sampling, keys_b
    )
    if draft.path_probs is None:
      raise UserError(
        f'adaptive tree: {type(self.drafter).__name__} drafts no path_probs'
      )
    active_b = length_b > state.length
    tokens_k = expected_tokens(draft.path_probs, active_b, self.sizes)
    chosen = state.past.choose(tokens_k, self.ms)
    size = jnp.asarray(self.sizes, jnp.int32)[chosen]
    is_kept_n = np.arange(self.tree.size, dtype=np.int32) < size
    return draft.replace(valid=draft.valid & is_kept_n[None]), state.replace(
      drafter=inner,
      past=state.past.after_round(tokens_k[chosen], self.ms[chosen]),
      length=length_b,
    )

  def commit(self, state, *round_of_drafter):
    inner = self.drafter.commit(state.drafter, *round_of_drafter)
    return state.replace(drafter=inner)


def adaptive_tree_drafter(
  drafter: Drafter, sizes: Sequence[int], ms: Sequence[float]
) -> AdaptiveTreeDrafter:
  """Returns a drafter that chooses how many nodes to verify in every round.

  The choice changes no distribution. Whole trees are drafted, and the target
  scores their first nodes, in one of K compiled passes.

  Args:
    drafter: drafts dynamic trees of the maximum size.
    sizes: numbers of nodes to choose from, the root included, ascending.
    ms: cost of a round of each size, in milliseconds or any other unit, with
      the time to draft.

  Raises:
    UserError: the drafter has no dynamic trees, or the sizes or costs are
      invalid.
  """
  sizes = tuple(sizes)
  if not isinstance(drafter.tree, DynamicTree) or len(drafter.passes) > 1:
    raise UserError(
      f'adaptive tree: got a {type(drafter).__name__} of a static tree or one '
      'that chooses its size, expected one with a DynamicTree'
    )
  if drafter.law != 'deterministic':  # drawn tokens must not choose the size
    raise UserError(
      f'adaptive tree: got law {drafter.law!r}, expected deterministic'
    )
  are_integers = all(type(size) is int for size in sizes)
  is_ascending = are_integers and all(
    a < b for a, b in itertools.pairwise((0, *sizes))
  )
  if not (is_ascending and sizes and sizes[-1] == drafter.tree.size):
    raise UserError(
      f'sizes: got {sizes}, expected ascending integers above 0, the last '
      f'being the {drafter.tree.size} nodes of the drafter'
    )
  return AdaptiveTreeDrafter(
    drafter, check_costs(ms, len(sizes), 'sizes'), sizes
  )
