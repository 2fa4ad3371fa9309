"""Operations along the static relations of a token tree.

The relatives of all nodes are tables of node numbers, padded with N. A rule for
trees gathers, multiplies and adds along these tables, whatever the tree is.
"""

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import TokenTree


def _table(tree: TokenTree, relatives: Sequence[Sequence[int]]) -> np.ndarray:
  """Returns the relatives of each node, padded with N, int32."""
  table = np.full((tree.size, max(map(len, relatives))), tree.size, np.int32)
  for node, numbers in enumerate(relatives):
    table[node, : len(numbers)] = numbers
  return table


def children(tree: TokenTree) -> np.ndarray:
  """Returns the children of each node as they were drawn, int32 [N, C]."""
  return _table(tree, [tree.children(node) for node in range(tree.size)])


def _families(tree: TokenTree) -> Iterator[tuple[tuple[int, ...], int]]:
  """Yields the siblings of each node, itself included, and its rank."""
  families = [(), *(tree.children(parent) for parent in tree.parents[1:])]
  return zip(families, tree.ranks, strict=True)


def elders(tree: TokenTree, last_first: bool = False) -> np.ndarray:
  """Returns the siblings before each node, int32 [N, C - 1].

  Siblings are in the order in which they were drawn. If `last_first`, the last
  one comes before the others.
  """
  if not last_first:
    return _table(tree, [family[:rank] for family, rank in _families(tree)])
  is_last = lambda family, rank: rank == len(family) - 1
  return _table(
    tree,
    [
      () if is_last(family, rank) else (*family[-1:], *family[:rank])
      for family, rank in _families(tree)
    ],
  )


def not_elders(tree: TokenTree) -> np.ndarray:
  """Returns each drafted node and the siblings drawn after it, int32 [N, C]."""
  return _table(tree, [family[rank:] for family, rank in _families(tree)])


def crowded(tree: TokenTree) -> list[int]:
  """Returns the nodes that have more than one child, ascending."""
  return [node for node in tree.internal if len(tree.children(node)) > 1]


def q_rows(tree: TokenTree) -> np.ndarray:
  """Returns each node's row in a draft's q, int32 [N]; I for leaves."""
  row_n = np.full(tree.size, len(tree.internal), np.int32)
  row_n[list(tree.internal)] = np.arange(len(tree.internal))
  return row_n


def take(values: jax.Array, nodes: Sequence[int] | np.ndarray) -> jax.Array:
  """Returns the entries along axis 1 at static indices, which are in range."""
  return jnp.take(values, np.asarray(nodes, np.int32), axis=1, mode='clip')


def at(values_bn: jax.Array, table: np.ndarray, fill) -> jax.Array:
  """Returns the values at a table's nodes, [B, ..] for a table of shape [..].

  Entries N of the table get `fill`.
  """
  padded = jnp.pad(values_bn, ((0, 0), (0, 1)), constant_values=fill)
  return take(padded, table)


def of_parent(
  tree: TokenTree, values_bk: jax.Array, parents: Sequence[int], fill
) -> jax.Array:
  """Returns the value of each node's parent, [B, N].

  `values_bk` are the values of K parents; a node with another parent, or
  without one, gets `fill`.
  """
  place = {node: k for k, node in enumerate(parents)}
  place_n = [place.get(parent, len(parents)) for parent in tree.parents]
  return at(values_bk, place_n, fill)


def reach(tree: TokenTree, descend_bn: jax.Array) -> jax.Array:
  """Returns the probability to reach each node from the root, [B, N].

  `descend_bn` is the probability to descend to a node from its parent.
  """
  steps = np.where(tree.paths > 0, tree.paths, tree.size)
  return at(descend_bn, steps, 1).prod(axis=-1)


def stop_in_turn(
  tree: TokenTree, accept_bn: jax.Array, last_first: bool = False
) -> jax.Array:
  """Returns the probability to stop at each node, [B, N].

  A row descends to the first accepted child of a node, and stops at a node
  without one. `accept_bn` is the probability to accept a node that is tried.
  Children are tried ascending; if `last_first`, the last one is tried first.
  """
  reject_bn = 1 - accept_bn
  descend_bn = accept_bn * at(reject_bn, elders(tree, last_first), 1).prod(
    axis=-1
  )
  # A product, not 1 - sum(descend): it cannot be below 0.
  end_bn = at(reject_bn, children(tree), 1).prod(axis=-1)
  return reach(tree, descend_bn) * end_bn
