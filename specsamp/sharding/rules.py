"""Which axis of an array is split over which axis of the mesh.

Megatron's way (Shoeybi et al. 1909.08053): a block's first matmuls are split
by their columns (heads, hidden units), its last ones by the same as rows, so
that a block needs one sum over the chips for its attention and one for its MLP.
The embedding and the LM head are split over the vocabulary, which nothing ever
gathers; the rows of a batch over `data`.
"""

from typing import Any

import jax
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from specsamp.errors import UserError

DATA, MODEL = 'data', 'model'
ANY = 'any'  # of `constrain`: an axis that XLA may split or not

# Logical axis -> mesh axis; what is not here is not split.
RULES = {
  'batch': DATA,
  'vocab': MODEL,
  'heads': MODEL,
  'kv_heads': MODEL,
  'mlp': MODEL,
}

# Whole on every device if they do not divide into shards: right, at the price
# of memory. The others would then not be split at all, which nobody wants.
_MAY_BE_WHOLE = ('batch', 'vocab', 'kv_heads')

# The parameters' axes, by the last part of their names: see `declare`.
PARAMS: dict[str, tuple[str, ...]] = {}

# Axes in a TPU's memory, the slowest first, where they are not in the array's
# own order. From any other order XLA makes a copy of this weight, before the
# loop or in every pass.
_TPU_ORDER = {'o': (1, 0, 2)}


def declare(**axes: tuple[str, ...]) -> None:
  """Names the axes of parameters; stands beside the module that has them.

  Args:
    **axes: the names of a parameter's axes, by the parameter's name.

  Raises:
    ValueError: another module has parameters of this name with other axes.
  """
  for name, own in axes.items():
    if PARAMS.setdefault(name, own) != own:
      raise ValueError(f'{name}: got axes {own}, it has {PARAMS[name]}')


def spec(axes, shape, mesh) -> PartitionSpec:
  """How an array lies on a mesh.

  Args:
    axes: the logical name of each axis of the array, None for none.
    shape: its shape.
    mesh: has the axes 'data' and 'model'.

  Raises:
    ValueError: as many names as axes are expected, and no two of them on the
      same axis of the mesh.
    UserError: heads or hidden units do not divide into the mesh's shards.
  """
  if len(axes) != len(shape):
    raise ValueError(f'got axes {axes} for shape {shape}')
  parts = [RULES.get(axis) for axis in axes]
  split = [part for part in parts if part]
  if len(set(split)) < len(split):
    raise ValueError(
      f'axes {axes}: two of them are split over the same {split}'
    )
  for i, (axis, size) in enumerate(zip(axes, shape, strict=True)):
    if parts[i] and size % mesh.shape[parts[i]]:
      if axis not in _MAY_BE_WHOLE:
        raise UserError(
          f'{axis}: {size} do not divide into {mesh.shape[parts[i]]} shards, '
          f'the size of the mesh axis {parts[i]!r}'
        )
      parts[i] = None
  return PartitionSpec(*parts)


def param_shardings(params: Any, mesh: Mesh) -> Any:
  """A `NamedSharding` for each parameter of a tree of named arrays.

  Trees that hold such trees, as the state of an optimizer does, will do; what
  has no name or no axes, a count of steps for one, is whole on every device.

  Args:
    params: arrays or shapes.
    mesh: where they shall lie.

  Raises:
    KeyError: a parameter that was not declared.
    UserError: see `spec`.
  """

  put = sharding(mesh)

  def of(path, leaf):
    named = leaf.shape and isinstance(path[-1], jax.tree_util.DictKey)
    axes = PARAMS[path[-1].key] if named else (None,) * len(leaf.shape)
    return put(leaf, *axes)

  return jax.tree_util.tree_map_with_path(of, params)


def param_formats(params: Any, mesh: Mesh) -> Any:
  """As `param_shardings`, with the order in memory that decoding reads.

  Args:
    params: arrays or shapes.
    mesh: where they shall lie. Other devices than TPUs are given no order.
  """
  shardings = param_shardings(params, mesh)
  if mesh.devices.flat[0].platform != 'tpu':
    return shardings

  def of(path, where):
    order = _TPU_ORDER.get(path[-1].key)
    return Format(Layout(order), where) if order else where

  return jax.tree_util.tree_map_with_path(of, shardings)


def sharding(mesh: Mesh):
  """A function `(array, *axes)` -> `NamedSharding` on this mesh."""
  return lambda array, *axes: NamedSharding(mesh, spec(axes, array.shape, mesh))


def mesh_in_use():
  """The abstract mesh of `jax.set_mesh`; None for none, or for one device.

  A mesh of other axes is the user's own and none of ours.
  """
  mesh = jax.sharding.get_abstract_mesh()
  ours = mesh.axis_names == (DATA, MODEL) and mesh.size > 1
  return mesh if ours else None


def constrain(array: jax.Array, *axes: str | None) -> jax.Array:
  """The array, sharded over the mesh in use by its axes' names.

  Without a mesh it is the array.
  """
  mesh = mesh_in_use()
  if mesh is None:
    return array
  parts = zip(axes, spec(axes, array.shape, mesh), strict=True)
  return jax.lax.with_sharding_constraint(
    array,
    PartitionSpec(
      *(PartitionSpec.UNCONSTRAINED if a == ANY else p for a, p in parts)
    ),
  )
