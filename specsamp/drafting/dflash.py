"""DFlash (2602.06036): a block in one pass, on the target's features.

A block is the root and masks after it, which all see each other. The output at
mask i proposes the i-th token after the root. In each layer the block also
attends to the text before the root, in the form of the target's features, fused
from several depths and normed. Every layer computes keys and values of these
features, and no layer changes the features. Only these keys and values are kept
from round to round; accepted tokens return as features of the target's pass.
"""

import dataclasses
from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.drafting.drafter import root_of
from specsamp.drafting.eagle import EagleState, features_before
from specsamp.drafting.features import OnePassDrafter
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
  """

  block_size: int
  taps: tuple[int, ...]
  mask_token: int | None = None

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
    return self.block_size - 1

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

  def __call__(self, x_btd, context_bcd, positions, cache=None, **where):
    """Returns the normed stream, [B, T, D], and the updated cache.

    Args:
      x_btd: blocks from `embedded_blocks`.
      context_bcd: context from `context`, in the slots before those of x.
      positions: int [B, C + T], of context and blocks.
      cache: see `Transformer`.
      **where: see `Transformer`; a mask [B, T, S] is required.
    """
    streams, cache = self.run(
      x_btd, positions, cache, context=context_bcd, **where
    )
    return self.final_norm(streams[-1]), cache

  def context(self, tapped_bte):
    """Returns the context of the layers, [B, T, D], from features."""
    dtype = self.config.dtype
    return self.context_norm(kernels.project(tapped_bte, self.fuse, dtype))

  def init_params(self, key):
    """Returns random parameters, a nested dict of float32 arrays."""

    def call(module):
      c = self.config
      tapped = jnp.zeros((1, 1, len(self.taps) * c.width), c.dtype)
      x = jnp.zeros((1, 1, c.width), float16.wide(c.dtype))
      positions = jnp.zeros((1, 2), jnp.int32)
      mask = jnp.ones((1, 1, 2), bool)
      return module(x, module.context(tapped), positions, mask=mask)

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


@struct.dataclass
class DFlashDrafter(OnePassDrafter):
  """Drafter of a block, in one pass per round.

  The cache in its state holds the text before the root.
  """

  def init(self, tokens_bp, length_b, features_bpd, capacity):
    # A block comes after the longest draft.
    capacity = -(-(capacity + self.module.block_size) // 16) * 16
    batch = tokens_bp.shape[0]
    cache = self.module.init_cache(self.params, batch, capacity)
    first_b = jnp.zeros_like(length_b)
    root_b1 = root_of(tokens_bp, length_b)
    return self._pass(cache, features_bpd, first_b, length_b - 1, root_b1)

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
    first_b1 = start_b[:, None] + length  # slot of the block's root
    seen_bs = (slots_s < root_b[:, None]) | (
      (slots_s >= first_b1) & (slots_s < first_b1 + size)
    )
    out_bkd, cache = self.apply(
      x_bkd,
      self.apply(tapped_bte, method='context'),
      jnp.concatenate([text_bt, block_bk], axis=1),
      cache,
      mask=jnp.repeat(seen_bs[:, None], size, axis=1),
      start=start_b,
    )
    return EagleState(cache, out_bkd[:, 1 : 1 + self.tree.depth])
