"""Order of a weight's axes in files and fingerprints: summed axes first.

Programs read weights whose summed axes are last (see `models.kernels`). Files
have summed axes first, the order in which specsamp has always written them.
"""

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from specsamp.sharding import rules

# Number of axes that go first where it is not 1. Lookups have none.
_NUM_SUMMED = {
  'o': 2,
  'embedding': 0,
  'position_embedding': 0,
  'mask_embedding': 0,
  # Tables of all experts are large, and no old file has them.
  'expert_gate': 0,
  'expert_up': 0,
  'expert_down': 0,
}


def axes(name: str, ndim: int) -> tuple[int, ...]:
  """Returns the axes of a parameter in the order of files.

  Args:
    name: last part of the parameter's name.
    ndim: number of its axes.
  """
  summed = _NUM_SUMMED.get(name, 1)
  if ndim < 2 or name.endswith('bias'):
    summed = 0
  return (*range(ndim - summed, ndim), *range(ndim - summed))


def to_files(tree: Any) -> Any:
  """Transposes a tree of named arrays to the order of files.

  Trees that hold such trees, like the state of an optimizer, work too.
  """
  return _transposed(tree, axes)


def from_files(tree: Any) -> Any:
  """Transposes a tree of named arrays back to the order of programs."""

  def inverse(name: str, ndim: int) -> tuple[int, ...]:
    order = axes(name, ndim)
    return tuple(order.index(axis) for axis in range(ndim))

  return _transposed(tree, inverse)


def shapes(tree: Any) -> Any:
  """Returns the shapes and shardings that `to_files` would give.

  Args:
    tree: named arrays or shapes, with their shardings if they have any.
  """

  def leaf_shape(path, leaf):
    order = axes(last_name(path), len(leaf.shape))
    sharding = leaf.sharding
    if isinstance(sharding, NamedSharding):
      spec = (*sharding.spec, *(None,) * (len(order) - len(sharding.spec)))
      spec = PartitionSpec(*(spec[axis] for axis in order))
      sharding = NamedSharding(sharding.mesh, spec)
    shape = tuple(leaf.shape[axis] for axis in order)
    return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=sharding)

  return jax.tree_util.tree_map_with_path(leaf_shape, tree)


def _transposed(tree: Any, order_of) -> Any:
  def transpose(path, leaf):
    order = order_of(last_name(path), leaf.ndim)
    return leaf if order == tuple(range(leaf.ndim)) else leaf.transpose(order)

  return jax.tree_util.tree_map_with_path(transpose, tree)


def last_name(path) -> str:
  """Returns the key of the dict that holds a leaf, '' if no dict holds it."""
  return rules.param_name(path)
