"""Sharding rules: the axes of arrays, and the mesh axis that splits each.

The split is that of Megatron (Shoeybi et al. 1909.08053). The first products of
a block are split by their outputs (heads, hidden units) and its last ones by
the same axis, which they sum over. A block thus needs one all-reduce for its
attention and one for its MLP. Embedding and LM head are split over the
vocabulary, which is never gathered. A batch is split over its rows.
"""

from typing import Any

import jax
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from specsamp.errors import UserError

DATA, MODEL = 'data', 'model'
ANY = 'any'  # for `constrain`: an axis that XLA may split or not

# Logical axis -> mesh axis. All other axes are whole on every device.
RULES = {
  'batch': DATA,
  'vocab': MODEL,
  'heads': MODEL,
  'kv_heads': MODEL,
  'mlp': MODEL,
}

# Axes that stay whole where they do not divide into the shards, at a price in
# memory. For hidden units the price is too high: that is an error. So it is for
# heads, unless they are fewer than the shards, as those of a small draft are
# (4 of Gemma 3 1B): every device then computes all of them.
_MAY_BE_WHOLE = ('batch', 'vocab', 'kv_heads')

# The logical axes of parameters, by the last part of their names. A parameter
# that is not listed is whole on every device: those of drafters are small.
PARAM_AXES = {
  # Transformer
  'embedding': ('vocab', 'width'),
  'position_embedding': ('position', 'width'),
  'head': ('vocab', 'width'),
  # Norm
  'scale': ('width',),
  'bias': ('width',),
  # Attention
  'q': ('heads', 'head_dim', 'width'),
  'q_bias': ('heads', 'head_dim'),
  'q_norm': ('head_dim',),
  'kv': ('key_or_value', 'kv_heads', 'head_dim', 'width'),
  'kv_bias': ('key_or_value', 'kv_heads', 'head_dim'),
  'k_norm': ('head_dim',),
  'o': ('width', 'heads', 'head_dim'),
  'o_bias': ('width',),
  'relative': ('heads', 'head_dim', 'width'),
  'content_bias': ('heads', 'head_dim'),
  'distance_bias': ('heads', 'head_dim'),
  # MLP
  'up': ('gate_or_up', 'mlp', 'width'),
  'up_bias': ('gate_or_up', 'mlp'),
  'down': ('width', 'mlp'),
  'down_bias': ('width',),
  # Experts
  'router': ('expert', 'width'),
  'expert_gate': ('expert', 'mlp', 'width'),
  'expert_up': ('expert', 'mlp', 'width'),
  'expert_down': ('expert', 'width', 'mlp'),
  # Drafters
  'draft_rows': ('vocab',),
  'read_tokens': ('token',),
}

# Order of a parameter's axes in a TPU's memory, slowest first, where it is not
# the array's own. From any other order XLA copies this weight, before the loop
# or in every pass.
_TPU_ORDER = {'o': (1, 0, 2), 'expert_down': (0, 2, 1)}


def spec(axes, shape, mesh) -> PartitionSpec:
  """Returns how an array is split over a mesh.

  Args:
    axes: the logical name of each axis of the array, or None.
    shape: its shape.
    mesh: has the axes 'data' and 'model'.

  Raises:
    UserError: heads or hidden units do not divide into the mesh's shards.
  """
  parts = [RULES.get(axis) for axis in axes]
  for i, (axis, size) in enumerate(zip(axes, shape, strict=True)):
    if parts[i] and size % mesh.shape[parts[i]]:
      are_few = axis == 'heads' and size < mesh.shape[parts[i]]
      if axis not in _MAY_BE_WHOLE and not are_few:
        raise UserError(
          f'{axis}: {size} do not divide into {mesh.shape[parts[i]]} shards, '
          f'the size of the mesh axis {parts[i]!r}'
        )
      parts[i] = None
  return PartitionSpec(*parts)


def sharding(mesh: Mesh):
  """Returns a function `(array, *axes)` -> `NamedSharding` on this mesh."""
  return lambda array, *axes: NamedSharding(mesh, spec(axes, array.shape, mesh))


def param_shardings(params: Any, mesh: Mesh) -> Any:
  """Returns a `NamedSharding` for each array or shape of a tree of parameters.

  The tree may contain trees of parameters, like the state of an optimizer.
  Scalars and arrays without a name are replicated.

  Raises:
    UserError: see `spec`.
  """
  sharding_of = sharding(mesh)

  def leaf_sharding(path, leaf):
    axes = PARAM_AXES.get(param_name(path)) if leaf.shape else None
    axes = axes or (None,) * len(leaf.shape)
    return sharding_of(leaf, *axes[: len(leaf.shape)])

  return jax.tree_util.tree_map_with_path(leaf_sharding, params)


def param_name(path) -> str:
  """Returns the last part of the name of a parameter, '' for other leaves.

  The values and the scale of a quantized weight have the name of the weight. A
  scale has the first of its axes.
  """
  if len(path) > 1 and getattr(path[-1], 'name', '') in ('values', 'scale'):
    path = path[:-1]
  return str(getattr(path[-1], 'key', '')) if path else ''


def param_formats(params: Any, mesh: Mesh) -> Any:
  """Returns `param_shardings`, on TPUs with the memory layout of decoding."""
  shardings = param_shardings(params, mesh)
  if mesh.devices.flat[0].platform != 'tpu':
    return shardings

  def leaf_format(path, leaf_sharding):
    order = _TPU_ORDER.get(param_name(path))
    if not order or len(order) > len(leaf_sharding.spec):  # a scale
      return leaf_sharding
    return Format(Layout(order), leaf_sharding)

  return jax.tree_util.tree_map_with_path(leaf_format, shardings)


def mesh_in_use():
  """Returns the abstract mesh of `jax.set_mesh`, None if it is a single device.

  A mesh with axes other than 'data' and 'model' is the user's and is ignored.
  """
  mesh = jax.sharding.get_abstract_mesh()
  is_ours = mesh.axis_names == (DATA, MODEL) and mesh.size > 1
  return mesh if is_ours else None


def constrain(array: jax.Array, *axes: str | None) -> jax.Array:
  """Shards an array over the mesh in use, if any, by the names of its axes."""
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
