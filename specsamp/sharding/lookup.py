"""Entries of a split axis: each shard looks up what it has, one sum joins them.

Left to XLA, a lookup of one index becomes a slice along the split axis, and a
slice along a split axis gathers the whole array on every chip: of Llama 3.1's
vocabulary a gigabyte for each drafted token. Here it is a masked lookup in each
shard and one all-reduce of what was asked for, whatever the platform and the
number of indices (Shoeybi et al. 1909.08053, section 3).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from specsamp.sharding import rules


def rows(table_vd: jax.Array, index: jax.Array) -> jax.Array:
  """Rows of a table [V, D] that is split by 'vocab'.

  Args:
    table_vd: such as an embedding.
    index: int [B, ...], from 0 to below V.

  Returns:
    [B, ..., D].
  """
  batch = ('batch', *(None,) * (index.ndim - 1))
  return _lookup(
    lambda table, index: jnp.take(table, index, axis=0, mode='clip'),
    table_vd,
    ('vocab', 'width'),
    index,
    batch,
    (*batch, 'width'),
  )


def along(values: jax.Array, index: jax.Array, axis: int) -> jax.Array:
  """`jnp.take_along_axis` of values whose axis is split like a vocabulary.

  Args:
    values: [B, ..., V, ...].
    index: int, of as many axes; those but `axis` are of the same size or 1.
    axis: that of V; from 0 to below it count the indices.
  """
  names = lambda at: tuple(
    'batch' if i == 0 else at if i == axis else None for i in range(values.ndim)
  )
  return _lookup(
    lambda values, index: jnp.take_along_axis(
      values, index, axis=axis, mode='clip'
    ),
    values,
    names('vocab'),
    index,
    names(None),
    names(None),
  )


def _lookup(
  take: Callable, array, array_axes, index, index_axes, result_axes
) -> jax.Array:
  """take(array, index), each shard of the axis 'vocab' its own part of it."""
  mesh = rules.mesh_in_use()
  split = mesh and rules.spec(array_axes, array.shape, mesh)
  if not split or rules.MODEL not in split:
    return take(array, index)
  shape = jax.eval_shape(take, array, index).shape

  def part(array, index):
    size = array.shape[split.index(rules.MODEL)]
    here = index - jax.lax.axis_index(rules.MODEL).astype(index.dtype) * size
    inside = (here >= 0) & (here < size)
    found = take(array, jnp.clip(here, 0, size - 1))
    inside = inside.reshape(inside.shape + (1,) * (found.ndim - inside.ndim))
    return jax.lax.psum(jnp.where(inside, found, 0), rules.MODEL)

  return jax.shard_map(
    part,
    in_specs=(split, rules.spec(index_axes, index.shape, mesh)),
    out_specs=rules.spec(result_axes, shape, mesh),
  )(array, index)
