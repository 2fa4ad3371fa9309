"""EAGLE-3 (Li et al. 2503.01840): a layer that reads its target at depths.

Of the text it reads the target's residual stream low, in the middle and high
up, fused into one feature; while it drafts, its own outputs take the features'
place, which it was trained with, and it need not predict any feature. It drafts
tokens of a vocabulary of its own, the most frequent ones of the target's.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

import flax.linen as nn
import jax.numpy as jnp
from flax import struct

from specsamp.drafting import features
from specsamp.drafting.eagle import EagleDrafter, without_first_pair
from specsamp.errors import UserError
from specsamp.models import TransformerConfig, attention, float16, kernels
from specsamp.models.transformer import MLP, Block, Layers, Norm
from specsamp.sharding import lookup
from specsamp.sharding.rules import constrain

_NUM_TAPS = 3
_FEWEST_LAYERS = 6


class PairBlock(nn.Module):
  """A block that reads a token's embedding and a feature, and adds to that.

  Attributes:
    config: its shape.
    adds_to_normed: whether it adds to the feature as its norm leaves it.
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
    both = [self.attention_norm(embedded), normed]
    attended, cache = self.attention(
      jnp.concatenate(both, axis=-1),
      positions,
      start,
      mask,
      slot_positions,
      cache,
    )
    x = x + attended
    return x + self.mlp(self.mlp_norm(x)), cache


