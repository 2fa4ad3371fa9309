"""Drafts: trees of tokens that a drafter hands to a verifier, with their q."""

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.errors import UserError

MAX_NODES = 2**14  # of a tree; a larger one is taken for a mistake

Law = Literal['iid', 'without_replacement', 'top_plus_one', 'deterministic']
"""Law by which the children of a node were chosen.

`iid`: independent draws from the node's q. `without_replacement`: successive
draws from q without the earlier ones, in the order of the nodes.
`top_plus_one`: the most probable tokens of q, then one draw from q without
these. `deterministic`: any choice that is independent of the verdict's draws.
"""


def _check_size(size: int) -> None:
  if size > MAX_NODES:
    raise UserError(f'draft: got {size} nodes, expected at most {MAX_NODES}')


@dataclasses.dataclass(frozen=True)
class TokenTree:
  """Shape of a draft: static and hashable, so a jit can close over it.

  Node 0 is the root, the last committed token. Every other node is a draft
  token, and its parent comes before it.

  Attributes:
    parents: parent of each of the N nodes; `parents[0] == -1`.

  Raises:
    UserError: the first parent is not -1, a parent does not come before its
      node, or there are more than `MAX_NODES` nodes.
  """

  parents: tuple[int, ...]

  def __post_init__(self):
    _check_size(len(self.parents))
    parents = tuple(map(operator.index, self.parents))
    object.__setattr__(self, 'parents', parents)
    if not parents or parents[0] != -1:
      raise UserError(
        f'parent of node 0 must be -1 (the root has none), got {parents[:1]}'
      )
    for node, parent in enumerate(parents[1:], start=1):
      if not 0 <= parent < node:
        raise UserError(
          f'parent of node {node} must be in [0, {node}), got {parent}'
        )

  @classmethod
  def chain(cls, length: int) -> 'TokenTree':
    """Returns a chain of `length` draft tokens; 0 is the empty draft."""
    if length < 0:
      raise UserError(f'draft length must be at least 0, got {length}')
    _check_size(length + 1)
    return cls(tuple(range(-1, length)))

  @classmethod
  def branching(cls, factors: Sequence[int | Sequence[int]]) -> 'TokenTree':
    """Returns a tree whose nodes at depth d all have `factors[d]` children.

    Nodes are numbered breadth first, so siblings are consecutive. A sequence in
    place of a factor has one count per node of that depth; missing counts are
    0.

    Raises:
      UserError: a depth has no nodes, a factor is negative, a sequence has
        more counts than there are nodes, or the tree exceeds `MAX_NODES`.
    """
    parents, level = [-1], [0]
    for factor in factors:
      is_uniform = not isinstance(factor, Sequence)
      counts = [factor] * len(level) if is_uniform else factor
      if len(counts) > len(level):
        raise UserError(
          f'branching: got {len(counts)} counts {tuple(counts)} for a depth of '
          f'{len(level)} nodes'
        )
      if min(counts, default=0) < 0 or not any(counts):
        raise UserError(
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
    """Returns this tree with the K extra nodes, which hang from its root."""
    extra = (0 if p < 0 else self.size + p for p in extra_tree.parents)
    return TokenTree((*self.parents, *extra))

  def first(self, size: int) -> 'TokenTree':
    return TokenTree(self.parents[:size])

  def down_to(self, depth: int) -> 'TokenTree':
    """Returns the tree down to a depth; nodes must be numbered by depth."""
    return self.first(sum(d <= depth for d in self.depths))

  @property
  def factors(self) -> tuple[int, ...] | None:
    """Number of children at each depth; None if it varies within a depth."""
    counts = [
      {len(self.children(n)) for n in range(self.size) if self.depths[n] == d}
      for d in range(self.depth)
    ]
    if any(len(different) > 1 for different in counts):
      return None
    return tuple(count for (count,) in counts)

  @property
  def size(self) -> int:
    """N, number of nodes, the root included."""
    return len(self.parents)

  @property
  def depth(self) -> int:
    """Depth of the deepest node: upper bound on a round's accepted length."""
    return max(self.depths)

  @functools.cached_property
  def depths(self) -> tuple[int, ...]:
    """Depth of each node; the root's is 0."""
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
    """Number of nodes that a drafter reads to draft level by level."""
    return len(self.internal)

  @functools.cached_property
  def _children(self) -> tuple[tuple[int, ...], ...]:
    children = [[] for _ in self.parents]
    for node, parent in enumerate(self.parents[1:], start=1):
      children[parent].append(node)
    return tuple(map(tuple, children))

  def children(self, node: int) -> tuple[int, ...]:
    """Returns the children of `node`, ascending."""
    return self._children[node]

  @functools.cached_property
  def ranks(self) -> tuple[int, ...]:
    """Index of each node among its siblings, from 0; the root's is 0."""
    ranks = [0] * self.size
    for siblings in self._children:
      for rank, node in enumerate(siblings):
        ranks[node] = rank
    return tuple(ranks)

  @property
  def width(self) -> int:
    """C, maximum number of candidates of a node."""
    return max(map(len, self._children))

  @property
  def is_breadth_first(self) -> bool:
    """True if nodes are numbered level by level, siblings consecutively."""
    return list(self.parents) == sorted(self.parents)

  @property
  def is_chain(self) -> bool:
    """True if the only child of each node but the last is the next node."""
    return self.parents == tuple(range(-1, self.size - 1))

  @functools.cached_property
  def ancestor_mask(self) -> np.ndarray:
    """bool [N, N]; [i, j] is True if j is i or an ancestor of i."""
    mask = np.eye(self.size, dtype=bool)
    for node, parent in enumerate(self.parents[1:], start=1):
      mask[node] |= mask[parent]
    mask.flags.writeable = False  # cached on a shared object
    return mask

  @functools.cached_property
  def paths(self) -> np.ndarray:
    """int32 [N, depth + 1]; nodes from the root to each node, padded by -1."""
    paths = np.full((self.size, self.depth + 1), -1, np.int32)
    for node, depth in enumerate(self.depths):
      if node:
        paths[node] = paths[self.parents[node]]
      paths[node, depth] = node
    paths.flags.writeable = False  # cached on a shared object
    return paths


@dataclasses.dataclass(frozen=True)
class DynamicTree(TokenTree):
  """Bounds of trees whose shape each draft chooses: see `Draft.parents`.

  Its `parents` are those of some tree of this size and depth; only the size and
  the depth are read.

  Attributes:
    max_children: upper bound on the children of a node, and on the nodes of a
      depth that have children.
  """

  max_children: int = 1

  @classmethod
  def of(cls, size: int, depth: int, max_children: int) -> 'DynamicTree':
    """Returns the bounds of trees of `size` nodes and at most this depth.

    Raises:
      UserError: an argument is too small, the size exceeds `MAX_NODES`, or no
        tree within these bounds has `size` nodes.
    """
    _check_size(size)
    max_size = 1 + max_children + (depth - 1) * max_children**2
    if max_children < 1 or not 1 <= depth < size <= max_size:
      raise UserError(
        f'dynamic tree: got {size} nodes, depth {depth} and max_children '
        f'{max_children}, expected at least 1 child, a depth below the number '
        f'of nodes, and at most {max_size} nodes for these'
      )
    last = size - depth  # the last child of the root; a chain hangs from it
    parents = (-1, *[0] * last, *range(last, size - 1))
    return cls(parents, max_children)

  def first(self, size: int) -> TokenTree:
    """Returns the bounds of the first `size` nodes of such trees."""
    if size == 1:
      return TokenTree.chain(0)
    return DynamicTree.of(size, min(self.depth, size - 1), self.max_children)

  @property
  def factors(self) -> None:
    return None

  @property
  def is_chain(self) -> bool:
    return False

  @property
  def width(self) -> int:
    return self.max_children

  @property
  def num_fed(self) -> int:
    return 1 + (self.depth - 1) * self.max_children


def lineage(parents_bn: jax.Array, depth: int) -> tuple[jax.Array, jax.Array]:
  """Returns node depths, int [B, N], and ancestor masks, bool [B, N, N].

  `depth` is an upper bound on the depth of a node.
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
  """Tokens that pass through the target alongside a draft; static.

  Attributes:
    parents: for each of K tokens an earlier one, or -1 for the root.
    num_read: number of tokens, from the last, whose logits are read.
  """

  parents: tuple[int, ...] = ()
  num_read: int = 0


@struct.dataclass
class Draft:
  """A tree of draft tokens for each row, and the q they were drawn from.

  Attributes:
    tokens: int32 [B, N]; `tokens[:, 0]` is the root, already committed.
    q: float32 [B, I, V], the distribution of the children of each internal
      node, rows in the order of `tree.internal`; None if deterministic.
    tree: shape of the draft, static.
    law: how the children of a node were chosen, static.
    valid: bool [B, N]. A node that was not drafted (no n-gram match, support
      exhausted) is never accepted. Validity may depend on the tokens of a
      node's ancestors, never on the node's token or a later one: dropping a
      token because of its value is not lossless.
    extra_tokens: int32 [B, K], tokens of the drafter's `extra_tree`, which no
      verifier sees; None if there are none.
    parents: int32 [B, N], set for a `DynamicTree` only: the parent of each
      node, which comes before it; -1 for the root. They may depend on all that
      the tokens of a deterministic draft may depend on.
    path_probs: float32 [B, N], set for a `DynamicTree` only: the probability
      under q of the path to each node, 1 for the root. No verifier reads them.
  """

  tokens: jax.Array
  q: jax.Array | None
  tree: TokenTree = struct.field(pytree_node=False)
  law: Law = struct.field(pytree_node=False)
  valid: jax.Array
  extra_tokens: jax.Array | None = None
  parents: jax.Array | None = None
  path_probs: jax.Array | None = None

  def depths(self) -> jax.Array:
    """Returns the depth of each node: int32 [B, N], [1, N] if rows agree."""
    if self.parents is None:
      return jnp.asarray(self.tree.depths, jnp.int32)[None]
    return lineage(self.parents, self.tree.depth)[0]

  def path_to(self, node_b: jax.Array) -> jax.Array:
    """Returns the nodes from the root to each row's node.

    The result is int32 [B, depth + 1], padded by -1.
    """
    if self.parents is None:
      return jnp.asarray(self.tree.paths)[node_b]
    depths_bn, mask_bnn = lineage(self.parents, self.tree.depth)
    above_b1n = jnp.take_along_axis(mask_bnn, node_b[:, None, None], axis=1)
    depth_t = np.arange(self.tree.depth + 1, dtype=np.int32)
    on_path_btn = above_b1n & (depths_bn[:, None] == depth_t[None, :, None])
    node_n = np.arange(self.tree.size, dtype=np.int32)[None, None]
    return jnp.where(on_path_btn, node_n, -1).max(axis=-1)

  def first(self, size: int) -> 'Draft':
    """Returns the draft of the first `size` nodes."""
    tree = self.tree.first(size)
    # The root alone is a static tree.
    cut = lambda array: array if array is None else array[:, :size]
    cut_dynamic = cut if isinstance(tree, DynamicTree) else lambda _: None
    return self.replace(
      tokens=self.tokens[:, :size],
      # A node that loses all its children has no q.
      q=self.q if self.q is None else self.q[:, : len(tree.internal)],
      tree=tree,
      valid=self.valid[:, :size],
      parents=cut_dynamic(self.parents),
      path_probs=cut_dynamic(self.path_probs),
    )


class Verdict(NamedTuple):
  """Outcome of verifying one draft.

  Attributes:
    node: int32 [B], the last accepted node; 0, the root, if none is accepted.
    num_accepted: int32 [B], accepted length.
    path: int32 [B, depth + 1], nodes from the root to `node`, padded by -1.
    next_token: int32 [B], token emitted after the accepted ones.
  """

  node: jax.Array
  num_accepted: jax.Array
  path: jax.Array
  next_token: jax.Array
