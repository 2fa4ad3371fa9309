"""Trees that a drafter grows level by level."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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


class Level(NamedTuple):
  """W nodes of one depth, which a drafter reads side by side.

  Those that it reads of a whole tree are numbered on their own: the root is 0.

  Attributes:
    depth: of these nodes, static.
    first: the number of the first of them, static.
    depths: I of all that are read, static.
    tokens: int [B, W].
    above: int [W], or [B, W]: the places of their parents in the level before.
    ancestors: bool [W, I], or [B, W, I]: which of all are they or above them.
  """

  depth: int
  first: int
  depths: Sequence[int]
  tokens: jax.Array
  above: Any
  ancestors: Any

  def of_parents(self, array_bwd: jax.Array) -> jax.Array:
    """What their parents had: [B, W, ..] of [B, W', ..]."""
    if self.above.ndim == 1:
      return array_bwd[:, self.above]
    trailing = (1,) * (array_bwd.ndim - 2)
    index = self.above.reshape(*self.above.shape, *trailing)
    return jnp.take_along_axis(array_bwd, index, axis=1)

  def attention(self, root_b: jax.Array, num_slots: int) -> dict[str, Any]:
    """Arguments of a pass over them; see `attention.tree_pass`."""
    return attention.tree_pass(
      root_b, self.depths, self.ancestors, self.first, num_slots
    )


Feed = Callable[[Any, Level], tuple[Any, jax.Array]]
"""(carry, level) -> carry, logits [B, W, V] after these nodes, or [B, 1, V]
where they are the same after all of them."""

_NEVER = -1e30  # log q of what is not drafted, and less than any that is


def grow(
  tree: TokenTree,
  law: Law,
  sampling: SamplingParams,
  root_b1,
  uniform_bk2,
  logits_b1v,
  feed: Feed,
  carry: Any,
  handicap_bgv=None,
  least_confidence=None,
) -> tuple[Draft, Any]:
  """Drafts a tree level by level, all nodes of a level at once.

  Args:
    tree: numbered breadth first, or a dynamic one: see `grow_dynamic`.
    law: how the candidates of a node are chosen.
    sampling: values per row.
    root_b1: int [B, 1], the root's token.
    uniform_bk2: numbers of `draw.uniforms`, one draw for each drafted node.
    logits_b1v: the drafter's, after the root.
    feed: of the nodes of a depth that have children.
    carry: what `feed` carries.
    handicap_bgv: of the races, for a coupled drafter.
    least_confidence: [], of the path so far; when those of all rows are
      below it a chain is not drafted on, and what would stand there is noise.
      What `feed` carries must then keep its shapes. None is always.

  Returns:
    The draft, and the last carry.
  """
  if isinstance(tree, DynamicTree):
    return grow_dynamic(tree, sampling, root_b1, logits_b1v, feed, carry)[:2]
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
    level_w = internal[depths_i == depth]  # those that have children
    table_wc, kept, counts_w = _children(tree, level_w)
    token_bwc, valid_bwc, q_bwv = pick(
      logits_bwv,
      uniform_bk2[:, table_wc - 1],
      sampling,
      law,
      None if handicap_bgv is None else handicap_bgv[:, depth],
      counts_w,
      is_confidence=least_confidence is not None,
    )
    tokens.append(token_bwc.reshape(batch, -1)[:, kept])
    valids.append(valid_bwc.reshape(batch, -1)[:, kept])
    probs.append(q_bwv)
    if depth + 1 < tree.depth:
      fed = np.flatnonzero(depths_i == depth + 1)  # side by side
      level = Level(
        depth=depth + 1,
        first=int(fed[0]),
        depths=depths_i,
        tokens=tokens[-1][:, internal[fed] - table_wc.min()],
        above=np.searchsorted(level_w, parents_i[fed]),
        ancestors=ancestors_ii[fed],
      )
      goes_on = None
      if may_stop:
        path_b *= jnp.take_along_axis(q_bwv, token_bwc, axis=2)[:, 0, 0]
        goes_on = (path_b >= least_confidence).any()
      carry, logits_bwv = _read(feed, carry, level, logits_bwv, goes_on)
  concatenate = lambda parts: jnp.concatenate(parts, axis=1)
  draft = draft_of(
    tree, law, root_b1, *map(concatenate, (tokens, valids, probs))
  )
  return draft, carry


def _read(feed: Feed, carry: Any, level: Level, logits_bwv, goes_on=None):
  """The carry, and the logits after each node of a level.

  Args:
    feed: of the level.
    carry: what it carries.
    level: W nodes.
    logits_bwv: of the level before.
    goes_on: bool [], whether the level is read at all; what stays is then the
      carry and these logits. None is always.
  """
  if goes_on is None:
    carry, logits_bwv = feed(carry, level)
  else:
    carry, logits_bwv = flow.cond_in_place(
      goes_on, lambda both: feed(both[0], level), (carry, logits_bwv)
    )
  shape = (*level.tokens.shape, logits_bwv.shape[-1])
  return carry, jnp.broadcast_to(logits_bwv, shape)


def _children(
  tree: TokenTree, level_w: np.ndarray
) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
  """The children of nodes of one depth, which all have some.

  Returns:
    A table [W, C] of them, in which a short row has its last one again, where
    it draws more than it needs; which entries of the flat table are children;
    and how many each node has.
  """
  children = [tree.children(node) for node in level_w]
  counts_w = tuple(map(len, children))
  width = max(counts_w)
  table_wc = np.asarray(
    [c + (c[-1],) * (width - len(c)) for c in children], np.int32
  )
  is_child_wc = np.arange(width) < np.asarray(counts_w)[:, None]
  return table_wc, np.flatnonzero(is_child_wc), counts_w


def grow_at_once(
  tree: TokenTree,
  law: Law,
  sampling: SamplingParams,
  root_b1,
  uniform_bk2,
  logits_bgv,
  *,
  is_confidence: bool = False,
) -> Draft:
  """Drafts a tree whose q depend on the depth alone.

  Nodes of a level have one q, but candidates of their own: a verifier that
  has turned down a token under one parent would know it under another.

  Args:
    tree: numbered breadth first.
    law: how the candidates of a node are chosen.
    sampling: values per row.
    root_b1: int [B, 1], the root's token.
    uniform_bk2: numbers of `draw.uniforms`, one draw for each drafted node.
    logits_bgv: the drafter's, for the tokens of each depth.
    is_confidence: see `candidates.pick`.
  """
  if tree.is_chain:
    tokens, valid, q = pick(
      logits_bgv,
      uniform_bk2[:, :, None],
      sampling,
      law,
      is_confidence=is_confidence,
    )
    return draft_of(tree, law, root_b1, tokens[:, :, 0], valid[:, :, 0], q)

  feed = lambda carry, level: (carry, logits_bgv[:, level.depth, None])
  return grow(
    tree, law, sampling, root_b1, uniform_bk2, logits_bgv[:, :1], feed, None
  )[0]


def grow_dynamic(
  tree: DynamicTree,
  sampling: SamplingParams,
  root_b1,
  logits_b1v,
  feed: Feed,
  carry: Any,
) -> tuple[Draft, Any, jax.Array]:
  """Drafts the tree of the nodes whose paths are the most probable under q.

  Of each depth the best nodes have children, as many as each may have; of all
  that were made so the best N - 1 are kept (EAGLE-2, Li et al. 2406.16858).
  No node is more probable than its parent, which so is kept with it. Where q
  depends on the depth alone and a node may have N - 1 children it is the tree
  of the most tokens expected under q (DDTree, 2604.12989).

  Args:
    tree: its bounds.
    sampling: values per row; q is the distribution after this transform, in
      rows of temperature 0 that of a low temperature.
    root_b1: int [B, 1], the root's token.
    logits_b1v: the drafter's, after the root.
    feed: of the best nodes of a depth.
    carry: what `feed` carries.

  Returns:
    The draft, the last carry, and the number, int [B, N], that each node had
    among those that were read; 0 of those that were not.
  """
  batch, count = root_b1.shape[0], tree.most_children
  sampling = greedy_at(GREEDY_TEMPERATURE, sampling.broadcast(batch))
  depths_i = np.r_[0, np.repeat(np.arange(1, tree.depth), count)]
  number_i = np.arange(len(depths_i), dtype=np.int32)
  # Of what was read last: its place among all candidates, log q of its paths,
  # and which of all that were read are above it.
  place_bw = jnp.full((batch, 1), -1, jnp.int32)
  value_bw = jnp.zeros((batch, 1), jnp.float32)
  above_bwi = jnp.broadcast_to(number_i == 0, (batch, 1, len(number_i)))
  logits_bwv, made, num_made = logits_b1v, [], 0
  for depth in range(1, tree.depth + 1):
    q_bwv = transforms.probabilities(logits_bwv, sampling)
    q_bwc, tokens_bwc = draw.largest(q_bwv, count)
    # At most 0, rounding aside, so that no node is above its parent.
    log_bwc = jnp.where(q_bwc > 0, jnp.minimum(jnp.log(q_bwc), 0), _NEVER)
    value_bwc = value_bw[:, :, None] + log_bwc
    every = lambda array, shape=value_bwc.shape: jnp.broadcast_to(
      array, shape
    ).reshape(batch, -1)
    value_bm, tokens_bm = every(value_bwc), every(tokens_bwc)
    number_bm = jnp.zeros_like(tokens_bm)
    parent_bm = every(place_bw[:, :, None])
    if depth < tree.depth:
      value_bw, best_bw = draw.largest(value_bm, count)
      first = 1 + (depth - 1) * count
      number_w = first + np.arange(count, dtype=np.int32)
      row_b1 = np.arange(batch, dtype=np.int32)[:, None]
      number_bm = number_bm.at[row_b1, best_bw].set(number_w[None])
      of_bw = best_bw // count
      above_bwi = jnp.take_along_axis(above_bwi, of_bw[:, :, None], axis=1)
      above_bwi |= (number_i == number_w[:, None])[None]
      level = Level(
        depth=depth,
        first=first,
        depths=depths_i,
        tokens=jnp.take_along_axis(tokens_bm, best_bw, axis=1),
        above=of_bw,
        ancestors=above_bwi,
      )
      carry, logits_bwv = feed(carry, level)
      place_bw = num_made + best_bw
    made.append((value_bm, tokens_bm, parent_bm, number_bm))
    num_made += value_bm.shape[1]
  candidates = (
    jnp.concatenate(part, axis=1) for part in zip(*made, strict=True)
  )
  draft, numbers_bn = _best(tree, root_b1, *candidates)
  return draft, carry, numbers_bn


def _best(
  tree: DynamicTree, root_b1, value_bm, tokens_bm, parent_bm, number_bm
):
  """The tree of the best candidates, and their numbers [B, N].

  Args:
    tree: its bounds.
    root_b1: int [B, 1].
    value_bm: float32 [B, M], of all candidates, those of lesser depth first.
    tokens_bm: int [B, M].
    parent_bm: int [B, M], the places of their parents, -1 of the root's.
    number_bm: int [B, M], see `grow_dynamic`.
  """
  value_bk, place_bk = draw.largest(value_bm, tree.size - 1)
  # Back to their order, in which parents come first.
  order_bk = jnp.argsort(place_bk, axis=1)
  place_bk = jnp.take_along_axis(place_bk, order_bk, axis=1)
  value_bk = jnp.take_along_axis(value_bk, order_bk, axis=1)
  of = lambda array_bm: jnp.take_along_axis(array_bm, place_bk, axis=1)
  is_parent_bkk = of(parent_bm)[:, :, None] == place_bk[:, None, :]
  # Of the children of the root none is.
  node_k = np.arange(1, tree.size, dtype=np.int32)
  parents_bk = jnp.where(is_parent_bkk, node_k[None, None], 0).max(axis=-1)
  draft = draft_of(
    tree, 'deterministic', root_b1, of(tokens_bm), value_bk > _NEVER / 2, None
  )
  with_root = lambda array_bk, root: jnp.pad(
    array_bk, ((0, 0), (1, 0)), constant_values=root
  )
  parents_bn = with_root(parents_bk, -1)
  return draft.replace(parents=parents_bn), with_root(of(number_bm), 0)
