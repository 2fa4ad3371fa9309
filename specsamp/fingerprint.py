"""A few hex digits that tell one set of weights from another."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp

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
    stored = rows([leaf for _, leaf in leaves])
  digest = hashlib.sha256()
  for (path, leaf), row in zip(leaves, jax.tree.leaves(stored), strict=True):
    shape, row = leaf.shape, meshes.fetch(row)
    if num_tokens is not None:
      axes = rules.PARAMS[path[-1].key]
      shape = tuple(
        num_tokens if axis == 'vocab' else size
        for axis, size in zip(axes, shape, strict=True)
      )
      row = row[: shape[-1]]
    digest.update(jax.tree_util.keystr(path).encode())
    digest.update(str(shape).encode())
    digest.update(row.tobytes())
  return digest.hexdigest()[:16]


@jax.jit
def rows(leaves: list[jax.Array]) -> list[jax.Array]:
  """What of each array goes into the hash."""
  is_weight = lambda leaf: leaf.ndim and jnp.issubdtype(leaf.dtype, jnp.inexact)
  return [
    leaf[(0,) * (leaf.ndim - 1)].astype(jnp.bfloat16)
    if is_weight(leaf)
    else leaf
    for leaf in leaves
  ]
