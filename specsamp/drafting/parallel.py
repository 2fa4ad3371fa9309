"""ParallelSpec (Xiao et al. 2410.05589): all tokens of a draft in one pass.

Masks stand behind the text: the layer's output at the root proposes the token
after it, that at mask j the token j further on. Its distributions depend on
what was committed and not on each other's tokens, which is no less exact: they
are the ones that its tokens are drawn from.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.drafting import features, growth
from specsamp.drafting.drafter import emitted_tokens, root_of
from specsamp.drafting.eagle import (
  DraftLayers,
  EagleLayer,
  EagleState,
  features_before,
)
from specsamp.models import TransformerConfig, float16
from specsamp.models.transformer import Norm


class Masked:
  """What layers with masks have in common; `num_masks` is a field of each."""

  @classmethod
  def of(cls, target: TransformerConfig, ahead: int, num_layers: int):
    return cls(dataclasses.replace(target, num_layers=num_layers), ahead - 1)

  @property
  def ahead(self) -> int:
    return self.num_masks + 1

  def setup(self):
    super().setup()
    shape = (self.num_masks, self.config.width)
    self.mask_embedding = self.param(
      'mask_embedding', nn.initializers.normal(1), shape
    )

  def masks(self, index_k, places_bkd):
    """What it reads at masks: [B, K, D], or [1, K, D].

    Args:
      index_k: int [K], which masks, from 0.
      places_bkd: what is added for their places, [B, K, D] or 0.
    """
    dtype = float16.wide(self.config.dtype)
    embedded_kd = self.mask_embedding[index_k].astype(dtype)
    return embedded_kd[None] + places_bkd


class EagleParallelLayer(Masked, EagleLayer):
  """EAGLE's layer with masks, all beside one feature of their own.

  Attributes:
    num_masks: k, the tokens that it drafts in one pass beside the first.
  """

  num_masks: int

  def setup(self):
    super().setup()
    self.mask_feature = self.param(
      'mask_feature', nn.initializers.normal(1), (self.config.width,)
    )

  def masks(self, index_k, places_bkd):
    embedded_bkd = super().masks(index_k, places_bkd)
    feature = self.mask_feature.astype(embedded_bkd.dtype)[None, None]
    return self.text(
      embedded_bkd, jnp.broadcast_to(feature, embedded_bkd.shape)
    )


class MedusaParallelLayer(Masked, DraftLayers):
  """Layers on the text alone, with masks, that end in a norm of their own.

  Attributes:
    num_masks: k, the tokens that it drafts in one pass beside the first.
  """

  num_masks: int

  def setup(self):
    super().setup()
    self.final_norm = Norm(self.config)

  def __call__(self, x_btd, positions_bt, cache=None, mask=None, **arguments):
    """The stream after the layers, normed, [B, T, D], and the updated cache.

    Arguments: see `EagleLayer`.
    """
    streams, cache = self.run(x_btd, positions_bt, cache, mask, **arguments)
    return self.final_norm(streams[-1]), cache

  def text(self, embedded_btd, before_btd):
    """What it reads at tokens, [B, T, D]: nothing of what is before them."""
    return embedded_btd


@struct.dataclass
class OnePassDrafter(features.FeatureDrafter):
  """Drafts a tree from what one pass left: an output for every depth.

  The pass is made in `commit`, after what was emitted.
  """

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    draft = growth.grow_at_once(
      self.tree,
      self.law,
      sampling,
      root_of(tokens_bs, length_b),
      self._uniforms(keys_b, length_b),
      # Of a shallower tree than the pass was made for, fewer.
      self.logits(state.hidden[:, : self.tree.depth]),
      is_confidence=self.least_confidence is not None,
    )
    return draft, state


@struct.dataclass
class ParallelDrafter(OnePassDrafter):
  """Drafts from a layer with masks, over the emitted tokens and masks after.

  What the masks wrote is never seen again.
  """

  def init(self, tokens_bp, length_b, features_bpd, capacity):
    batch = tokens_bp.shape[0]
    # Masks stand behind the longest draft.
    capacity = -(-(capacity + self._num_masks) // 16) * 16
    cache = self.module.init_cache(self.params, batch, capacity)
    before_bpd = features.shifted(self.read(features_bpd))
    first_b = jnp.zeros_like(length_b)
    return self._pass(cache, tokens_bp, before_bpd, first_b, length_b - 1)

  def commit(self, state, draft, verdict, root_b, scored):
    return self._pass(
      state.cache,
      emitted_tokens(draft, verdict),
      self.read(features_before(verdict, scored.features)),
      root_b + 1,
      root_b + 1 + verdict.num_accepted,
    )

  def masks(self, index_k, positions_bk):
    """What is read at these masks: [B, K, E], or [1, K, E]."""
    places_bkd = self.target_head.place(positions_bk)
    return self._apply(index_k, places_bkd, method='masks')

  @property
  def _num_masks(self) -> int:
    return self.tree.depth - 1

  def _apply(self, *args, **kwargs):
    return self.module.apply({'params': self.params}, *args, **kwargs)

  def _pass(self, cache, tokens_bt, before_btd, start_b, root_b) -> EagleState:
    """Feeds T pairs from `start` on, and masks after the one at `root`.

    Pairs past the root are noise, which the next pass writes over.
    """
    length, count = tokens_bt.shape[1], self._num_masks
    index_k = np.arange(count, dtype=np.int32)
    own_bt = start_b[:, None] + np.arange(length, dtype=np.int32)[None, :]
    ahead_bk = root_b[:, None] + 1 + index_k[None, :]

    x_btd = self._apply(
      self.embed(tokens_bt, own_bt), before_btd, method='text'
    )
    if count:
      x_bkd = self.masks(index_k, ahead_bk)
      x_bkd = jnp.broadcast_to(x_bkd, (len(x_btd), *x_bkd.shape[1:]))
      x_btd = jnp.concatenate([x_btd, x_bkd], axis=1)

    slots_s = jnp.arange(cache.capacity, dtype=jnp.int32)[None, None, :]
    text_bts = slots_s <= own_bt[:, :, None]
    mask_b11 = start_b[:, None, None] + length  # slot of the first mask
    to_text = slots_s <= root_b[:, None, None]
    to_masks = (slots_s >= mask_b11) & (
      slots_s <= mask_b11 + index_k[None, :, None]
    )
    out_btd, cache = self._apply(
      x_btd,
      jnp.concatenate([own_bt, ahead_bk], axis=1),
      cache,
      mask=jnp.concatenate([text_bts, to_text | to_masks], axis=1),
      start=start_b,
    )
    at_bg = jnp.concatenate(
      [
        (root_b - start_b)[:, None],
        jnp.broadcast_to(length + index_k[None, :], ahead_bk.shape),
      ],
      axis=1,
    )
    hidden = jnp.take_along_axis(out_btd, at_bg[:, :, None], axis=1)
    return EagleState(cache, hidden)
