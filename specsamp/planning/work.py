"""What a pass takes of one chip: bytes, arithmetic, messages."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from specsamp.checkpoints import weights
from specsamp.models import (
  KVCache,
  Transformer,
  TransformerConfig,
  float16,
  kv_cache,
  param_shapes,
)
from specsamp.sharding import rules

# As counted in what XLA compiles for an H100: tests/planning/test_lean.py. The
# others embed, and sample from the logits.
_KERNELS_A_LAYER = 19
_OTHER_KERNELS = 30


@dataclasses.dataclass(frozen=True)
class Collective:
  """Messages of one kind and size.

  Attributes:
    kind: as XLA names it, such as all-reduce.
    num_bytes: of one chip's result.
    count: how many of them.
  """

  kind: str
  num_bytes: int
  count: int


@dataclasses.dataclass(frozen=True)
class Work:
  """One pass of one model, on one of its chips.

  Attributes:
    weights: bytes of them that are read.
    caches: bytes of them that are read.
    flops: multiplications and additions.
    collectives: one after the other.
    kernels: that a GPU runs, one after the other; collectives are none.
  """

  weights: int
  caches: int
  flops: float
  collectives: tuple[Collective, ...]
  kernels: int


@dataclasses.dataclass(frozen=True)
class Kernels:
  """What a GPU runs in one pass through a program, loops' bodies once.

  What only some passes run, a branch, is not counted.

  Attributes:
    total: kernels and copies, collectives left out.
    in_graphs: of them those that CUDA graphs launch.
    graphs: their number.
    host_branches: branches that the host decides, which waits for the GPU.
  """

  total: int
  in_graphs: int
  graphs: int
  host_branches: int


NO_KERNELS = Kernels(0, 0, 0, 0)


@dataclasses.dataclass(frozen=True)
class Part:
  """A compiled program, on one of its chips.

  Attributes:
    name: such as `draft step`.
    weights: bytes of them.
    caches: bytes of them.
    temporaries: bytes of what the program needs while it runs.
    other: bytes of its other inputs and outputs.
    collectives: all that it runs; those of a loop's body once.
    kernels: that it runs; none on a TPU.
    num_layers: of the models that it runs.
    seconds: it took to compile.
  """

  name: str
  weights: int
  caches: int
  temporaries: int
  other: int
  collectives: tuple[Collective, ...]
  kernels: Kernels
  num_layers: int
  seconds: float

  @property
  def total(self) -> int:
    """Bytes in all."""
    return self.weights + self.caches + self.temporaries + self.other


def of_pass(
  config: TransformerConfig,
  *,
  shards: int,
  tokens: int,
  context: int,
  batch: int = 1,
) -> Work:
  """What a pass takes when a model lies on a mesh as in `sharding.rules`.

  Matrices of which a pass reads a row or nothing are not counted: an embedding
  that is no LM head too, and the projection of relative positions, of which the
  cache holds a table. Nor are the messages of sampling, a few bytes each.

  Args:
    config: the model.
    shards: of the model; chips.
    tokens: T, in each row.
    context: S, slots of the cache; all of them are read.
    batch: B.

  Raises:
    UserError: heads or hidden units do not divide into the shards.
  """
  params, cache = shapes(config, shards, context, batch)
  unread = {'relative', 'position_embedding'}
  if not config.tied_embeddings:
    unread.add('embedding')
  matrices = [
    leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    if path[-1].key not in unread
  ]
  size = sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in matrices
  )
  attention = 4 * context * config.num_heads * config.head_dim
  per_token = 2 * size + config.num_layers * attention / shards
  return Work(
    weights=num_bytes(matrices),
    caches=num_bytes(cache),
    flops=batch * tokens * per_token,
    collectives=_all_reduces(config, shards, batch * tokens),
    kernels=_KERNELS_A_LAYER * config.num_layers + _OTHER_KERNELS,
  )


def _all_reduces(
  config: TransformerConfig, shards: int, tokens: int
) -> tuple[Collective, ...]:
  """Two a layer and one for the embedding, the largest first.

  In float16 a layer's sums are float32, and the largest hidden unit of every
  token is asked for.
  """
  if shards == 1:
    return ()
  num_bytes = lambda dtype: tokens * config.width * jnp.dtype(dtype).itemsize
  embedding = int(config.vocab_size % shards == 0)
  layers = 2 * config.num_layers
  if config.dtype != float16.NAME:
    found = [(num_bytes(config.dtype), layers + embedding)]
  else:
    found = [
      (num_bytes(float16.wide(config.dtype)), layers),
      (num_bytes(config.dtype), embedding),
      (4 * tokens, config.num_layers),
    ]
  return tuple(Collective('all-reduce', *each) for each in found if each[1])


def logit_bytes(
  config: TransformerConfig, *, shards: int, tokens: int, batch: int = 1
) -> int:
  """Bytes of float32 [B, T, V] on one chip: a pass's logits.

  Args:
    config: the model.
    shards: of the model; chips. A vocabulary that does not divide into them
      lies on each.
    tokens: T, in each row.
    batch: B.
  """
  vocab = config.vocab_size
  own = vocab if vocab % shards else vocab // shards
  return 4 * batch * tokens * own


def shapes(
  config: TransformerConfig,
  shards: int,
  context: int,
  batch: int,
  mesh: Mesh | None = None,
) -> tuple[Any, KVCache]:
  """Parameters and cache as `jax.ShapeDtypeStruct`, with their shardings.

  Args:
    config: the model.
    shards: of the model.
    context: slots of the cache.
    batch: its rows.
    mesh: 1 x `shards` devices; an abstract mesh if left out.

  Raises:
    UserError: heads or hidden units do not divide into the shards.
  """
  params, cache = _unsharded(config, context, batch)
  if mesh is None:
    mesh = AbstractMesh((1, shards), (rules.DATA, rules.MODEL))
    formats = rules.param_shardings
  else:
    formats = rules.param_formats
  shaped = lambda x, dtype, where: jax.ShapeDtypeStruct(
    x.shape, dtype, sharding=where
  )
  put = rules.sharding(mesh)
  return (
    jax.tree_util.tree_map_with_path(
      lambda path, x, where: shaped(
        x,
        config.dtype if weights.is_matrix(path[-1].key, x) else x.dtype,
        where,
      ),
      params,
      formats(params, mesh),
    ),
    kv_cache.with_axes(
      cache, lambda x, *axes: shaped(x, x.dtype, put(x, *axes))
    ),
  )


@functools.cache
def _unsharded(config: TransformerConfig, context: int, batch: int):
  transformer = Transformer(config)
  params = param_shapes(transformer)
  return params, jax.eval_shape(
    lambda params: transformer.init_cache(params, batch, context), params
  )


def num_bytes(tree: Any) -> int:
  """Bytes on one device of arrays that have a sharding."""
  total = 0
  for leaf in jax.tree.leaves(tree):
    where = getattr(leaf.sharding, 'sharding', leaf.sharding)  # of a Format
    total += math.prod(where.shard_shape(leaf.shape)) * leaf.dtype.itemsize
  return total
