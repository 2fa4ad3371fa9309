"""One decoder-only transformer for every family that `config` spans.

Linen modules are used as pure functions: parameters and caches are plain
pytrees, a cache is an argument and a result. Layers are unrolled: on CPUs a
scan over stacked weights copies every slice.
"""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from specsamp.models import attention, experts, float16, kernels, kv_cache
from specsamp.models.config import TransformerConfig
from specsamp.models.kv_cache import KVCache
from specsamp.sharding.rules import constrain


class Output(NamedTuple):
  """Results of one pass.

  Attributes:
    logits: float32 [B, T, V].
    hidden: [B, T, D], after the final norm: the input of the LM head.
    features: the input of drafters, `hidden`. If the transformer has taps, it
      is [B, T, taps * D], the residual stream before each of these layers.
    cache: the updated `KVCache`, or None.
  """

  logits: jax.Array
  hidden: jax.Array
  features: jax.Array
  cache: KVCache | None


class Norm(nn.Module):
  """RMS norm, or layer norm with bias; statistics in float32."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x):
    c = self.config
    x = x.astype(jnp.float32)
    if c.norm == 'layer':
      x = x - jnp.mean(x, axis=-1, keepdims=True)
    scale = self.param('scale', nn.initializers.ones, (c.width,))
    x = attention.rms(x, scale, c.norm_epsilon)
    if c.norm == 'layer':
      bias = self.param('bias', nn.initializers.zeros, (c.width,))
      x = x + bias.astype(jnp.float32)[None, None]
    return x.astype(c.dtype)


class MLP(nn.Module):
  """MLP: act(gate(x)) * up(x), or act(up(x)), projected back."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x):
    c = self.config
    parts = 2 if c.gated else 1  # gate and up are contiguous in memory
    up = self.param(
      'up', nn.initializers.normal(c.width**-0.5), (parts, c.mlp_width, c.width)
    )
    down = self.param(
      'down',
      nn.initializers.normal((2 * c.num_layers * c.mlp_width) ** -0.5),
      (c.width, c.mlp_width),
    )
    h = kernels.gate_and_up(x, up, c.dtype)
    if c.biases == 'all':
      zeros = nn.initializers.zeros
      up_bias = self.param('up_bias', zeros, (parts, c.mlp_width))
      down_bias = self.param('down_bias', zeros, (c.width,))
      h = h + up_bias.astype(h.dtype)[None, None]
    activated = kernels.ACTIVATIONS[c.activation](h[:, :, 0])
    if c.gated:
      activated = activated * h[:, :, 1]
    out = kernels.project(activated, down, c.dtype)
    if c.biases == 'all':
      out = out + down_bias.astype(out.dtype)[None, None]
    return out


class Block(nn.Module):
  """Block: x + attention(norm(x)), then x + mlp(norm(x)).

  The MLP may be a mixture of experts. With `config.output_norms`, the outputs
  of attention and MLP are normed too.
  """

  config: TransformerConfig
  has_attention_norm: bool = True

  def setup(self):
    if self.has_attention_norm:
      self.attention_norm = Norm(self.config)
    self.attention = attention.Attention(self.config)
    self.mlp_norm = Norm(self.config)
    has_experts = self.config.num_experts > 0
    self.mlp = (experts.Experts if has_experts else MLP)(self.config)
    if self.config.output_norms:
      self.attention_output_norm = Norm(self.config)
      self.mlp_output_norm = Norm(self.config)

  def __call__(
    self, x, positions, start, mask, slot_positions, cache, context=None
  ):
    """Returns the stream [B, T, D] after the block, and its part of the cache.

    See `attention.Attention` for the arguments.
    """
    normed = self.attention_norm(x) if self.has_attention_norm else x
    attended, cache = self.attention(
      normed, positions, start, mask, slot_positions, cache, context
    )
    if not self.config.output_norms:
      x = x + attended
      return x + self.mlp(self.mlp_norm(x)), cache
    x = x + self.attention_output_norm(attended)
    return x + self.mlp_output_norm(self.mlp(self.mlp_norm(x))), cache


