"""EAGLE (Li et al. 2401.15077): one layer that continues the features.

The layer reads pairs: a token, and the target's feature of the token before it.
It predicts the token's feature, and the LM head turns that into the
distribution of the next token. While it drafts, predictions replace features.
"""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.drafting import features, growth
from specsamp.drafting.drafter import Drafter, emitted_tokens, root_of, spans
from specsamp.models import (
  KVCache,
  TransformerConfig,
  attention,
  float16,
  kernels,
)
from specsamp.models.transformer import Block, Layers, Norm


class DraftLayers(Layers):
  """Base of drafting layers that have the target's shape.

  A subclass has `text`, which returns the layers' input at tokens, and
  `__call__`, which runs the layers.

  Attributes:
    config: the target's configuration, with one layer in the papers.
    draft_vocab: number of tokens that it can draft, rows of the target's LM
      head; 0 is all.
  """

  draft_vocab: int = 0
  num_masks: ClassVar[int] = 0
  ahead: ClassVar[None] = None  # they draft to any depth
  taps: ClassVar[tuple[int, ...]] = ()

  @classmethod
  def for_target(
    cls,
    target: TransformerConfig,
    ahead: int,
    num_layers: int,
    draft_vocab: int = 0,
  ):
    return cls(target.for_drafter(num_layers), draft_vocab)

  def setup(self):
    super().setup()
    if self.draft_vocab:
      self.draft_rows = features.draft_rows(self)

  def init_params(self, key):
    """Returns random parameters, a nested dict of float32 arrays."""

    def call(module):
      dtype = float16.wide(self.config.dtype)
      one = jnp.zeros((1, 1, self.config.width), dtype)
      if self.num_masks:
        module.masks(np.zeros(1, np.int32), 0)
      return module(module.text(one, one), jnp.zeros((1, 1), jnp.int32))

    return nn.init(call, self)(key)['params']


def _mostly_feature(key, shape):
  """Returns an initial `fuse` that passes features and adds little of tokens.

  Args:
    key: random key.
    shape: [D, 2 D], features first.
  """
  fuse = nn.initializers.normal(0.1 * shape[1] ** -0.5)(key, shape)
  return fuse.at[:, : shape[0]].set(jnp.eye(shape[0]))


class EagleLayer(DraftLayers):
  """EAGLE's layer: fuses each token with the feature before it."""

  def setup(self):
    super().setup()
    width = self.config.width
    self.fuse = self.param('fuse', _mostly_feature, (width, 2 * width))

  def __call__(self, x_btd, positions_bt, cache=None, mask=None, **arguments):
    """Returns the stream after the layers, [B, T, D], and the updated cache.

    `text` and `masks` make `x_btd`. See `Transformer` for other arguments.
    """
    streams, cache = self.run(x_btd, positions_bt, cache, mask, **arguments)
    return streams[-1], cache

  def text(self, embedded_btd, before_btd):
    """Returns the layer's input at tokens, with features before: [B, T, D]."""
    dtype = self.config.dtype
    both = [x.astype(float16.wide(dtype)) for x in (before_btd, embedded_btd)]
    return kernels.project(jnp.concatenate(both, axis=-1), self.fuse, dtype)


class TokenLayers(DraftLayers):
  """Layers on tokens alone: a model with the target's embedding and LM head."""

  def setup(self):
    super().setup()
    self.final_norm = Norm(self.config)

  def __call__(self, x_btd, positions_bt, cache=None, mask=None, **arguments):
    """Returns the normed stream, [B, T, D], and the cache: see `EagleLayer`."""
    streams, cache = self.run(x_btd, positions_bt, cache, mask, **arguments)
    return self.final_norm(streams[-1]), cache

  def text(self, embedded_btd, before_btd):
    """Returns the layers' input at tokens, [B, T, D]: their embeddings."""
    return embedded_btd


class PublishedEagleLayer(EagleLayer):
  """EAGLE's layer in the form of the authors' published weights.

  It has a bias after fusing and no norm before attention, and it never sees the
  pair of the text's first token, before which there is no feature.
  """

  def block(self, layer):
    return Block(self.config, has_attention_norm=False)

  def setup(self):
    super().setup()
    self.fuse_bias = self.param(
      'fuse_bias', nn.initializers.zeros, (self.config.width,)
    )

  def __call__(self, x_btd, positions_bt, cache=None, mask=None, **arguments):
    num_slots = x_btd.shape[1] if cache is None else cache.capacity
    mask = without_first_pair(mask, positions_bt, num_slots)
    return super().__call__(x_btd, positions_bt, cache, mask, **arguments)

  def text(self, embedded_btd, before_btd):
    dtype = float16.wide(self.config.dtype)
    bias = self.fuse_bias.astype(dtype)[None, None]
    return super().text(embedded_btd, before_btd) + bias


class MTPLayer(EagleLayer):
  """Module of multi-token prediction (DeepSeek-V3, 2412.19437, section 2.2).

  It norms the token's embedding and the feature before it, and its output. It
  continues from its normed outputs, which the target's LM head reads too. Like
  `PublishedEagleLayer`, it never sees the pair of the text's first token.

  Attributes:
    taps: () reads the output of the target's final norm (DeepSeek-V3), and (L,)
      the target's residual stream before that norm (MiMo).
  """

  taps: tuple[int, ...] = ()

  def setup(self):
    super().setup()
    self.token_norm = Norm(self.config)
    self.feature_norm = Norm(self.config)
    self.final_norm = Norm(self.config)

  def __call__(self, x_btd, positions_bt, cache=None, mask=None, **arguments):
    num_slots = x_btd.shape[1] if cache is None else cache.capacity
    mask = without_first_pair(mask, positions_bt, num_slots)
    x_btd, cache = super().__call__(
      x_btd, positions_bt, cache, mask, **arguments
    )
    return self.final_norm(x_btd), cache

  def text(self, embedded_btd, before_btd):
    normed_btd = self.token_norm(embedded_btd)
    return super().text(normed_btd, self.feature_norm(before_btd))


