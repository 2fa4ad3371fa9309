"""One decoder-only transformer for every family that `config` spans.

Linen modules used purely: parameters and caches are plain pytrees, a cache
goes in and comes out, no mutable collections. Layers are unrolled: on CPUs a
scan over stacked weights copies every slice.
"""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from specsamp.models import attention, float16, kernels, kv_cache
from specsamp.models.config import TransformerConfig
from specsamp.models.kv_cache import KVCache
from specsamp.sharding import lookup, rules
from specsamp.sharding.rules import constrain

_ACTIVATIONS = {
  'silu': jax.nn.silu,
  'gelu': lambda x: jax.nn.gelu(x, approximate=False),
  'gelu_tanh': jax.nn.gelu,
  'relu': jax.nn.relu,
}


class Output(NamedTuple):
  """What one pass returns.

  Attributes:
    logits: float32 [B, T, V].
    hidden: [B, T, D], after the final norm: the LM head's input.
    features: what drafters read: `hidden`, or of a transformer with taps
      [B, T, taps * D], the residual stream before each tapped layer, in order.
    cache: the updated `KVCache`, None if none was given.
  """

  logits: jax.Array
  hidden: jax.Array
  features: jax.Array
  cache: KVCache | None


rules.declare(scale=('width',), bias=('width',))


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
    return float16.narrow(x, c.dtype)


def _gate_and_up(x_btd, up, dtype: str):
  """Both products, with gate and with up: [B, T, 2, F].

  On TPUs in two: where a shard's F is no multiple of the 128 lanes (LLaMA 7B
  in four), XLA would first copy both side by side.
  """
  together = functools.partial(kernels.project, dtype=dtype)

  def apart(x_btd, up):
    return jnp.stack([together(x_btd, part) for part in up], axis=2)

  return jax.lax.platform_dependent(x_btd, up, tpu=apart, default=together)


rules.declare(
  up=('gate_or_up', 'mlp', 'width'),
  up_bias=('gate_or_up', 'mlp'),
  down=('width', 'mlp'),
  down_bias=('width',),
)


