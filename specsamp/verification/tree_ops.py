"""Trees of candidates: who is related to whom, and the walk from the root.

A node's relatives are static tables of node numbers, padded with N: a rule for
trees gathers, multiplies and adds along them, whatever the tree's shape.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import TokenTree


def _table(tree: TokenTree, relatives: Sequence[Sequence[int]]) -> np.ndarray:
  """int32 [N, longest]: `relatives` of each node, padded with N, read-only."""
  longest = max(map(len, relatives))
  table = np.full((tree.size, longest), tree.size, np.int32)
  for node, numbers in enumerate(relatives):
    table[node, : len(numbers)] = numbers
  table.flags.writeable = False
  return table


@functools.cache
def children(tree: TokenTree) -> np.ndarray:
  """int32 [N, C]: the children of each node, in the order they were drawn."""
  return _table(tree, [tree.children(node) for node in range(tree.size)])


def _siblings(tree: TokenTree) -> list[tuple[int, ...]]:
  """The siblings of each drafted node, itself included."""
  return [tree.children(parent) for parent in tree.parents[1:]]


@functools.cache
def elders(tree: TokenTree) -> np.ndarray:
  """int32 [N, C - 1]: the siblings that were drawn before each node."""
  families = enumerate(_siblings(tree), start=1)
  return _table(
    tree, [(), *([s for s in family if s < n] for n, family in families)]
  )


@functools.cache
def not_elders(tree: TokenTree) -> np.ndarray:
  """int32 [N, C]: each drafted node and the siblings drawn after it."""
  families = enumerate(_siblings(tree), start=1)
  return _table(
    tree, [(), *([s for s in family if s >= n] for n, family in families)]
  )


def crowded(tree: TokenTree) -> list[int]:
  """The K nodes that have more than one child, ascending."""
  return [node for node in tree.internal if len(tree.children(node)) > 1]


@functools.cache
def steps(tree: TokenTree) -> np.ndarray:
  """int32 [N, depth + 1]: each node and its ancestors, but not the root."""
  return np.where(tree.paths > 0, tree.paths, tree.size)


def internal_rows(tree: TokenTree, nodes: Sequence[int]) -> list[int]:
  """The rows of a draft's q [B, I, V] that belong to `nodes`."""
  row = {node: i for i, node in enumerate(tree.internal)}
  return [row[node] for node in nodes]


def take(values: jax.Array, nodes: Sequence[int] | np.ndarray) -> jax.Array:
  """The entries along axis 1 at static places, of which none is outside."""
  return jnp.take(values, np.asarray(nodes, np.int32), axis=1, mode='clip')


def at(values_bn: jax.Array, table: np.ndarray, fill) -> jax.Array:
  """The values at the nodes of a table, `[B, *table.shape]`; `fill` at N."""
  padded = jnp.pad(values_bn, ((0, 0), (0, 1)), constant_values=fill)
  return take(padded, table)


def of_parent(
  tree: TokenTree, values_bk: jax.Array, parents: Sequence[int], fill
) -> jax.Array:
  """[B, N]: the value that each node's parent has; `fill` where it has none.

  Args:
    tree: the tree.
    values_bk: [B, K], the values of `parents`.
    parents: K nodes.
    fill: the value of other nodes, and of the parent of the root.
  """
  place = {node: k for k, node in enumerate(parents)}
  place_n = [place.get(parent, len(parents)) for parent in tree.parents]
  padded = jnp.pad(values_bk, ((0, 0), (0, 1)), constant_values=fill)
  return take(padded, place_n)


def reach(tree: TokenTree, descend_bn: jax.Array) -> jax.Array:
  """The chance [B, N] to get to each node.

  Args:
    tree: the tree.
    descend_bn: float [B, N], the chance to go on from a node's parent to the
      node; the root's is not read.
  """
  return at(descend_bn, steps(tree), 1).prod(axis=-1)


def stop_in_turn(tree: TokenTree, accept_bn: jax.Array) -> jax.Array:
  """The chance [B, N] to stop at each node, when siblings are tried in turn.

  From a node the row goes on to the first of its children that is accepted;
  it stops where none is.

  Args:
    tree: the tree.
    accept_bn: float [B, N], the chance to accept a node that is tried; the
      root's is not read.
  """
  reject_bn = 1 - accept_bn
  descend_bn = accept_bn * at(reject_bn, elders(tree), 1).prod(axis=-1)
  # A product, not 1 - sum(descend): it cannot come out below 0.
  end_bn = at(reject_bn, children(tree), 1).prod(axis=-1)
  return reach(tree, descend_bn) * end_bn
