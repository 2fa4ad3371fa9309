"""P-EAGLE (2602.01469): EAGLE-3 with masks, all tokens of a draft in one pass.

A mask is a token of the target's vocabulary with a trained vector in place of
features, both the same at every depth. The two to four layers see the text and
the masks before, but no draft tokens.
"""

import flax.linen as nn
import jax.numpy as jnp
from flax import struct

from specsamp.drafting.eagle3 import Eagle3Layer, ReadsTaps
from specsamp.drafting.parallel import ParallelDrafter
from specsamp.models import float16


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
  """Drafts from `PEagleLayers`, in one pass per round."""

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
