"""Work of a pass on one chip: bytes read, arithmetic and messages."""

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

# Counted in the programs that XLA compiles for an H100, see
# tests/planning/test_lean.py. The others embed, and sample from the logits.
_KERNELS_PER_LAYER = 19
_OTHER_KERNELS = 30


@dataclasses.dataclass(frozen=True)
class Collective:
  """Collectives of one kind and size.

  Attributes:
    kind: XLA's name, such as all-reduce.
    num_bytes: size of one chip's result.
    count: number of such collectives.
  """

  kind: str
  num_bytes: int
  count: int


@dataclasses.dataclass(frozen=True)
class Work:
  """Work of one chip in one pass of one model.

  Attributes:
    weights: bytes of weights read.
    caches: bytes of caches read.
    flops: multiplications and additions.
    collectives: collectives, one after the other.
    kernels: number of kernels of a GPU, collectives excluded.
  """

  weights: int
  caches: int
  flops: float
  collectives: tuple[Collective, ...]
  kernels: int


def of_pass(
  config: TransformerConfig,
  *,
  shards: int,
  tokens: int,
  context: int,
  batch: int = 1,
) -> Work:
  """Returns the work of a pass of a model sharded by `sharding.rules`.

  Weights of which a pass reads only some rows are not counted: an embedding
  that is not the LM head too, and the projection of relative positions, which
  the cache holds as a table. The few bytes that sampling sends are not counted
  either.

  Args:
    config: model.
    shards: number of chips that share the model.
    tokens: T, tokens in each row.
    context: S, cache slots; a pass reads all of them.
    batch: B, rows.

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
    kernels=_KERNELS_PER_LAYER * config.num_layers + _OTHER_KERNELS,
  )


def _all_reduces(
  config: TransformerConfig, shards: int, tokens: int
) -> tuple[Collective, ...]:
  """Returns two all-reduces per layer and one for the embedding, largest first.

  In float16 the sums of a layer are float32, and each layer reduces the largest
  hidden unit of every token too.
  """
  if shards == 1:
    return ()
  num_bytes = lambda dtype: tokens * config.width * jnp.dtype(dtype).itemsize
  embedding = int(config.vocab_size % shards == 0)
  layers = 2 * config.num_layers
  if config.dtype != float16.NAME:
    sizes = [(num_bytes(config.dtype), layers + embedding)]
  else:
    sizes = [
      (num_bytes(float16.wide(config.dtype)), layers),
      (num_bytes(config.dtype), embedding),
      (4 * tokens, config.num_layers),
    ]
  return tuple(
    Collective('all-reduce', size, count) for size, count in sizes if count
  )


def logit_bytes(
  config: TransformerConfig, *, shards: int, tokens: int, batch: int = 1
) -> int:
  """Returns the bytes of a pass's logits on one chip, float32 [B, T, V].

  Args:
    config: model.
    shards: number of chips that share the model. Each holds the whole
      vocabulary if it does not divide into them.
    tokens: T, tokens in each row.
    batch: B, rows.
  """
  vocab = config.vocab_size
  shard_vocab = vocab if vocab % shards else vocab // shards
  return 4 * batch * tokens * shard_vocab


def shapes(
  config: TransformerConfig,
  shards: int,
  context: int,
  batch: int,
  mesh: Mesh | None = None,
) -> tuple[Any, KVCache]:
  """Returns parameters and cache as `jax.ShapeDtypeStruct` with shardings.

  Args:
    config: model.
    shards: number of chips that share the model.
    context: cache slots.
    batch: rows.
    mesh: 1 x `shards` devices; by default an abstract mesh.

  Raises:
    UserError: heads or hidden units do not divide into the shards.
  """
  params, cache = _unsharded(config, context, batch)
  if mesh is None:
    mesh = AbstractMesh((1, shards), (rules.DATA, rules.MODEL))
    shardings = rules.param_shardings(params, mesh)
  else:
    shardings = rules.param_formats(params, mesh)
  sharding = rules.sharding(mesh)

  def param_shape(path, x, sharding):
    is_matrix = weights.is_matrix(path[-1].key, x)
    dtype = config.dtype if is_matrix else x.dtype
    return jax.ShapeDtypeStruct(x.shape, dtype, sharding=sharding)

  return (
    jax.tree_util.tree_map_with_path(param_shape, params, shardings),
    kv_cache.with_axes(
      cache,
      lambda x, *axes: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=sharding(x, *axes)
      ),
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
  """Returns the bytes that sharded arrays take on one device."""
  total = 0
  for leaf in jax.tree.leaves(tree):
    # A `Format` has the sharding as an attribute.
    sharding = getattr(leaf.sharding, 'sharding', leaf.sharding)
    shape = sharding.shard_shape(leaf.shape)
    total += math.prod(shape) * leaf.dtype.itemsize
  return total
