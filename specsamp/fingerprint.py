"""Fingerprints: a few hex digits that distinguish sets of weights."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp

from specsamp import file_order
from specsamp.models import quantized
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules


def of(params: Any, num_tokens: int | None = None, stored: Any = None) -> str:
  """Returns a hash of one row of every array, in bfloat16.

  Integers that are not quantized weights enter the hash whole. The same weights
  have the same fingerprint on any mesh, and in float32 or bfloat16; float16
  rounds small weights. All processes of a mesh must call this.

  Args:
    params: arrays in nested dicts or other trees.
    num_tokens: tokens of a model, whose vocabulary may have more rows on one
      mesh than on another.
    stored: result of `rows` before the parameters were cast; by default that of
      `params`.
  """
  leaves = jax.tree_util.tree_leaves_with_path(params)
  if stored is None:
    stored = rows(params)
  digest = hashlib.sha256(quantized.kind_of(params).encode())
  for (path, leaf), row in zip(leaves, jax.tree.leaves(stored), strict=True):
    shape, row = leaf.shape, meshes.fetch(row)
    name = file_order.last_name(path)
    if num_tokens is not None:
      shape = tuple(
        num_tokens if axis == 'vocab' else size
        # The scale of a quantized weight has the first of its axes.
        for axis, size in zip(rules.PARAM_AXES[name], shape, strict=False)
      )
    shape = tuple(shape[axis] for axis in file_order.axes(name, leaf.ndim))
    if num_tokens is not None:
      row = row[: shape[-1]]
    digest.update(jax.tree_util.keystr(path).encode())
    digest.update(str(shape).encode())
    digest.update(row.tobytes())
  return digest.hexdigest()[:16]


@jax.jit
def rows(params: Any) -> Any:
  """Returns the part of each array that is hashed, in the same tree."""

  def row(path, leaf):
    is_weight = leaf.dtype == jnp.int8 or jnp.issubdtype(
      leaf.dtype, jnp.inexact
    )
    if not leaf.ndim or not is_weight:
      return leaf
    # The first row in the order of files.
    *_, last = file_order.axes(file_order.last_name(path), leaf.ndim)
    index = tuple(
      slice(None) if axis == last else 0 for axis in range(leaf.ndim)
    )
    return leaf[index].astype(jnp.bfloat16)

  return jax.tree_util.tree_map_with_path(row, params)