class Eagle3Layer(Layers):
  """The layer with its input and its LM head.

  Attributes:
    config: of its layers, of which the first reads pairs, and of the target's
      vocabulary.
    draft_vocab: tokens that it can draft.
    has_embedding: whether it embeds tokens itself; else the target does.
    taps: layers of the target whose inputs it fuses; L is the last one's
      output. None is those of the paper. () reads what comes out of the
      target's final norm, and fuses nothing.
    target_width: of the target's features, 0 if it is its own.
    tap_norm: over all that it fuses, or over that of each tap.
    adds_to_normed: see `PairBlock`.
    feeds_normed: whether it goes on from its outputs as the final norm leaves
      them (EAGLE-3.1).
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
  ahead: ClassVar[None] = None  # it drafts as deep as it is asked for

  @classmethod
  def of(
    cls,
    target: TransformerConfig,
    ahead: int,
    num_layers: int,
    draft_vocab: int = 0,
    has_embedding: bool = False,
    taps: Sequence[int] | None = None,
  ):
    """The module for a target.

    Args:
      target: its shape.
      ahead: not read, it drafts as deep as it is asked for.
      num_layers: of the drafter.
      draft_vocab: as below, 0 for all tokens of the target.
      has_embedding: as below.
      taps: as below.

    Raises:
      UserError: no numbers, more tokens than the target has, or too few layers
        to tap.
    """
    most = target.num_tokens
    if type(draft_vocab) is not int or not 0 <= draft_vocab <= most:
      raise UserError(
        f'draft_vocab: got {draft_vocab!r}, expected at most the {most} tokens '
        'of the target, or 0 for all'
      )
    if type(has_embedding) is not bool:
      raise UserError(f'has_embedding: got {has_embedding!r}, expected a bool')
    if taps is None:
      taps = default_taps(target.num_layers)
    config = dataclasses.replace(
      target,
      num_layers=num_layers,
      vocab_size=target.num_tokens,  # without rows that are no tokens
      padding=0,
    )
    return cls(
      config, draft_vocab or most, has_embedding, features.as_taps(taps)
    )

  @property
  def num_taps(self) -> int:
    return _NUM_TAPS if self.taps is None else len(self.taps)

  @property
  def tapped_width(self) -> int:
    """Of what it reads of the target at a token."""
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
    # By token: its row in the LM head, or one past the last.
    self.draft_rows = self.param(
      'draft_rows', lambda _: jnp.zeros((c.vocab_size,), jnp.int32)
    )
    if self.has_embedding:
      self.embedding = self.param(
        'embedding', nn.initializers.normal(1), (c.vocab_size, c.width)
      )

  def __call__(self, pairs_bte, positions_bt, cache=None, mask=None, **where):
    """The stream after the layer, [B, T, D], and the updated cache.

    Args:
      pairs_bte: what `text` returns.
      positions_bt: int [B, T].
      cache: this and the others, see `Transformer`.
    """
    num_slots = pairs_bte.shape[1] if cache is None else cache.capacity
    mask = without_first_pair(mask, positions_bt, num_slots)
    streams, cache = self.run(pairs_bte, positions_bt, cache, mask, **where)
    return self._out(streams[-1]), cache

  def step(self, pairs_bme, positions_bm, roots_bm, entries):
    """One token further from each of M places: the stream, and the entries.

    What `__call__` computes of a token drafted after a place of a text, if the
    cache holds the text up to there and what was drafted since.

    Args:
      pairs_bme: what `text` returns of the tokens beside the outputs of the
        step before.
      positions_bm: int [B, M], of the tokens.
      roots_bm: int [B, M], the places: the last slots of the text that are
        seen.
      entries: `attention.PrivateEntries`, one a layer.
    """
    num_slots = entries[0].slots[0].shape[2]
    mask = without_first_pair(
      attention.causal_mask(roots_bm, num_slots), positions_bm, num_slots
    )
    slots_1s = jnp.arange(num_slots, dtype=jnp.int32)[None]
    x_bmd, updated = constrain(pairs_bme, 'batch', None, None), []
    for layer, entry in zip(self.layers, entries, strict=True):
      x_bmd, entry = layer(x_bmd, positions_bm, None, mask, slots_1s, entry)
      updated.append(entry)
    return self._out(x_bmd), updated

  def _out(self, x_btd):
    """The stream as it goes on from it."""
    if self.feeds_normed:
      return self.final_norm(x_btd).astype(x_btd.dtype)
    return x_btd

  def fused(self, tapped_bte):
    """A feature of what the target holds at its taps: [B, T, D]."""
    if not self.num_taps:
      return tapped_bte.astype(float16.wide(self.config.dtype))
    if self.tap_norm != 'none':
      tapped_bte = self._normed(tapped_bte)
    return kernels.project(tapped_bte, self.fuse, self.config.dtype)

  def _normed(self, tapped_bte):
    """What it fuses, each tap or all of it over its root mean square."""
    c, shape = self.config, tapped_bte.shape
    parts = self.num_taps if self.tap_norm == 'each' else 1
    x_btpd = tapped_bte.astype(jnp.float32).reshape(*shape[:2], parts, -1)
    x_btpd = attention.rms(x_btpd, jnp.ones(x_btpd.shape[-1]), c.norm_epsilon)
    scale_e = self.tap_scale.astype(jnp.float32)
    return (x_btpd.reshape(shape) * scale_e[None, None]).astype(c.dtype)

  def text(self, embedded_btd, before_btd):
    """What it reads at tokens: [B, T, 2 D].

    Args:
      embedded_btd: the tokens.
      before_btd: features of the tokens before them, or the outputs there.
    """
    return jnp.concatenate([embedded_btd, before_btd], axis=-1)

  def embed(self, tokens_bt):
    """[B, T, D]; of a layer that embeds tokens itself."""
    x_btd = lookup.rows(self.embedding, tokens_bt)
    return x_btd.astype(float16.wide(self.config.dtype))

  def normed(self, x_btd):
    """Returns what the LM head reads: [B, T, D]."""
    return x_btd if self.feeds_normed else self.final_norm(x_btd)

  def row_logits(self, x_btd):
    """Logits of the tokens that it can draft, by row: float32 [B, T, K]."""
    return self.lm_head(self.normed(x_btd))

  def row_tokens(self):
    """The token of each row: int [K]."""
    tokens_v = jnp.arange(len(self.draft_rows), dtype=jnp.int32)
    rows_k = jnp.zeros(self.draft_vocab, jnp.int32)
    return rows_k.at[self.draft_rows].set(tokens_v, mode='drop')

  def logits(self, x_btd):
    """Float32 [B, T, V]; -1e30 of tokens that it cannot draft."""
    logits_btk = self.row_logits(x_btd)
    # Few rows, of which every shard then takes what its tokens need.
    logits_btk = constrain(logits_btk, 'batch', None, None)
    logits_btk = jnp.pad(
      logits_btk, ((0, 0), (0, 0), (0, 1)), constant_values=-1e30
    )
    return jnp.take(logits_btk, self.draft_rows, axis=-1, mode='clip')

  def init_params(self, key):
    """Random parameters, a nested dict of arrays."""

    def all_of_it(module):
      c = self.config
      token = jnp.zeros((1, 1), jnp.int32)
      before = module.fused(jnp.zeros((1, 1, module.tapped_width), c.dtype))
      x, _ = module(module.text(before, before), token)
      return module.logits(x) if self.has_lm_head else module.normed(x)

    return nn.init(all_of_it, self)(key)['params']


def default_taps(num_layers: int) -> tuple[int, int, int]:
  """The layers of a target of so many whose inputs the authors' heads read.

  Raises:
    UserError: it has too few.
  """
  if num_layers < _FEWEST_LAYERS:
    raise UserError(
      f'eagle3: got a target of {num_layers} layers, expected at least '
      f'{_FEWEST_LAYERS}'
    )
  return 2, num_layers // 2, num_layers - 3


class ReadsTaps:
  """What drafters from an `Eagle3Layer` have in common."""

  @classmethod
  def fewest_layers(cls, module: Eagle3Layer) -> int:
    if module.taps is None:
      return _FEWEST_LAYERS
    return max(module.taps, default=1)

  @property
  def taps(self) -> tuple[int, ...]:
    """Layers of the target whose input it reads (section 3.1)."""
    if self.module.taps is not None:
      return self.module.taps
    return default_taps(self.target_head.transformer.config.num_layers)

  def read(self, features_btd):
    return self._of_layer('fused', features_btd)

  def embed(self, tokens_bt, positions_bt):
    if self.module.has_embedding:
      return self._of_layer('embed', tokens_bt)
    return self.target_head.embed(tokens_bt)

  def logits(self, hidden_btd):
    if not self.module.has_lm_head:
      return self.target_head.logits(self._of_layer('normed', hidden_btd))
    return self.target_head.widen(self._of_layer('logits', hidden_btd))

  def _of_layer(self, method: str, array):
    return self.module.apply({'params': self.params}, array, method=method)


@struct.dataclass
class Eagle3Drafter(ReadsTaps, EagleDrafter):
  """Drafts token by token from an `Eagle3Layer`, as `EagleDrafter` does."""
