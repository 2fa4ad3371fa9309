"""A few hex digits that tell one set of weights from another."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp

from specsamp import file_order
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules


def of(
  params: Any,
  num_tokens: int | None = None,
  stored: Any = None,
) -> str:
  """A hash of a row of every array of a tree, in bfloat16; of integers, which
  are no weights but texts, of all of it.

  It is the same for the same weights on any mesh, in float32 or bfloat16;
  float16 rounds small ones. All processes of a mesh must call it.

  Args:
    params: arrays in nested dicts, or in other trees.
    num_tokens: of a model, whose vocabulary may be longer by rows that are no
      tokens: another mesh may need others.
    stored: of each array the row that `rows` found before a cast, in a tree as
      params; None is those of params.
  """
  leaves = jax.tree_util.tree_leaves_with_path(params)
  if stored is None:
    stored = rows(params)
  digest = hashlib.sha256()
  for (path, leaf), row in zip(leaves, jax.tree.leaves(stored), strict=True):
    shape, row = leaf.shape, meshes.fetch(row)
    name = file_order.last_name(path)
    if num_tokens is not None:
      shape = tuple(
        num_tokens if axis == 'vocab' else size
        for axis, size in zip(rules.PARAMS[name], shape, strict=True)
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
  """Returns what of each named array goes into the hash, in the same tree."""

  def row(path, leaf):
    if not leaf.ndim or not jnp.issubdtype(leaf.dtype, jnp.inexact):
      return leaf
    # The first row in the order of files, by which targets are known.
    *first, last = file_order.axes(file_order.last_name(path), leaf.ndim)
    index = tuple(
      slice(None) if axis == last else 0 for axis in range(leaf.ndim)
    )
    return leaf[index].astype(jnp.bfloat16)

  return jax.tree_util.tree_map_with_path(row, params)
