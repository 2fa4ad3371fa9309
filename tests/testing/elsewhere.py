"""Requests of this machine lowered for other devices, and their copies."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from specsamp.decoding import arguments
from specsamp.decoding.request import Request
from specsamp.decoding.state import with_axes
from specsamp.models import KVCache
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules


def lower_decode(job: Request, mesh: Mesh):
  """All rounds of a request, and the shapes of the state that they consume."""
  # As many slots as it would have there.
  job = dataclasses.replace(
    job, capacity=arguments.capacity(job.capacity, mesh)
  )
  put = rules.sharding(mesh)
  shapes = lambda tree, shardings: jax.tree.map(
    lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
    tree,
    shardings,
  )
  placed = lambda tree: shapes(tree, rules.param_formats(tree, mesh))
  inputs = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype), job.inputs
  ).replace(
    params=placed(job.inputs.params), drafter=placed(job.inputs.drafter)
  )
  with meshes.use(mesh):
    state = job.programs.prefill.eval_shape(inputs, job.prompts)
    state = shapes(state, with_axes(state, put))
    decode = jax.jit(job.decoder.decode, donate_argnums=1)
    return decode.lower(inputs, state, np.int32(9)), state


def caches(state) -> list:
  """Keys and values of the target and of what drafts."""
  found = jax.tree.leaves(
    (state.cache, state.drafter), is_leaf=lambda node: isinstance(node, KVCache)
  )
  return [
    array
    for cache in found
    if isinstance(cache, KVCache)
    for array in (*cache.keys, *cache.values)
  ]


def copies(hlo: str, shapes) -> list[str]:
  """Returns the copies and transpositions of arrays of these shapes.

  Anywhere in it, the while body and all that it calls included; and in any
  order of the axes.
  """
  sizes = [sorted(shape) for shape in shapes]
  return [
    found[0]
    for found in re.finditer(r'= \w+\[([\d,]+)\]\S* (copy|transpose)\(', hlo)
    if sorted(map(int, found[1].split(','))) in sizes
  ]
