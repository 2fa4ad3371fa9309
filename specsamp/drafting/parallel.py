"""ParallelSpec (Xiao et al. 2410.05589): all tokens of a draft in one pass.

Masks follow the text: the layer's output at the root proposes the next token,
its output at mask j the token j places further. The distributions depend on the
committed tokens only, not on each other's draft tokens. Verification is exact
nevertheless, because the draft tokens are drawn from these distributions.
"""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.drafting import eagle, features
from specsamp.drafting.drafter import Drafter, emitted_tokens
from specsamp.drafting.eagle import EagleState
from specsamp.models import TransformerConfig, float16


class MaskedLayers(eagle.DraftLayers):
  """Base of layers with masks.

  Attributes:
    num_masks: number of tokens that one pass drafts after the first.
  """

  num_masks: int = 1

  @classmethod
  def for_target(
    cls,
    target: TransformerConfig,
    ahead: int,
    num_layers: int,
    draft_vocab: int = 0,
  ):
    config = target.for_drafter(num_layers)
    return cls(config, draft_vocab, num_masks=ahead - 1)

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
    """Returns the layers' input at masks: [B, K, D], or [1, K, D].

    `places_bkd` are the masks' position embeddings, or 0.
    """
    dtype = float16.wide(self.config.dtype)
    embedded_kd = self.mask_embedding[index_k].astype(dtype)
    return embedded_kd[None] + places_bkd


class EagleParallelLayer(MaskedLayers, eagle.EagleLayer):
  """EAGLE's layer with masks, which are all paired with one trained feature."""

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


class MedusaParallelLayer(MaskedLayers, eagle.TokenLayers):
  """Layers with masks that read no features."""


@struct.dataclass
class ParallelDrafter(features.OnePassDrafter):
  """Drafter with masked layers, which run over emitted tokens and masks.

  No later pass sees the cache entries of masks.
  """

  def init(self, tokens_bp, length_b, no_feature_b1f, capacity):
    batch = tokens_bp.shape[0]
    # Masks come after the longest draft.
    capacity = -(-(capacity + self._num_masks) // 16) * 16
    cache = self.module.init_cache(self.params, batch, capacity)
    return eagle.before_prompts(self, cache, tokens_bp, no_feature_b1f)

  resume = Drafter.resume

  def prefill(self, state, tokens_bc, features_bcf, start_b, length_b):
    before_bcd = self.read(features_bcf[:, :-1])
    root_b = features.within(length_b - 1 - start_b, tokens_bc.shape[1])
    return self._pass(
      state.cache, tokens_bc, before_bcd, start_b, start_b + root_b
    )

  def commit(self, state, draft, verdict, root_b, scored):
    return self._pass(
      state.cache,
      emitted_tokens(draft, verdict),
      self.read(eagle.features_before(verdict, scored.features)),
      root_b + 1,
      root_b + 1 + verdict.num_accepted,
    )

  def masks(self, index_k, positions_bk):
    """Returns the layers' input at masks: [B, K, E], or [1, K, E]."""
    places_bkd = self.target_head.place(positions_bk)
    return self.apply(index_k, places_bkd, method='masks')

  @property
  def _num_masks(self) -> int:
    return self.tree.depth - 1

  def _pass(self, cache, tokens_bt, before_btd, start_b, root_b) -> EagleState:
    """Feeds T pairs from position `start`, and masks after the `root`.

    Pairs past the root are noise, which the next pass overwrites.
    """
    length, count = tokens_bt.shape[1], self._num_masks
    index_k = np.arange(count, dtype=np.int32)
    positions_bt = start_b[:, None] + np.arange(length, dtype=np.int32)[None, :]
    mask_positions_bk = root_b[:, None] + 1 + index_k[None, :]

    embedded_btd = self.embed(tokens_bt, positions_bt)
    x_btd = self.apply(embedded_btd, before_btd, method='text')
    if count:
      x_bkd = self.masks(index_k, mask_positions_bk)
      x_bkd = jnp.broadcast_to(x_bkd, (len(x_btd), *x_bkd.shape[1:]))
      x_btd = jnp.concatenate([x_btd, x_bkd], axis=1)

    # A token sees the tokens up to itself, a mask also the masks up to itself.
    slots_s = jnp.arange(cache.capacity, dtype=jnp.int32)[None, None, :]
    tokens_see_bts = slots_s <= positions_bt[:, :, None]
    first_b11 = start_b[:, None, None] + length  # slot of the first mask
    masks_see_bks = (slots_s <= root_b[:, None, None]) | (
      (slots_s >= first_b11) & (slots_s <= first_b11 + index_k[None, :, None])
    )
    out_btd, cache = self.apply(
      x_btd,
      jnp.concatenate([positions_bt, mask_positions_bk], axis=1),
      cache,
      mask=jnp.concatenate([tokens_see_bts, masks_see_bks], axis=1),
      start=start_b,
    )
    hidden_b1d = features.at(out_btd, root_b - start_b)
    hidden = jnp.concatenate([hidden_b1d, out_btd[:, length:]], axis=1)
    return EagleState(cache, hidden)
