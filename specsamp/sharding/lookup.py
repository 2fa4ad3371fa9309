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
from jax.sharding import PartitionSpec

from specsamp.sharding import rules


def rows(table_vd: jax.Array, index: jax.Array) -> jax.Array:
  """Rows of a table [V, D] that is split by 'vocab'.

  Args:
    table_vd: such as an embedding.
    index: int [B, ...], from 0 to below V.

  Returns:
    [B, ..., D]; NaN of an index beyond, so that a wrong one shows.
  """
  take = lambda table, index: jnp.take(table, index, axis=0)
  mesh = rules.mesh_in_use()
  batch = None
  if mesh and mesh.shape[rules.DATA] > 1:
    batch = rules.spec(('batch',), index.shape[:1], mesh)
  return _lookup(take, table_vd, index, 0, batch)


def along(values: jax.Array, index: jax.Array, axis: int) -> jax.Array:
  """`jnp.take_along_axis` of values whose axis is split like a vocabulary.

  Args:
    values: [..., V, ...].
    index: int, of as many axes; those but `axis` are of the same size or 1.
    axis: that of V; from 0 to below it count the indices.
  """
  take = lambda values, index: jnp.take_along_axis(values, index, axis=axis)
  return _lookup(take, values, index, axis)


def _lookup(
  take: Callable, array, index, axis: int, rows: PartitionSpec | None = None
) -> jax.Array:
  """take(array, index), each shard of the axis 'vocab' its own part of it.

  Args:
    take: what looks up.
    array: its `axis` is split.
    index: counts along it.
    axis: of `array`.
    rows: how index and result are split by rows. Not left to XLA, which would
      gather all rows for the gradient of a table. If it is None that is, for
      the rows may be those of a batch or not.
  """
  mesh = rules.mesh_in_use()
  shards = mesh.shape[rules.MODEL] if mesh else 1
  if shards == 1 or array.shape[axis] % shards:
    return take(array, index)
  size = array.shape[axis] // shards

  def part(array, index, start_1):
    index = index.astype(jnp.int32)
    here = index - start_1.reshape((1,) * index.ndim)
    inside = (here >= 0) & (here < size)
    found = take(array, jnp.clip(here, 0, size - 1))
    align = lambda mask: mask.reshape(
      mask.shape + (1,) * (found.ndim - mask.ndim)
    )
    found = jax.lax.psum(jnp.where(align(inside), found, 0), rules.MODEL)
    known = (index >= 0) & (index < size * shards)
    return jnp.where(align(known), found, jnp.nan)

  split = PartitionSpec(*(None,) * axis, rules.MODEL)
  return jax.shard_map(
    part,
    in_specs=(split, rows or PartitionSpec(), PartitionSpec(rules.MODEL)),
    out_specs=rows or PartitionSpec(),
    axis_names={rules.MODEL} if rows is None else {rules.DATA, rules.MODEL},
  )(array, index, jnp.arange(shards, dtype=jnp.int32) * size)