class MLP(nn.Module):
  """act(gate(x)) * up(x), or act(up(x)), projected back."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x):
    c = self.config
    parts = 2 if c.gated else 1  # gate and up, read in one stretch
    up = self.param(
      'up', nn.initializers.normal(c.width**-0.5), (parts, c.mlp_width, c.width)
    )
    down = self.param(
      'down',
      nn.initializers.normal((2 * c.num_layers * c.mlp_width) ** -0.5),
      (c.width, c.mlp_width),
    )
    h = _gate_and_up(x, up.astype(c.dtype), c.dtype)
    if c.biases == 'all':
      zeros = nn.initializers.zeros
      up_bias = self.param('up_bias', zeros, (parts, c.mlp_width))
      down_bias = self.param('down_bias', zeros, (c.width,))
      h = h + up_bias.astype(h.dtype)[None, None]
    activated = _ACTIVATIONS[c.activation](h[:, :, 0])
    if c.gated:
      activated = activated * h[:, :, 1]
    out = kernels.project(activated, down, c.dtype)
    if c.biases == 'all':
      out = out + down_bias.astype(out.dtype)[None, None]
    return out


class Block(nn.Module):
  """x + attention(norm(x)), then x + mlp(norm(x)).

  Attributes:
    config: its shape.
    has_attention_norm: whether there is a norm before attention.
  """

  config: TransformerConfig
  has_attention_norm: bool = True

  def setup(self):
    if self.has_attention_norm:
      self.attention_norm = Norm(self.config)
    self.attention = attention.Attention(self.config)
    self.mlp_norm = Norm(self.config)
    self.mlp = MLP(self.config)

  def __call__(
    self, x, positions, start, mask, slot_positions, cache, context=None
  ):
    read = self.attention_norm(x) if self.has_attention_norm else x
    attended, cache = self.attention(
      read, positions, start, mask, slot_positions, cache, context
    )
    x = x + attended
    return x + self.mlp(self.mlp_norm(x)), cache


@functools.partial(jax.jit, static_argnums=0)
def _apply(block: nn.Module, params, *inputs):
  """A block, which is traced once for all layers and programs of a shape.

  In eight layers that halves what jax does before it compiles or loads a
  program; the compiler takes them apart again.
  """
  return block.apply({'params': params}, *inputs)


class Layers(nn.Module):
  """Blocks alone: from a residual stream to a residual stream."""

  config: TransformerConfig

  def setup(self):
    self.layers = [self.block() for _ in range(self.config.num_layers)]

  def block(self) -> nn.Module:
    return Block(self.config)

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
    """The L + 1 streams before each block and after the last; the cache.

    Args:
      x: [B, T, D].
      positions: int [B, T], or [B, C + T] with a context.
      cache, mask, start, slot_positions: see `Transformer`.
      context: [B, C, D], of which every block makes keys and values as it is;
        they stand in the slots before those of x. None for nothing.
    """
    num_slots = positions.shape[1] if cache is None else cache.capacity
    if start is None:
      start = positions[:, 0]
    if mask is None:
      mask = attention.causal_mask(positions, num_slots)
    if slot_positions is None:
      slot_positions = attention.slot_positions(start, positions, num_slots)
    x = constrain(x, 'batch', None, 'width')
    streams, keys, values = [x], [], []
    for i, layer in enumerate(self.layers):
      entry = None if cache is None else cache.entry(i)
      inputs = (x, positions, start, mask, slot_positions, entry)
      if context is not None:
        inputs = (*inputs, context)
      if self.is_initializing():
        x, (k, v) = layer(*inputs)
      else:
        alone = layer.clone(parent=None, name=None)
        x, (k, v) = _apply(alone, layer.variables['params'], *inputs)
      streams.append(x)
      keys.append(k)
      values.append(v)
    if cache is not None:
      cache = cache.replace(keys=tuple(keys), values=tuple(values))
    return streams, cache

  def relative_tables(self, length: int):
    return tuple(
      layer.attention.relative_table(length) for layer in self.layers
    )

  def init_cache(self, params, batch: int, capacity: int) -> KVCache:
    """An empty cache of `capacity` slots a row."""
    cache = kv_cache.empty(self.config, batch, capacity)
    if self.config.positions == 'relative':
      tables = self.apply(
        {'params': params}, capacity, method='relative_tables'
      )
      cache = cache.replace(relative=tables)
    return cache


rules.declare(
  embedding=('vocab', 'width'),
  position_embedding=('position', 'width'),
  head=('vocab', 'width'),
)


class Transformer(Layers):
  """tokens -> logits, hidden states and the updated cache.

  Attributes:
    config: its shape.
    taps: layers before which drafters read the stream; () is for those that
      read what comes out of the final norm.
  """

  taps: tuple[int, ...] = ()

  def setup(self):
    c = self.config
    self.embedding = self.param(
      'embedding',
      nn.initializers.normal(c.width**-0.5 if c.tied_embeddings else 1.0),
      (c.vocab_size, c.width),
    )
    if c.positions == 'learned':
      self.position_embedding = self.param(
        'position_embedding',
        nn.initializers.normal(0.02),
        (c.max_length, c.width),
      )
    super().setup()
    self.final_norm = Norm(c)
    if not c.tied_embeddings:
      self.head = self.param(
        'head',
        nn.initializers.normal(c.width**-0.5),
        (c.vocab_size, c.width),
      )

  def __call__(
    self,
    tokens,
    positions=None,
    cache=None,
    mask=None,
    start=None,
    slot_positions=None,
  ) -> Output:
    """Runs T tokens of every row after whatever the cache holds.

    `attention.tree_pass` makes the arguments of a pass over a token tree.

    Args:
      tokens: int [B, T].
      positions: int [B, T]; 0..T-1 if left out.
      cache: a `KVCache`, or None to attend among the T tokens alone.
      mask: bool [B, T, S], the slots that each token sees, itself included;
        causal if left out.
      start: int [B], the first of the T tokens' slots; `positions[:, 0]` if
        left out.
      slot_positions: int [B, S], the position of what stands in each slot; if
        left out, a slot's index but for the T tokens.

    Returns:
      An `Output`. What is not used of it is not computed under `jax.jit`.
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

  def embed(self, tokens):
    """[B, T, D], without their places."""
    x = lookup.rows(self.embedding, tokens)
    return x.astype(float16.wide(self.config.dtype))

  def place(self, positions):
    """What is added to an embedding for its place: [B, T, D], or 0."""
    if self.config.positions != 'learned':
      return 0
    at = jnp.take(self.position_embedding, positions, axis=0, mode='clip')
    return at.astype(float16.wide(self.config.dtype))

  def logits(self, hidden):
    """The LM head: [B, T, D] -> float32 [B, T, V]."""
    head = self.embedding if self.config.tied_embeddings else self.head
    logits = kernels.logits(hidden, head, self.config.dtype)
    if self.config.padding:
      # Finite, for a cross-entropy sums p log q over the whole vocabulary.
      rows_v = jnp.arange(self.config.vocab_size, dtype=jnp.int32)
      is_token_v = rows_v < self.config.num_tokens
      logits = jnp.where(is_token_v[None, None], logits, -1e30)
    return constrain(logits, 'batch', None, 'vocab')

  def init_params(self, key) -> Any:
    """Random parameters, a nested dict of float32 arrays."""
    return self.init(key, jnp.zeros((1, 1), jnp.int32))['params']


@functools.cache  # a large model's take seconds to trace
def param_shapes(module: nn.Module) -> Any:
  """The shapes of what `module.init_params` makes; nothing is computed.

  Args:
    module: a `Transformer`, or what a trained drafter is made of.

  Returns:
    Nested dicts of `jax.ShapeDtypeStruct`, float32; one object for all who ask
    for equal modules, not to be changed.
  """
  # The first to ask may compute in 64 bits, and the others need not.
  with jax.enable_x64(False):
    return jax.eval_shape(module.init_params, jax.random.key(0))
