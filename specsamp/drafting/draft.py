"""What a drafter hands to a verifier: a tree of tokens and its q."""

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

MOST_NODES = 2**14  # of a tree; a round of more is a mistake

Law = Literal['iid', 'without_replacement', 'top_plus_one', 'deterministic']
"""How the children of a node were chosen.

`iid`: drawn independently from the node's q. `without_replacement`: drawn in
turn from q with the earlier ones removed, in the order of the nodes.
`top_plus_one`: all but the last are the most probable of q, the last one is
drawn from q without these. `deterministic`: by any means that does not know
what the verdict will draw.
"""


def _frozen(array: np.ndarray) -> np.ndarray:
  """Makes `array` read-only: it is cached on a hashable, shared object."""
  array.flags.writeable = False
  return array


def _check_size(num_nodes: int) -> None:
  if num_nodes > MOST_NODES:
    raise ValueError(
      f'draft: got {num_nodes} nodes, expected at most {MOST_NODES}'
    )


@dataclasses.dataclass(frozen=True)
class TokenTree:
  """The shape of a draft: static and hashable, so a jit can close over it.

  Node 0 is the root, the last committed token; every other node is a drafted
  token, and its parent comes before it.

  Attributes:
    parents: the parent of each node, N of them; `parents[0] == -1`.

  Raises:
    ValueError: a first parent other than -1, a parent that does not come
      before its node, or more than `MOST_NODES`.
  """

  parents: tuple[int, ...]

  def __post_init__(self):
    _check_size(len(self.parents))
    parents = tuple(map(operator.index, self.parents))
    object.__setattr__(self, 'parents', parents)
    if not parents or parents[0] != -1:
      raise ValueError(
        f'parent of node 0 must be -1 (the root has none), got {parents[:1]}'
      )
    for node, parent in enumerate(parents[1:], start=1):
      if not 0 <= parent < node:
        raise ValueError(
          f'parent of node {node} must be in [0, {node}), got {parent}'
        )

  @classmethod
  def chain(cls, length: int) -> 'TokenTree':
    """A chain of `length` drafted tokens; 0 is the empty draft.

    Raises:
      ValueError: a negative length, or one beyond `MOST_NODES`.
    """
    if length < 0:
      raise ValueError(f'draft length must be at least 0, got {length}')
    _check_size(length + 1)
    return cls(tuple(range(-1, length)))

  @classmethod
  def branching(cls, factors: Sequence[int | Sequence[int]]) -> 'TokenTree':
    """A tree whose nodes at depth d all have `factors[d]` children.

    Nodes are numbered breadth first, so siblings are consecutive. A factor may
    also be many: one for each node of its depth, those left out being 0.

    Raises:
      ValueError: a depth without nodes, a negative factor, more of them than
        nodes, or more than `MOST_NODES`.
    """
    parents, level = [-1], [0]
    for factor in factors:
      if isinstance(factor, Sequence):
        if len(factor) > len(level):
          raise ValueError(
            f'branching {tuple(factor)} is of {len(factor)} nodes, and there '
            f'are {len(level)}'
          )
        counts = factor
      else:
        counts = [factor] * len(level)
      if min(counts, default=0) < 0 or not any(counts):
        raise ValueError(
          f'branching factors must be at least 1, got {tuple(factors)}'
        )
      start = len(parents)
      _check_size(start + sum(counts))
      parents += [
        node
        for node, count in zip(level, counts, strict=False)
        for _ in range(count)
      ]
      level = list(range(start, len(parents)))
    return cls(tuple(parents))

  def with_extra(self, extra_tree: 'ExtraTree') -> 'TokenTree':
    """This tree and K more nodes, attached to its root and to each other."""
    return TokenTree(
      self.parents
      + tuple(0 if p < 0 else self.size + p for p in extra_tree.parents)
    )

  def first(self, size: int) -> 'TokenTree':
    """The tree of the first `size` nodes."""
    return TokenTree(self.parents[:size])

  @property
  def factors(self) -> tuple[int, ...] | None:
    """The `branching` that makes this tree, or None if none does."""
    factors = []
    for depth in range(self.depth):
      counts = {
        len(self._children[node])
        for node in range(self.size)
        if self.depths[node] == depth
      }
      factors.append(counts.pop())
      if counts or not factors[-1]:
        return None
    return tuple(factors)

  @property
  def size(self) -> int:
    """N, the number of nodes, the root included."""
    return len(self.parents)

  @property
  def depth(self) -> int:
    """The deepest node's depth, the most tokens that a round can accept."""
    return max(self.depths)

  @functools.cached_property
  def depths(self) -> tuple[int, ...]:
    """The depth of each node; the root's is 0."""
    depths = [0]
    for parent in self.parents[1:]:
      depths.append(depths[parent] + 1)
    return tuple(depths)

  @functools.cached_property
  def internal(self) -> tuple[int, ...]:
    """The I nodes that have children, ascending."""
    return tuple(sorted(set(self.parents[1:])))

  @property
  def num_fed(self) -> int:
    """Nodes that a drafter reads which drafts level by level."""
    return len(self.internal)

  @functools.cached_property
  def _children(self) -> tuple[tuple[int, ...], ...]:
    children = [[] for _ in self.parents]
    for node, parent in enumerate(self.parents[1:], start=1):
      children[parent].append(node)
    return tuple(map(tuple, children))

  def children(self, node: int) -> tuple[int, ...]:
    """The children of `node`, ascending."""
    return self._children[node]

  @functools.cached_property
  def ranks(self) -> tuple[int, ...]:
    """The place of each node among its siblings, from 0; the root's is 0."""
    ranks = [0] * self.size
    for siblings in self._children:
      for rank, node in enumerate(siblings):
        ranks[node] = rank
    return tuple(ranks)

  @property
  def width(self) -> int:
    """C, the most candidates that any node has."""
    return max(map(len, self._children))

  @property
  def is_breadth_first(self) -> bool:
    """Whether nodes stand level by level, siblings side by side."""
    return list(self.parents) == sorted(self.parents)

  @property
  def is_chain(self) -> bool:
    """Whether each node but the last has the next one as its only child."""
    return self.parents == tuple(range(-1, self.size - 1))

  @functools.cached_property
  def ancestor_mask(self) -> np.ndarray:
    """bool [N, N]; [i, j] is true iff j is i or an ancestor of i."""
    mask = np.eye(self.size, dtype=bool)
    for node, parent in enumerate(self.parents[1:], start=1):
      mask[node] |= mask[parent]
    return _frozen(mask)

  @functools.cached_property
  def paths(self) -> np.ndarray:
    """int32 [N, depth + 1]; the nodes from the root to each, -1 padded."""
    paths = np.full((self.size, self.depth + 1), -1, np.int32)
    for node, depth in enumerate(self.depths):
      if node:
        paths[node] = paths[self.parents[node]]
      paths[node, depth] = node
    return _frozen(paths)


