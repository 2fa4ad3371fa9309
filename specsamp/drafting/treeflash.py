"""TreeFlash (2606.03819): DFlash whose proposals depend on the token before.

An output of the block does not know which tokens are drafted before it. An MLP
reads the output and the embedding of the token before, and adds to the output
what that token changes. So q follows paths, and a dynamic tree has nodes that
fit together.

The authors compute q after the 16 most probable tokens of each position and
allow children only there. Here q is computed after the nodes of a level that
have children, which are as many rows for the LM head, and any token may have
children.
"""

import flax.linen as nn
import jax.numpy as jnp
from flax import struct

from specsamp.drafting.dflash import DFlashLayers
from specsamp.drafting.dspark import DSparkDrafter
from specsamp.models import TransformerConfig, kernels
from specsamp.models.transformer import Norm


class TokenMLP(nn.Module):
  """MLP on a token's embedding and an output of a block: W [u g], then D.

  It starts as 0.
  """

  config: TransformerConfig

  @nn.compact
  def __call__(self, embedded_btd, normed_btd):
    """Returns what the token adds to the output, [B, T, D]."""
    c = self.config
    normal, zeros = nn.initializers.normal, nn.initializers.zeros
    width, inner = c.width, c.mlp_width
    fuse = self.param(
      'fuse', normal((2 * width) ** -0.5), (2 * inner, 2 * width)
    )
    bias = self.param('fuse_bias', zeros, (2 * inner,))
    down = self.param('down', zeros, (width, inner))
    token_btd = Norm(c, name='token_norm')(embedded_btd)
    both = jnp.concatenate([token_btd, normed_btd], axis=-1)
    fused = kernels.project(both, fuse, c.dtype)
    up, gate = jnp.split(fused + bias.astype(fused.dtype)[None, None], 2, -1)
    return kernels.project(nn.silu(gate) * up, down, c.dtype)


class TreeFlashLayers(DFlashLayers):
  """DFlash's layers and a `TokenMLP`.

  They return the stream before the final norm; `after` norms it.
  """

  def setup(self):
    super().setup()
    self.token_mlp = TokenMLP(self.config)

  def __call__(self, x_btd, context_bcd, positions, cache=None, **where):
    streams, cache = self.run(
      x_btd, positions, cache, context=context_bcd, **where
    )
    return streams[-1], cache

  def after(self, hidden_btd, embedded_btd):
    change_btd = self.token_mlp(embedded_btd, self.final_norm(hidden_btd))
    return self.final_norm(hidden_btd + change_btd)


@struct.dataclass
class TreeFlashDrafter(DSparkDrafter):
  """Drafter of a block in one pass, whose tokens are chosen level by level.

  As in DSpark, q depend on the tokens drafted before.
  """

  def logits_after(self, state):
    hidden_bgd = self.outputs(state)

    def logits_after(tokens_bw, depth: int):
      embedded_bwd = self.target_head.embed(tokens_bw)
      hidden_bwd = jnp.broadcast_to(
        hidden_bgd[:, depth, None], embedded_bwd.shape
      )
      return self.logits(self.apply(hidden_bwd, embedded_bwd, method='after'))

    return logits_after