@struct.dataclass
class EagleState:
  """State of drafters with EAGLE's layer, or with other layers on features.

  Attributes:
    cache: pairs with the target's features, up to the root. Entries written
      while drafting are overwritten.
    hidden: [B, G, D], the layer's outputs at the root and the masks after it.
  """

  cache: KVCache
  hidden: jax.Array


@struct.dataclass
class EagleDrafter(features.FeatureDrafter):
  """Drafter of features one by one, in one pass of the layer per depth.

  The pass of depth 1 runs in `commit`, which feeds the emitted tokens with the
  target's features. The accepted length is 8 to 15 % smaller with predicted
  features instead.
  """

  def init(self, tokens_bp, length_b, no_feature_b1f, capacity):
    # A dynamic tree is chosen from more nodes than it has.
    capacity += max(0, self.tree.num_fed - self.tree.size)
    cache = self.module.init_cache(self.params, tokens_bp.shape[0], capacity)
    return before_prompts(self, cache, tokens_bp, no_feature_b1f)

  resume = Drafter.resume

  def prefill(self, state, tokens_bc, features_bcf, start_b, length_b):
    before_bcd = self.read(features_bcf[:, :-1])
    hidden_bcd, cache = feed_text(
      self, state.cache, tokens_bc, before_bcd, start_b
    )
    root_b = features.within(length_b - 1 - start_b, tokens_bc.shape[1])
    return EagleState(cache, features.at(hidden_bcd, root_b))

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    root_b = length_b - 1

    def feed(carry, level):
      """Feeds a level's nodes with the features predicted at their parents."""
      cache, hidden_bwd = carry
      where = level.attention(root_b, cache.capacity)
      if self.tree.is_chain:  # a causal mask is cheaper
        where = {'positions': where['positions']}
      hidden_bwd, cache = feed_pairs(
        self, cache, level.tokens, level.of_parents(hidden_bwd), **where
      )
      return (cache, hidden_bwd), self.logits(hidden_bwd)

    draft, (cache, _) = growth.grow(
      self.tree,
      self.law,
      sampling,
      root_of(tokens_bs, length_b),
      self._numbers(keys_b, length_b),
      self.logits(state.hidden),
      feed,
      (state.cache, state.hidden),
      least_confidence=self.least_confidence,
    )
    return draft, state.replace(cache=cache)

  def commit(self, state, draft, verdict, root_b, scored):
    tokens_bt = emitted_tokens(draft, verdict)
    before_btd = self.read(features_before(verdict, scored.features))
    hidden_btd, cache = feed_text(
      self, state.cache, tokens_bt, before_btd, root_b + 1
    )
    return EagleState(cache, features.at(hidden_btd, verdict.num_accepted))


def before_prompts(drafter, cache, tokens_bp, no_feature_b1f) -> EagleState:
  """Returns an empty state, with zeros in place of the layer's outputs."""
  no_features_b2f = jnp.repeat(no_feature_b1f, 2, axis=1)
  first_b = jnp.zeros((len(tokens_bp),), jnp.int32)
  hidden = jax.eval_shape(
    lambda state, *chunk: drafter.prefill(state, *chunk).hidden,
    EagleState(cache, None),
    tokens_bp[:, :1],
    no_features_b2f,
    first_b,
    first_b + 1,
  )
  return EagleState(cache, jnp.zeros(hidden.shape, hidden.dtype))


def feed_text(drafter, cache, tokens_bt, before_btd, start_b):
  """Feeds T pairs from position `start`; returns outputs and cache."""
  positions_bt = spans(start_b, tokens_bt.shape[1])
  return feed_pairs(drafter, cache, tokens_bt, before_btd, positions_bt)


def feed_pairs(drafter, cache, tokens_bt, before_btd, positions, **where):
  """Feeds T tokens and the features before them; returns outputs and cache."""
  embedded_btd = drafter.embed(tokens_bt, positions)
  x_btd = drafter.apply(embedded_btd, before_btd, method='text')
  return drafter.apply(x_btd, positions, cache, **where)


def features_before(verdict, hidden_bnd):
  """Returns the features before the emitted tokens: [B, depth + 1, D]."""
  path_bt = jnp.maximum(verdict.path, 0)
  return jnp.take_along_axis(hidden_bnd, path_bt[:, :, None], axis=1)


def without_first_pair(mask_bts, positions_bt, num_slots: int):
  """Returns a mask [B, T, S] in which only the first position sees slot 0.

  Slot 0 has the text's first token without a feature, and published layers
  never saw such a pair. Position 0 keeps it, as its only pair.
  """
  if mask_bts is None:
    mask_bts = attention.causal_mask(positions_bt, num_slots)
  has_feature_s = jnp.arange(num_slots, dtype=jnp.int32) > 0
  is_first_bt = positions_bt == 0
  return mask_bts & (has_feature_s[None, None, :] | is_first_bt[:, :, None])