@functools.partial(jax.jit, static_argnums=0)
def _apply(block: nn.Module, params, *inputs):
  """Applies a block. Equal blocks are traced once for inputs of a shape.

  Tracing eight layers then takes half the time. XLA inlines all calls.
  """
  return block.apply({'params': params}, *inputs)


class Layers(nn.Module):
  """The blocks of a transformer, from residual stream to residual stream."""

  config: TransformerConfig

  def setup(self):
    self.layers = [self.block(i) for i in range(self.config.num_layers)]

  def block(self, layer: int) -> nn.Module:
    """Returns the block of a layer; blocks may differ between layers."""
    return Block(self.config.of_layer(layer))

  def run(
    self,
    x,
    positions,
    cache=None,
    mask=None,
    start=None,
    slot_positions=None,
    context=None,
  ):
    """Returns the streams before each block and after the last, and the cache.

    Args:
      x: [B, T, D].
      positions: int [B, T], or [B, C + T] with a context.
      cache: see `Transformer` for this and the other arguments.
      mask: for the layers without a window; layers with one see the part of it
        inside their window. A dict has the mask of each window.
      context: [B, C, D], or None. Every block computes its keys and values,
        which take the slots before those of x.
    """
    num_slots = positions.shape[1] if cache is None else cache.capacity
    if start is None:
      start = positions[:, 0]
    if mask is None:
      mask = attention.causal_mask(positions, num_slots)
    if slot_positions is None:
      slot_positions = attention.slot_positions(start, positions, num_slots)
    windows = [self.config.window(i) for i in range(len(self.layers))]
    if not isinstance(mask, dict):
      where = positions[:, -x.shape[1] :], slot_positions
      mask = {n: attention.windowed(mask, n, *where) for n in set(windows)}
    x = constrain(x, 'batch', None, 'width')
    streams, keys, values = [x], [], []
    for layer, block in enumerate(self.layers):
      entry = None if cache is None else cache.entry(layer)
      inputs = (
        x,
        positions,
        start,
        mask[windows[layer]],
        slot_positions,
        entry,
      )
      if context is not None:
        inputs = (*inputs, context)
      if self.is_initializing():
        x, (k, v) = block(*inputs)
      else:
        unbound = block.clone(parent=None, name=None)
        x, (k, v) = _apply(unbound, block.variables['params'], *inputs)
      streams.append(x)
      keys.append(k)
      values.append(v)
    if cache is not None:
      cache = cache.replace(keys=tuple(keys), values=tuple(values))
    return streams, cache

  def relative_tables(self, length: int):
    """Returns the tables of relative positions, one per layer."""
    return tuple(
      block.attention.relative_table(length) for block in self.layers
    )

  def init_cache(self, params, batch: int, capacity: int) -> KVCache:
    """Returns an empty cache with `capacity` slots per row."""
    cache = kv_cache.empty(self.config, batch, capacity)
    if self.config.positions != 'relative':
      return cache
    tables = self.apply({'params': params}, capacity, method='relative_tables')
    return cache.replace(relative=tables)


