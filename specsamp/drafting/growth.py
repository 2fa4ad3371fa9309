"""Growth of draft trees, level by level, from a drafter's logits."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.candidates import (
  GREEDY_TEMPERATURE,
  draft_of,
  greedy_at,
  pick,
)
from specsamp.drafting.draft import Draft, DynamicTree, Law, TokenTree
from specsamp.models import attention
from specsamp.sampling import draw, transforms
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import flow


@dataclasses.dataclass(frozen=True)
class Level:
  """W nodes of one depth that a drafter reads together.

  A drafter reads I nodes of a tree, numbered from 0, the root.

  Attributes:
    depth: depth of the W nodes, static.
    first: number of the first of the W nodes, static.
    depths: depths of all I nodes, static.
    tokens: int [B, W], tokens of the W nodes.
    above: int [W] or [B, W], index of each node's parent in the level above.
    ancestors: bool [W, I] or [B, W, I], True for the node itself and for its
      ancestors.
  """

  depth: int
  first: int
  depths: Sequence[int]
  tokens: jax.Array
  above: Any
  ancestors: Any

  def of_parents(self, array_bwd: jax.Array) -> jax.Array:
    """Returns the parents' entries, [B, W, ..], of an array [B, W', ..]."""
    if self.above.ndim == 1:
      return array_bwd[:, self.above]
    trailing = (1,) * (array_bwd.ndim - 2)
    index = self.above.reshape(*self.above.shape, *trailing)
    return jnp.take_along_axis(array_bwd, index, axis=1)

  def attention(self, root_b: jax.Array, num_slots: int) -> dict[str, Any]:
    """Returns arguments of a pass over the nodes; see `attention.tree_pass`."""
    return attention.tree_pass(
      root_b, self.depths, self.ancestors, self.first, num_slots
    )


Feed = Callable[[Any, Level], tuple[Any, jax.Array]]
"""(carry, level) -> carry, logits [B, W, V] after these nodes, or [B, 1, V] if
the logits are the same after all of them."""

_NOT_DRAFTED = -1e30  # log q, smaller than that of any draft token


def grow(
  tree: TokenTree,
  law: Law,
  sampling: SamplingParams,
  root_b1,
  numbers,
  logits_b1v,
  feed: Feed,
  carry: Any,
  least_confidence=None,
) -> tuple[Draft, Any]:
  """Drafts a tree level by level, all nodes of a level at once.

  Args:
    tree: tree of the draft, numbered breadth first or dynamic.
    law: how the candidates of a node are chosen.
    sampling: values per row.
    root_b1: int [B, 1], the root's token.
    numbers: result of `candidates.random_numbers`.
    logits_b1v: the drafter's logits after the root.
    feed: reads the nodes of a depth that have children.
    carry: first carry of `feed`.
    least_confidence: [], a chain ends early once the path probability of every
      row is below this. The nodes after the end are noise, and `feed` must keep
      the shapes of its carry. None never ends early.

  Returns:
    The draft, and the last carry.
  """
  if isinstance(tree, DynamicTree):
    return grow_dynamic(tree, sampling, root_b1, logits_b1v, feed, carry)[:2]
  uniform_bk2, handicap_bgv = numbers
  batch = root_b1.shape[0]
  internal = np.asarray(tree.internal)
  parents_i = np.asarray(tree.parents)[internal]
  ancestors_ii = tree.ancestor_mask[np.ix_(internal, internal)]
  depths_i = np.asarray(tree.depths)[internal]
  logits_bwv = logits_b1v
  may_stop = tree.is_chain and least_confidence is not None
  path_b = jnp.ones(batch, jnp.float32)
  tokens, valids, probs = [], [], []
  for depth in range(tree.depth):
    level_w = internal[depths_i == depth]
    children = [tree.children(node) for node in level_w]
    counts_w = tuple(map(len, children))
    width = max(counts_w)
    # Short rows repeat their last child.
    table_wc = np.asarray(
      [c + c[-1:] * (width - len(c)) for c in children], np.int32
    )
    is_child = (np.arange(width) < np.c_[list(counts_w)]).ravel()
    token_bwc, valid_bwc, q_bwv = pick(
      logits_bwv,
      uniform_bk2[:, table_wc - 1],
      sampling,
      law,
      None if handicap_bgv is None else handicap_bgv[:, depth, None],
      counts_w,
      is_confidence=least_confidence is not None,
    )
    tokens.append(token_bwc.reshape(batch, -1)[:, is_child])
    valids.append(valid_bwc.reshape(batch, -1)[:, is_child])
    probs.append(q_bwv)
    if depth + 1 < tree.depth:
      fed = np.flatnonzero(depths_i == depth + 1)  # consecutive
      level = Level(
        depth=depth + 1,
        first=int(fed[0]),
        depths=depths_i,
        tokens=tokens[-1][:, internal[fed] - table_wc.min()],
        above=np.searchsorted(level_w, parents_i[fed]),
        ancestors=ancestors_ii[fed],
      )
      if may_stop:
        path_b *= jnp.take_along_axis(q_bwv, token_bwc, axis=2)[:, 0, 0]
        carry, logits_bwv = flow.cond_in_place(
          (path_b >= least_confidence).any(),
          lambda both, level=level: feed(both[0], level),
          (carry, logits_bwv),
        )
      else:
        carry, logits_bwv = feed(carry, level)
      shape = (*level.tokens.shape, logits_bwv.shape[-1])
      logits_bwv = jnp.broadcast_to(logits_bwv, shape)
  arrays = [jnp.concatenate(parts, axis=1) for parts in (tokens, valids, probs)]
  return draft_of(tree, law, root_b1, *arrays), carry


def grow_dynamic(
  tree: DynamicTree,
  sampling: SamplingParams,
  root_b1,
  logits_b1v,
  feed: Feed,
  carry: Any,
) -> tuple[Draft, Any, jax.Array]:
  """Drafts the tree of the nodes whose paths are the most probable under q.

  At each depth the best nodes have children; of all children of all depths the
  best N - 1 are kept (EAGLE-2, Li et al. 2406.16858), the most probable first.
  No node is more probable than its parent, which therefore comes before it. So
  the first n nodes are the tree of n nodes. If q depends on the depth alone
  and a node may have N - 1 children, this tree has the most expected tokens
  under q (DDTree, 2604.12989).

  Rows of temperature 0 take q of `GREEDY_TEMPERATURE`. See `grow` for the
  arguments; `feed` reads the best nodes of a depth.

  Returns:
    The draft; the last carry; and each node's number among the nodes that were
    read, int [B, N], 0 for nodes that were not.
  """
  batch, count = root_b1.shape[0], tree.max_children
  sampling = greedy_at(GREEDY_TEMPERATURE, sampling.broadcast(batch))
  depths_i = np.r_[0, np.repeat(np.arange(1, tree.depth), count)]
  number_i = np.arange(len(depths_i), dtype=np.int32)
  # The level read last: index among all M candidates, -1 for the root, log q of
  # the path, and ancestors among all nodes that are read.
  place_bw = jnp.full((batch, 1), -1, jnp.int32)
  value_bw = jnp.zeros((batch, 1), jnp.float32)
  above_bwi = jnp.broadcast_to(number_i == 0, (batch, 1, len(number_i)))
  logits_bwv, levels, num_candidates = logits_b1v, [], 0
  for depth in range(1, tree.depth + 1):
    q_bwv = transforms.probabilities(logits_bwv, sampling)
    q_bwc, tokens_bwc = draw.largest(q_bwv, count)
    # At most 0, rounding aside, so that no node is above its parent.
    log_bwc = jnp.where(q_bwc > 0, jnp.minimum(jnp.log(q_bwc), 0), _NOT_DRAFTED)
    value_bwc = value_bw[:, :, None] + log_bwc

    def flatten(array, shape=value_bwc.shape):
      return jnp.broadcast_to(array, shape).reshape(batch, -1)

    value_bm, tokens_bm = flatten(value_bwc), flatten(tokens_bwc)
    number_bm = jnp.zeros_like(tokens_bm)
    parent_bm = flatten(place_bw[:, :, None])
    if depth < tree.depth:
      value_bw, best_bw = draw.largest(value_bm, count)
      first = 1 + (depth - 1) * count
      number_w = first + np.arange(count, dtype=np.int32)
      row_b1 = np.arange(batch, dtype=np.int32)[:, None]
      number_bm = number_bm.at[row_b1, best_bw].set(number_w[None])
      parent_bw = best_bw // count
      above_bwi = jnp.take_along_axis(above_bwi, parent_bw[:, :, None], axis=1)
      above_bwi |= (number_i == number_w[:, None])[None]
      level = Level(
        depth=depth,
        first=first,
        depths=depths_i,
        tokens=jnp.take_along_axis(tokens_bm, best_bw, axis=1),
        above=parent_bw,
        ancestors=above_bwi,
      )
      carry, logits_bwv = feed(carry, level)
      place_bw = num_candidates + best_bw
    levels.append((value_bm, tokens_bm, parent_bm, number_bm))
    num_candidates += value_bm.shape[1]
  value_bm, tokens_bm, parent_bm, number_bm = (
    jnp.concatenate(arrays, axis=1) for arrays in zip(*levels, strict=True)
  )
  # The most probable first. A parent comes before a child that is as probable,
  # because its level is first among the candidates.
  value_bk, place_bk = draw.largest(value_bm, tree.size - 1)
  gather = lambda array_bm: jnp.take_along_axis(array_bm, place_bk, axis=1)
  # All False for a child of the root, whose parent is then node 0.
  is_parent_bkk = gather(parent_bm)[:, :, None] == place_bk[:, None, :]
  node_k = np.arange(1, tree.size, dtype=np.int32)
  parents_bk = jnp.where(is_parent_bkk, node_k[None, None], 0).max(axis=-1)
  tokens_bk, valid_bk = gather(tokens_bm), value_bk > _NOT_DRAFTED / 2
  draft = draft_of(tree, 'deterministic', root_b1, tokens_bk, valid_bk, None)

  after_root = (0, 0), (1, 0)
  draft = draft.replace(
    parents=jnp.pad(parents_bk, after_root, constant_values=-1),
    path_probs=jnp.pad(jnp.exp(value_bk), after_root, constant_values=1),
  )
  return draft, carry, jnp.pad(gather(number_bm), after_root)
