"""Requests lowered for devices that are not here, and their copies."""

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
  """Returns all rounds of a request, lowered, and the shapes of their state."""
  # The number of slots that it would have there.
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
  """Returns the keys and values of the target and of the drafter."""
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

  Axes may have any order. Loops and called functions are searched, too.
  """
  sizes = [sorted(shape) for shape in shapes]
  return [
    found[0]
    for found in re.finditer(r'= \w+\[([\d,]+)\]\S* (copy|transpose)\(', hlo)
    if sorted(map(int, found[1].split(','))) in sizes
  ]