class Transformer(Layers):
  """Decoder-only transformer, from tokens to logits, hidden states and cache.

  Attributes:
    config: shape of the transformer.
    taps: layers before which drafters read the residual stream. Drafters with
      () read the output of the final norm.
  """

  taps: tuple[int, ...] = ()

  @property
  def rows(self) -> int:
    """Number of rows of the embedding and of the LM head."""
    return self.config.vocab_size

  def setup(self):
    c = self.config
    self.embedding = self.param(
      'embedding',
      nn.initializers.normal(c.width**-0.5 if c.tied_embeddings else 1.0),
      (self.rows, c.width),
    )
    if c.positions == 'learned':
      normal = nn.initializers.normal(0.02)
      self.position_embedding = self.param(
        'position_embedding', normal, (c.max_length, c.width)
      )
    super().setup()
    self.final_norm = Norm(c)
    if not c.tied_embeddings:
      normal = nn.initializers.normal(c.width**-0.5)
      self.head = self.param('head', normal, (self.rows, c.width))

  def __call__(
    self,
    tokens,
    positions=None,
    cache=None,
    mask=None,
    start=None,
    slot_positions=None,
  ) -> Output:
    """Runs T tokens of every row after those in the cache.

    `attention.tree_pass` makes the arguments of a pass over a token tree.

    Args:
      tokens: int [B, T].
      positions: int [B, T], by default 0..T-1.
      cache: a `KVCache`, or None to attend among the T tokens alone.
      mask: bool [B, T, S], the slots that each token sees, its slot included;
        causal by default.
      start: int [B], slot of the first token, by default `positions[:, 0]`.
      slot_positions: int [B, S], the position of the entry in each slot. The
        default is a slot's index, and `positions` for the T tokens.

    Returns:
      An `Output`. `jax.jit` removes the computation of unused parts.
    """
    batch, length = tokens.shape
    if positions is None:
      positions = jnp.arange(length, dtype=jnp.int32)[None]
      positions = jnp.broadcast_to(positions, (batch, length))
    x = self.embed(tokens) + self.place(positions)
    streams, cache = self.run(x, positions, cache, mask, start, slot_positions)
    hidden = features = self.final_norm(streams[-1])
    if self.taps:
      features = jnp.concatenate([streams[i] for i in self.taps], axis=-1)
    return Output(self.logits(hidden), hidden, features, cache)

  def no_features(self, batch: int):
    """Returns zeros in place of the features of a token: [B, 1, features]."""
    dtype, parts = self.config.dtype, len(self.taps) or 1
    if self.taps:
      dtype = float16.wide(dtype)
    return jnp.zeros((batch, 1, parts * self.config.width), dtype)

  def embed(self, tokens):
    """Returns embeddings of tokens, [B, T, D], without their positions."""
    c = self.config
    x = kernels.rows(self.embedding, tokens, c.dtype)
    if c.embedding_scale == 1:
      return x
    # Gemma was trained with a factor that is rounded to the model's dtype.
    scale = jnp.asarray(c.embedding_scale, c.dtype).astype(x.dtype)
    return x * scale

  def place(self, positions):
    """Returns learned embeddings of positions, [B, T, D], or 0."""
    if self.config.positions != 'learned':
      return 0
    x = jnp.take(self.position_embedding, positions, axis=0, mode='clip')
    return x.astype(float16.wide(self.config.dtype))

  def logits(self, hidden):
    """Applies the LM head: [B, T, D] -> float32 [B, T, V]."""
    head = self.embedding if self.config.tied_embeddings else self.head
    if self.config.dtype == float16.NAME:
      # After an overflow all logits are NaN, which decoding reports.
      hidden = jnp.where(jnp.isinf(hidden), jnp.nan, hidden)
    logits = kernels.logits(hidden, head, self.config.dtype)
    logits = attention.capped(logits, self.config.logit_cap)
    if self.config.padding:
      # Finite: a cross-entropy sums p log q over the whole vocabulary.
      rows_v = jnp.arange(self.config.vocab_size, dtype=jnp.int32)
      is_token_v = rows_v < self.config.num_tokens
      logits = jnp.where(is_token_v[None, None], logits, -1e30)
    return constrain(logits, 'batch', None, 'vocab')

  def init_params(self, key) -> Any:
    """Returns random parameters, a nested dict of float32 arrays."""
    return self.init(key, jnp.zeros((1, 1), jnp.int32))['params']


@functools.cache  # tracing a large model takes seconds
def param_shapes(module: nn.Module) -> Any:
  """Returns the shapes of `module.init_params` without computing parameters.

  The result is nested dicts of float32 `jax.ShapeDtypeStruct`. Equal modules
  share one result, which must not be changed.
  """
  # The cached shapes must not depend on the caller's x64 setting.
  with jax.enable_x64(False):
    return jax.eval_shape(module.init_params, jax.random.key(0))