@dataclasses.dataclass(frozen=True)
class DynamicTree(TokenTree):
  """Bounds of trees whose shape each draft chooses: see `Draft.parents`.

  Its own parents are those of some tree of this size and depth, of which
  nothing else is read.

  Attributes:
    most_children: of a node, and nodes of a depth that have any.
  """

  most_children: int = 1

  @classmethod
  def of(cls, size: int, depth: int, most_children: int) -> 'DynamicTree':
    """The bounds of trees of `size` nodes, the root included.

    Args:
      size: N.
      depth: of the deepest that there may be.
      most_children: as above.

    Raises:
      ValueError: a size, depth or number below the least, more than
        `MOST_NODES`, or more nodes than such trees have.
    """
    _check_size(size)
    if size < 2 or not 1 <= depth < size or most_children < 1:
      raise ValueError(
        f'dynamic tree: got {size} nodes, depth {depth} and {most_children} '
        'children at most, expected at least 2 nodes, a depth below their '
        'number and at least 1 child'
      )
    most = 1 + most_children + (depth - 1) * most_children**2
    if size > most:
      raise ValueError(
        f'dynamic tree: got {size} nodes; of {most_children} children at most '
        f'and depth {depth} there are {most}'
      )
    last = size - depth  # the last child of the root, of which a chain hangs
    parents = (-1, *[0] * last, *range(last, size - 1))
    return cls(parents, most_children)

  @property
  def factors(self) -> None:
    return None

  @property
  def is_chain(self) -> bool:
    return False

  @property
  def width(self) -> int:
    return self.most_children

  @property
  def num_fed(self) -> int:
    return 1 + (self.depth - 1) * self.most_children


