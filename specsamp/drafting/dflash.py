"""DFlash (2602.06036): a block in one pass, on the target's features.

A block is the root and masks after it, which all see each other. The output at
mask i proposes the i-th token after the root. In each layer the block also
attends to the text before the root, in the form of the target's features, fused
from several depths and normed. Every layer computes keys and values of these
features, and no layer changes the features. Only these keys and values are kept
from round to round; accepted tokens return as features of the target's pass.

Published heads may have layers with a window. Such a layer sees the end of the
text, and usually no later masks.
"""

import dataclasses
from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.drafting.drafter import Drafter, root_of
from specsamp.drafting.eagle import (
  EagleState,
  before_prompts,
  features_before,
)
from specsamp.drafting.features import (
  LMHead,
  OnePassDrafter,
  draft_rows,
  within,
)
from specsamp.models import TransformerConfig, float16, kernels
from specsamp.models.transformer import Layers, Norm


def spread_taps(num_layers: int, count: int) -> tuple[int, ...]:
  """Returns the layers that the authors' drafters tap: 2, 10, .., 34 of 36.

  A target of few layers may have fewer than `count`.
  """
  if count == 1:
    return (num_layers // 2 + 1,)
  first = min(2, num_layers)
  last = max(num_layers - 2, first)
  taps = np.linspace(first, last, count).round().astype(int)
  return tuple(sorted(set(taps.tolist())))


class DFlashLayers(Layers):
  """Layers on blocks, with features of the text as context.

  Attributes:
    config: configuration of the layers. They norm queries and keys like Qwen3.
      No other norm of the layers is applied to the context.
    block_size: number of tokens in a block, the root and its masks. It is fixed
      by training, because masks see the masks after them.
    taps: layers of the target whose inputs are read; L is the last one's
      output.
    mask_token: token whose embedding in the target is read at masks; None for a
      trained embedding.
    drafts_at_root: True if the output at the root proposes the first token
      after it, and the output at mask i token i + 1.
    windows_end_at_root: True if a layer's window W is the last W tokens before
      the root for the whole block, as in speculators. Otherwise it is W
      positions that end with the query's, as in the authors' and SpecForge's
      training.
    causal_windows: True if layers with a window see no later masks. The other
      layers always see them.
    draft_vocab: K, number of tokens that it can draft with a separate LM head;
      0 uses the target's and drafts all tokens.
  """

  block_size: int
  taps: tuple[int, ...]
  mask_token: int | None = None
  drafts_at_root: bool = False
  windows_end_at_root: bool = False
  causal_windows: bool = True
  draft_vocab: int = 0

  @classmethod
  def for_target(
    cls,
    target: TransformerConfig,
    ahead: int,
    num_layers: int,
    taps: Sequence[int] | None = None,
  ):
    """Returns the module for a target, with `ahead` masks.

    By default it has as many taps as layers, spread evenly.
    """
    if taps is None:
      taps = spread_taps(target.num_layers, num_layers)
    config = dataclasses.replace(target.for_drafter(num_layers), qk_norm=True)
    return cls(config, ahead + 1, tuple(taps))

  @property
  def ahead(self) -> int:
    return self.block_size - (not self.drafts_at_root)

  @property
  def windows(self) -> tuple[int, ...]:
    return self.config.windows

  def setup(self):
    super().setup()
    c = self.config
    width = len(self.taps) * c.width
    self.fuse = self.param(
      'fuse', nn.initializers.normal(width**-0.5), (c.width, width)
    )
    self.context_norm = Norm(c)
    self.final_norm = Norm(c)
    if self.mask_token is None:
      self.mask_embedding = self.param(
        'mask_embedding', nn.initializers.normal(1), (1, c.width)
      )
    if self.draft_vocab:
      self.lm_head = LMHead(c, self.draft_vocab)
      # Row of each token in the LM head, or one past the last.
      self.draft_rows = draft_rows(self)

  def __call__(self, x_btd, context_bcd, positions, cache=None, **where):
    """Returns the normed stream, [B, T, D], and the updated cache.

    Args:
      x_btd: blocks from `embedded_blocks`.
      context_bcd: context from `context`, in the slots before those of x.
      positions: int [B, C + T], of context and blocks.
      cache: see `Transformer`.
      **where: see `Layers.run`; the mask is that of `block_masks`.
    """
    streams, cache = self.run(
      x_btd, positions, cache, context=context_bcd, **where
    )
    return self.final_norm(streams[-1]), cache

  def context(self, tapped_bte):
    """Returns the context of the layers, [B, T, D], from features."""
    dtype = self.config.dtype
    return self.context_norm(kernels.project(tapped_bte, self.fuse, dtype))

  def after(self, hidden_btd, embedded_btd):
    """Returns the LM head's input, [B, T, D], for outputs of `__call__`.

    `embedded` are the embeddings of the tokens before the proposed ones. Only
    subclasses read them.
    """
    return hidden_btd

  def logits(self, hidden_btd):
    """Returns logits of its LM head for the target's tokens: [B, T, V]."""
    return kernels.spread_rows(self.lm_head(hidden_btd), self.draft_rows)

  def init_params(self, key):
    """Returns random parameters, a nested dict of arrays."""

    def call(module):
      c = self.config
      tapped = jnp.zeros((1, 1, len(self.taps) * c.width), c.dtype)
      x = jnp.zeros((1, 1, c.width), float16.wide(c.dtype))
      positions = jnp.zeros((1, 2), jnp.int32)
      mask = jnp.ones((1, 1, 2), bool)
      hidden, _ = module(x, module.context(tapped), positions, mask=mask)
      hidden = module.after(hidden, x)
      return module.logits(hidden) if self.draft_vocab else hidden

    return nn.init(call, self)(key)['params']


def embedded_blocks(module, params, target_head, root_bm, tokens_bm):
  """Returns the inputs of M blocks of each row, [B, M K, D], and positions.

  The module has K tokens per block; `root_bm` and `tokens_bm` are positions and
  tokens of the roots.
  """
  at_k = np.arange(module.block_size, dtype=np.int32)
  embedded_bmd = target_head.embed(tokens_bm)
  if module.mask_token is None:
    mask_11d = params['mask_embedding'][None].astype(embedded_bmd.dtype)
  else:
    mask_11d = target_head.embed(np.full((1, 1), module.mask_token, np.int32))
  is_root_k = (at_k == 0)[None, None, :, None]
  x_bmkd = jnp.where(is_root_k, embedded_bmd[:, :, None], mask_11d[:, :, None])
  positions_bmk = root_bm[:, :, None] + at_k[None, None]
  batch, width = len(root_bm), x_bmkd.shape[-1]
  positions_bq = positions_bmk.reshape(batch, -1)
  x_bqd = x_bmkd.reshape(batch, -1, width)
  return x_bqd + target_head.place(positions_bq), positions_bq


def block_masks(module, root_bq, at_q, text_bs, at_bqs):
  """Returns the mask of the layers of each window, bool [B, Q, S].

  Axes of one row may be 1. Drafting and training see the same.

  Args:
    module: `DFlashLayers`.
    root_bq: int [B, Q], positions of the roots of Q queries.
    at_q: int [Q], places of the queries in their blocks.
    text_bs: int [B, S], position of the text in each slot. Slots without text
      have one behind every root.
    at_bqs: int [B, Q, S], place of each slot in the query's block, -1 outside.

  Returns:
    A dict with a mask for each window; 0 is the whole sequence.
  """
  at_1q1, root_bq1 = at_q[None, :, None], root_bq[:, :, None]
  is_text_bqs = text_bs[:, None] < root_bq1
  masks = {0: is_text_bqs | (at_bqs >= 0)}
  for window in {*module.windows} - {0}:
    first_bq1 = root_bq1 - window
    if not module.windows_end_at_root:
      first_bq1 = first_bq1 + 1 + at_1q1
    is_block_bqs = at_bqs >= 0
    if module.causal_windows:
      is_block_bqs = is_block_bqs & (at_bqs <= at_1q1)
    is_seen_bqs = is_text_bqs & (text_bs[:, None] >= first_bq1)
    masks[window] = is_seen_bqs | is_block_bqs
  return masks


@struct.dataclass
class DFlashDrafter(OnePassDrafter):
  """Drafter of a block, in one pass per round.

  The cache in its state holds the text before the root.
  """

  def init(self, tokens_bp, length_b, no_feature_b1f, capacity):
    # A block comes after the longest draft.
    capacity = -(-(capacity + self.module.block_size) // 16) * 16
    batch = tokens_bp.shape[0]
    cache = self.module.init_cache(self.params, batch, capacity)
    return before_prompts(self, cache, tokens_bp, no_feature_b1f)

  resume = Drafter.resume

  def prefill(self, state, tokens_bc, features_bcf, start_b, length_b):
    root_b = within(length_b - 1 - start_b, tokens_bc.shape[1])
    return self._pass(
      state.cache,
      features_bcf[:, 1:],
      start_b,
      start_b + root_b,
      root_of(tokens_bc, root_b + 1),
    )

  def logits(self, hidden_btd):
    if not self.module.draft_vocab:
      return self.target_head.logits(hidden_btd)
    return self.target_head.widen(self.apply(hidden_btd, method='logits'))

  def commit(self, state, draft, verdict, root_b, scored):
    return self._pass(
      state.cache,
      features_before(verdict, scored.features),
      root_b,
      root_b + 1 + verdict.num_accepted,
      verdict.next_token[:, None],
    )

  def _pass(self, cache, tapped_bte, start_b, root_b, token_b1) -> EagleState:
    """Writes T features from position `start`, and drafts a block after them.

    Features from the root on are noise. Nothing sees them, and the next pass
    overwrites them and the block.
    """
    length, size = tapped_bte.shape[1], self.module.block_size
    x_bkd, block_bk = embedded_blocks(
      self.module, self.params, self.target_head, root_b[:, None], token_b1
    )
    text_bt = start_b[:, None] + np.arange(length, dtype=np.int32)[None]
    slots_s = jnp.arange(cache.capacity, dtype=jnp.int32)[None]
    # Slots from the block's root on.
    at_bs = slots_s - (start_b[:, None] + length)
    at_bs = jnp.where(at_bs < size, jnp.maximum(at_bs, -1), -1)
    masks = block_masks(
      self.module,
      jnp.repeat(root_b[:, None], size, axis=1),
      np.arange(size, dtype=np.int32),
      slots_s,
      at_bs[:, None],
    )
    out_bkd, cache = self.apply(
      x_bkd,
      self.apply(tapped_bte, method='context'),
      jnp.concatenate([text_bt, block_bk], axis=1),
      cache,
      mask=masks,
      start=start_b,
    )
    first = size - self.module.ahead
    return EagleState(cache, out_bkd[:, first : first + self.tree.depth])
