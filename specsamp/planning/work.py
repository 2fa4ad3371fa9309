"""Work of a pass on one chip: bytes read, arithmetic and messages."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from specsamp.checkpoints import weights
from specsamp.drafting.draft import TokenTree
from specsamp.models import (
  KVCache,
  Transformer,
  TransformerConfig,
  float16,
  kv_cache,
  param_shapes,
  quantized,
)
from specsamp.sharding import rules

# Counted in the schedules of the programs that XLA compiles for an H100. The
# other kernels embed tokens, and sample from the logits.
_KERNELS_PER_LAYER = 19
_OTHER_KERNELS = 30


@dataclasses.dataclass(frozen=True)
class QuantizedConfig(TransformerConfig):
  """Shape of a transformer with weights in 8 bits.

  Attributes:
    weights: kind of the weights.
  """

  weights: quantized.Kind = 'int8'


def quantized_config(
  config: TransformerConfig, kind: quantized.Kind
) -> QuantizedConfig:
  """Returns the config with weights of a kind."""
  fields = dataclasses.fields(TransformerConfig)
  values = {field.name: getattr(config, field.name) for field in fields}
  return QuantizedConfig(**values, weights=kind)


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
    collectives: all-reduces, one after the other.
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

  The experts that T B tokens choose are read once, see `experts_read`. Each
  token runs through the experts that it chose.

  Weights that a pass hardly reads are not counted: embeddings that are not also
  the LM head, and the projection of relative positions, whose results are in
  the cache. The few bytes that sampling sends are not counted.

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
  reads = experts_read(config, batch * tokens)
  weights_read, size = 0.0, 0.0
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    name = rules.param_name(path)
    if name in unread:
      continue
    is_expert = name.startswith('expert_')
    weights_read += num_bytes(leaf) * (reads if is_expert else 1)
    used = config.experts_per_token / config.num_experts if is_expert else 1
    size += math.prod(leaf.sharding.shard_shape(leaf.shape)) * used
  attention = 4 * context * config.num_heads * config.head_dim
  # A device computes all heads if they are fewer than the shards.
  parts = shards if config.num_heads >= shards else 1
  per_token = 2 * size + config.num_layers * attention / parts
  return Work(
    weights=round(weights_read),
    caches=num_bytes(cache),
    flops=batch * tokens * per_token,
    collectives=_all_reduces(config, shards, batch * tokens),
    kernels=_KERNELS_PER_LAYER * config.num_layers + _OTHER_KERNELS,
  )


def experts_read(config: TransformerConfig, tokens: int) -> float:
  """Returns the expected share of a layer's experts that tokens choose.

  Each token is assumed to choose K of E experts at random, independently of the
  other tokens: 1 - (1 - K / E)^tokens. Neighbouring tokens share more experts
  in practice, so a pass over a draft reads less. On GPUs passes over few tokens
  read more: see `models.experts`.
  """
  if not config.num_experts:
    return 1.0
  share = config.experts_per_token / config.num_experts
  return 1 - (1 - share) ** tokens


def eagle_pass(target: TransformerConfig, tokens: int, context: int) -> Work:
  """Returns the work of an EAGLE layer with fusion and the target's LM head."""
  layer = target.for_drafter(1)
  layer_pass = of_pass(layer, shards=1, tokens=tokens, context=context)
  fusion = 2 * target.width**2
  return dataclasses.replace(
    layer_pass,
    weights=layer_pass.weights + fusion * jnp.dtype(target.dtype).itemsize,
    flops=layer_pass.flops + 2 * fusion * tokens,
  )


def of_round(
  target: TransformerConfig,
  tree: TokenTree,
  draft: Callable[[int], Work] | None,
  context: int,
) -> list[Work]:
  """Returns the passes of a round: one of the draft per depth, then the target.

  Args:
    target: target model.
    tree: tree of the draft. A root alone is autoregressive decoding.
    draft: number of tokens -> the draft's pass over them.
    context: cache slots of the target.
  """
  depths = [tree.depths[node] for node in tree.internal]
  drafted = [draft(depths.count(depth)) for depth in range(tree.depth)]
  scored = of_pass(target, shards=1, tokens=tree.size, context=context)
  return [*drafted, scored]


def _all_reduces(
  config: TransformerConfig, shards: int, tokens: int
) -> tuple[Collective, ...]:
  """Returns two all-reduces per layer and one for the embedding, largest first.

  Attention needs none if there are fewer heads than shards. In float16 the sums
  of a layer are float32, and each layer also reduces the largest hidden unit of
  every token.
  """
  if shards == 1:
    return ()
  num_bytes = lambda dtype: tokens * config.width * jnp.dtype(dtype).itemsize
  embedding = int(config.vocab_size % shards == 0)
  layers = (1 + (config.num_heads >= shards)) * config.num_layers
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
  params = _params(config)
  cache = _cache(config, batch, context)
  if mesh is None:
    mesh = AbstractMesh((1, shards), (rules.DATA, rules.MODEL))
    shardings = rules.param_shardings(params, mesh)
  else:
    shardings = rules.param_formats(params, mesh)

  placed = lambda x, sharding: x.update(sharding=sharding)
  return (
    jax.tree.map(placed, params, shardings),
    kv_cache.with_axes(cache, sharded_shape(mesh)),
  )


def sharded_shape(mesh: Mesh) -> Callable[..., jax.ShapeDtypeStruct]:
  """Returns a function `(array, *axes)` -> its shape with its sharding."""
  sharding = rules.sharding(mesh)
  return lambda x, *axes: jax.ShapeDtypeStruct(
    x.shape, x.dtype, sharding=sharding(x, *axes)
  )


def unseen_bytes(
  config: TransformerConfig, shards: int, context: int, batch: int
) -> int:
  """Returns the bytes of a device's cache that no window of a layer reaches."""
  _, cache = shapes(config, shards, context, batch)
  windows = map(config.window, range(config.num_layers))
  shares = [max(0, context - (n or context)) / context for n in windows]
  pairs = zip(shares, zip(cache.keys, cache.values, strict=True), strict=True)
  return int(sum(share * num_bytes(layer) for share, layer in pairs))


@functools.cache
def _params(config: TransformerConfig) -> Any:
  """Returns the shapes of the parameters in the dtypes of memory."""
  kind = config.weights if isinstance(config, QuantizedConfig) else ''

  def param_shape(path, x):
    name = path[-1].key
    if kind and quantized.num_summed(name):
      scale = x.shape[: len(x.shape) - quantized.num_summed(name)]
      return quantized.Quantized(
        jax.ShapeDtypeStruct(x.shape, jnp.int8),
        jax.ShapeDtypeStruct(scale, jnp.float32),
        kind,
      )
    dtype = config.dtype if weights.is_matrix(name, x) else x.dtype
    return jax.ShapeDtypeStruct(x.shape, dtype)

  shapes = param_shapes(Transformer(config))
  return jax.tree_util.tree_map_with_path(param_shape, shapes)


@functools.cache
def _cache(config: TransformerConfig, batch: int, context: int) -> KVCache:
  init_cache = Transformer(config).init_cache
  return jax.eval_shape(
    lambda p: init_cache(p, batch, context), _params(config)
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