def lineage(parents_bn: jax.Array, depth: int) -> tuple[jax.Array, jax.Array]:
  """Depths, int [B, N], and `ancestor_mask`, bool [B, N, N], of many trees.

  Args:
    parents_bn: int [B, N], see `Draft.parents`.
    depth: of the deepest node at most.
  """
  nodes_n = jnp.arange(parents_bn.shape[1], dtype=jnp.int32)
  at_bn = jnp.broadcast_to(nodes_n[None], parents_bn.shape)
  mask_bnn = jnp.zeros((*parents_bn.shape, len(nodes_n)), bool)
  above_bn = jnp.maximum(parents_bn, 0)
  for step in range(depth + 1):
    mask_bnn |= at_bn[:, :, None] == nodes_n[None, None]
    if step < depth:
      at_bn = jnp.take_along_axis(above_bn, at_bn, axis=1)
  return mask_bnn.sum(axis=-1, dtype=jnp.int32) - 1, mask_bnn


class ExtraTree(NamedTuple):
  """Tokens that go through the target beside a draft; static.

  Attributes:
    parents: of each of K tokens another one before it, or -1 for the root.
    num_read: how many of them, from the last, have their logits read.
  """

  parents: tuple[int, ...] = ()
  num_read: int = 0


@struct.dataclass
class Draft:
  """A drafted tree of tokens for each row, and what it was drawn from.

  Attributes:
    tokens: int32 [B, N]; `tokens[:, 0]` is the root, already committed.
    q: float32 [B, I, V], the distribution that the children of each internal
      node were drawn from, rows in the order of `tree.internal`; None if
      deterministic.
    tree: the shape of the draft, static.
    law: how the children of a node were chosen, static.
    valid: bool [B, N]; a node that was not drafted (no n-gram match, support
      exhausted) is never accepted. Whether a node is valid may depend on its
      ancestors' tokens but not on its own or a later one: throwing away a
      token because of what was drawn is not lossless.
    extra_tokens: int32 [B, K], tokens that go through the target beside the
      draft and that no verifier sees; None for a drafter without.
    parents: int32 [B, N], of a `DynamicTree` and no other: the parent of each
      node, which comes before it, and -1 of the root. They may depend on all
      that the tokens of a deterministic draft may depend on.
  """

  tokens: jax.Array
  q: jax.Array | None
  tree: TokenTree = struct.field(pytree_node=False)
  law: Law = struct.field(pytree_node=False)
  valid: jax.Array
  extra_tokens: jax.Array | None = None
  parents: jax.Array | None = None

  def depths(self) -> jax.Array:
    """The depth of each node: int32 [B, N], or [1, N] of one for all rows."""
    if self.parents is None:
      return jnp.asarray(self.tree.depths, jnp.int32)[None]
    return lineage(self.parents, self.tree.depth)[0]

  def path_to(self, node_b: jax.Array) -> jax.Array:
    """The nodes from the root to this one, -1 padded: int32 [B, depth + 1]."""
    if self.parents is None:
      return jnp.asarray(self.tree.paths)[node_b]
    depths_bn, mask_bnn = lineage(self.parents, self.tree.depth)
    above_b1n = jnp.take_along_axis(mask_bnn, node_b[:, None, None], axis=1)
    depth_t = np.arange(self.tree.depth + 1, dtype=np.int32)
    is_it_btn = above_b1n & (depths_bn[:, None] == depth_t[None, :, None])
    node_n = np.arange(self.tree.size, dtype=np.int32)[None, None]
    return jnp.where(is_it_btn, node_n, -1).max(axis=-1)

  def first(self, size: int) -> 'Draft':
    """The draft of the first `size` nodes."""
    tree = self.tree.first(size)
    return self.replace(
      tokens=self.tokens[:, :size],
      # Of a node without children left there is no q.
      q=self.q if self.q is None else self.q[:, : len(tree.internal)],
      tree=tree,
      valid=self.valid[:, :size],
    )


class Verdict(NamedTuple):
  """What one round decided.

  Attributes:
    node: int32 [B], the last accepted node (0, the root: none accepted).
    num_accepted: int32 [B], the number of drafted tokens accepted.
    path: int32 [B, depth + 1], the nodes from the root to `node`, -1 padded.
    next_token: int32 [B], the token emitted after the accepted ones.
  """

  node: jax.Array
  num_accepted: jax.Array
  path: jax.Array
  next_token: jax.Array
