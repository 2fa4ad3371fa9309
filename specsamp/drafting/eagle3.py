"""EAGLE-3 (Li et al. 2503.01840): a layer that reads its target at depths.

The layer reads the target's residual stream at a low, a middle and a high
layer, fused into one feature. While it drafts, its outputs replace the
features. It was trained on these, so it need not predict any feature. It drafts
tokens of a reduced vocabulary, the most frequent ones of the target's.

P-EAGLE (2602.01469) is EAGLE-3 with masks: it drafts all tokens in one pass. A
mask is a token of the target's vocabulary with a trained vector in place of
features, both the same at every depth. The two to four layers see the text and
the masks before, but no draft tokens.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

import flax.linen as nn
import jax.numpy as jnp
from flax import struct

from specsamp.drafting import features
from specsamp.drafting.eagle import EagleDrafter, without_first_pair
from specsamp.drafting.parallel import ParallelDrafter
from specsamp.errors import UserError
from specsamp.models import TransformerConfig, attention, float16, kernels
from specsamp.models.transformer import MLP, Block, Layers, Norm
from specsamp.sharding.rules import constrain

_NUM_TAPS = 3
_MIN_LAYERS = 6


class PairBlock(nn.Module):
  """Block that reads a token's embedding and a feature.

  Its residual stream is the feature, normed first if `adds_to_normed`.
  """

  config: TransformerConfig
  adds_to_normed: bool = False

  def setup(self):
    self.attention_norm = Norm(self.config)
    self.feature_norm = Norm(self.config)
    self.attention = attention.Attention(self.config, parts=2)
    self.mlp_norm = Norm(self.config)
    self.mlp = MLP(self.config)

  def __call__(self, pairs, positions, start, mask, slot_positions, cache):
    embedded, x = jnp.split(pairs, 2, axis=-1)
    normed = self.feature_norm(x)
    if self.adds_to_normed:
      x = normed.astype(x.dtype)
    both = jnp.concatenate([self.attention_norm(embedded), normed], axis=-1)
    attended, cache = self.attention(
      both, positions, start, mask, slot_positions, cache
    )
    x = x + attended
    return x + self.mlp(self.mlp_norm(x)), cache


class Eagle3Layer(Layers):
  """EAGLE-3's layers with their input and LM head.

  Attributes:
    config: configuration of the layers and of the target's vocabulary. The
      first layer reads pairs.
    draft_vocab: K, number of tokens that it can draft.
    has_embedding: True if it embeds tokens itself; else the target does.
    taps: layers of the target whose inputs it fuses; L is the last one's
      output. None means the paper's taps. () reads the output of the target's
      final norm, and fuses nothing.
    target_width: width of the target; 0 if it is the width of these layers.
    tap_norm: normalizes all taps together, or each tap.
    adds_to_normed: see `PairBlock`.
    feeds_normed: True if it continues from its normed outputs (EAGLE-3.1).
    has_lm_head: True if it has an LM head; else it uses the target's, and
      drafts all tokens of the target.
  """

  draft_vocab: int
  has_embedding: bool = False
  taps: tuple[int, ...] | None = None
  target_width: int = 0
  tap_norm: Literal['none', 'together', 'each'] = 'none'
  adds_to_normed: bool = False
  feeds_normed: bool = False
  has_lm_head: bool = True
  ahead: ClassVar[None] = None  # it drafts to any depth

  @classmethod
  def for_target(
    cls,
    target: TransformerConfig,
    ahead: int,
    num_layers: int,
    draft_vocab: int = 0,
    has_embedding: bool = False,
    taps: Sequence[int] | None = None,
  ):
    """Returns the module for a target; a `draft_vocab` of 0 is all tokens.

    Raises:
      UserError: the target has too few layers to tap.
    """
    num_tokens = target.num_tokens
    if taps is None:
      taps = default_taps(target.num_layers)
    config = dataclasses.replace(
      target.for_drafter(num_layers),
      vocab_size=num_tokens,  # without rows that are not tokens
      padding=0,
    )
    return cls(config, draft_vocab or num_tokens, has_embedding, tuple(taps))

  @property
  def num_taps(self) -> int:
    return _NUM_TAPS if self.taps is None else len(self.taps)

  @property
  def tapped_width(self) -> int:
    """Width of the target's features at a token."""
    return (self.num_taps or 1) * (self.target_width or self.config.width)

  def setup(self):
    c = self.config
    self.layers = [PairBlock(c, self.adds_to_normed)] + [
      Block(c) for _ in range(1, c.num_layers)
    ]
    width = self.tapped_width
    if self.num_taps:
      self.fuse = self.param(
        'fuse', nn.initializers.normal(width**-0.5), (c.width, width)
      )
    if self.tap_norm != 'none':
      self.tap_scale = self.param('tap_scale', nn.initializers.ones, (width,))
    self.final_norm = Norm(c)
    if self.has_lm_head:
      self.lm_head = features.LMHead(c, self.draft_vocab)
    self.draft_rows = features.draft_rows(self)
    if self.has_embedding:
      self.embedding = self.param(
        'embedding', nn.initializers.normal(1), (c.vocab_size, c.width)
      )

  def __call__(self, pairs_bte, positions_bt, cache=None, mask=None, **where):
    """Returns the stream after the layers, [B, T, D], and the updated cache.

    `pairs_bte` are pairs from `text`. See `Transformer` for other arguments.
    """
    num_slots = pairs_bte.shape[1] if cache is None else cache.capacity
    mask = without_first_pair(mask, positions_bt, num_slots)
    streams, cache = self.run(pairs_bte, positions_bt, cache, mask, **where)
    return self._output(streams[-1]), cache

  def step(self, pairs_bme, positions_bm, roots_bm, entries):
    """Drafts one more token after each of M places of a text, in training.

    It computes the output of `__call__` at that token, for a cache that holds
    the text up to the place and the tokens drafted after it.

    Args:
      pairs_bme: pairs from `text`, with the outputs of the previous step.
      positions_bm: int [B, M], positions of the tokens.
      roots_bm: int [B, M], the places, each the last text position it sees.
      entries: `attention.PrivateEntries` of each layer.

    Returns:
      The stream after the layers, [B, M, D], and the updated entries.
    """
    num_slots = entries[0].slots[0].shape[2]
    mask = attention.causal_mask(roots_bm, num_slots)
    mask = without_first_pair(mask, positions_bm, num_slots)
    slots_1s = jnp.arange(num_slots, dtype=jnp.int32)[None]
    x_bmd, updated = constrain(pairs_bme, 'batch', None, None), []
    for layer, entry in zip(self.layers, entries, strict=True):
      x_bmd, entry = layer(x_bmd, positions_bm, None, mask, slots_1s, entry)
      updated.append(entry)
    return self._output(x_bmd), updated

  def _output(self, x_btd):
    if self.feeds_normed:
      return self.final_norm(x_btd).astype(x_btd.dtype)
    return x_btd

  def fused(self, tapped_bte):
    """Returns the target's taps fused into one feature: [B, T, D]."""
    if not self.num_taps:
      return tapped_bte.astype(float16.wide(self.config.dtype))
    if self.tap_norm != 'none':
      tapped_bte = self._normed(tapped_bte)
    return kernels.project(tapped_bte, self.fuse, self.config.dtype)

  def _normed(self, tapped_bte):
    c, shape = self.config, tapped_bte.shape
    parts = self.num_taps if self.tap_norm == 'each' else 1
    x_btpd = tapped_bte.astype(jnp.float32).reshape(*shape[:2], parts, -1)
    x_btpd = attention.rms(x_btpd, jnp.ones(x_btpd.shape[-1]), c.norm_epsilon)
    scale_e = self.tap_scale.astype(jnp.float32)
    return (x_btpd.reshape(shape) * scale_e[None, None]).astype(c.dtype)

  def text(self, embedded_btd, before_btd):
    """Returns tokens paired with the feature or output before: [B, T, 2 D]."""
    return jnp.concatenate([embedded_btd, before_btd], axis=-1)

  def embed(self, tokens_bt):
    """Returns the tokens' embeddings, [B, T, D], if it has an embedding."""
    return kernels.rows(self.embedding, tokens_bt, self.config.dtype)

  def normed(self, x_btd):
    """Returns the input of the LM head: [B, T, D]."""
    return x_btd if self.feeds_normed else self.final_norm(x_btd)

  def row_logits(self, x_btd):
    """Returns the logits of the LM head's K rows: float32 [B, T, K]."""
    return self.lm_head(self.normed(x_btd))

  def logits(self, x_btd):
    """Returns logits, float32 [B, T, V], -1e30 for tokens it cannot draft."""
    return kernels.spread_rows(self.row_logits(x_btd), self.draft_rows)

  def init_params(self, key):
    """Returns random parameters, a nested dict of arrays."""

    def call(module):
      c = self.config
      token = jnp.zeros((1, 1), jnp.int32)
      before = module.fused(jnp.zeros((1, 1, module.tapped_width), c.dtype))
      x, _ = module(module.text(before, before), token)
      return module.logits(x) if self.has_lm_head else module.normed(x)

    return nn.init(call, self)(key)['params']


def default_taps(num_layers: int) -> tuple[int, int, int]:
  """Returns the layers that the authors' heads tap in a target."""
  if num_layers < _MIN_LAYERS:
    raise UserError(
      f'eagle3: got a target of {num_layers} layers, expected at least '
      f'{_MIN_LAYERS}'
    )
  return 2, num_layers // 2, num_layers - 3


class ReadsTaps:
  """Mix-in of drafters that draft from an `Eagle3Layer`."""

  @property
  def taps(self) -> tuple[int, ...]:
    if self.module.taps is not None:
      return self.module.taps
    return default_taps(self.target_head.transformer.config.num_layers)

  def read(self, features_btd):
    return self.apply(features_btd, method='fused')

  def embed(self, tokens_bt, positions_bt):
    if self.module.has_embedding:
      return self.apply(tokens_bt, method='embed')
    return self.target_head.embed(tokens_bt)

  def logits(self, hidden_btd):
    if not self.module.has_lm_head:
      normed_btd = self.apply(hidden_btd, method='normed')
      return self.target_head.logits(normed_btd)
    return self.target_head.widen(self.apply(hidden_btd, method='logits'))


@struct.dataclass
class Eagle3Drafter(ReadsTaps, EagleDrafter):
  """Drafter with an `Eagle3Layer`, token by token like `EagleDrafter`."""


class PEagleLayers(Eagle3Layer):
  """EAGLE-3's layers with masks.

  Attributes:
    mask_token: token whose embedding is read at masks.
  """

  mask_token: int = 0

  def setup(self):
    super().setup()
    self.mask_hidden = self.param(
      'mask_hidden', nn.initializers.normal(1), (self.tapped_width,)
    )


@struct.dataclass
class PEagleDrafter(ReadsTaps, ParallelDrafter):
  """Drafter with `PEagleLayers`, in one pass per round."""

  def masks(self, index_k, positions_bk):
    shape = (1, len(index_k))
    tokens_1k = jnp.full(shape, self.module.mask_token, jnp.int32)
    dtype = float16.wide(self.module.config.dtype)
    hidden_11e = self.params['mask_hidden'].astype(dtype)[None, None]
    hidden_11d = self.read(hidden_11e)
    return self.apply(
      self.embed(tokens_1k, positions_bk),
      jnp.broadcast_to(hidden_11d, (*shape, hidden_11d.shape[-1])),
      method='text',
    )
