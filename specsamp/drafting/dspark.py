"""DSpark (2607.05147): DFlash whose proposals depend on the token before.

The outputs of a block give the logits of all depths at once, as in DFlash. A
Markov head adds a bias that depends on the previous token alone, the product of
two matrices of low rank. So tokens are drafted one by one, or a tree level by
level, at the price of a small product per level.
"""

import flax.linen as nn
from flax import struct

from specsamp.drafting import growth
from specsamp.drafting.dflash import DFlashDrafter, DFlashLayers
from specsamp.drafting.drafter import root_of
from specsamp.models import kernels


class DSparkLayers(DFlashLayers):
  """DFlash's layers and a Markov head.

  Its bias after a token is `head @ embedding[token]`.

  Attributes:
    rank: rank of the Markov head.
  """

  rank: int = 256

  def setup(self):
    super().setup()
    vocab, normal = self.config.vocab_size, nn.initializers.normal
    shape = (self.draft_vocab or vocab, self.rank)
    self.embedding = self.param('embedding', normal(1), (vocab, self.rank))
    self.head = self.param('head', normal(self.rank**-0.5), shape)

  def bias(self, tokens_bw):
    """Returns the bias of the logits after tokens: float32 [B, W, V]."""
    dtype = self.config.dtype
    x_bwr = kernels.rows(self.embedding, tokens_bw, dtype)
    bias_bwk = kernels.logits(x_bwr, self.head, dtype)
    return (
      kernels.spread_rows(bias_bwk, self.draft_rows)
      if self.draft_vocab
      else bias_bwk
    )


@struct.dataclass
class DSparkDrafter(DFlashDrafter):
  """Drafter of a block in one pass, whose tokens are chosen level by level.

  Unlike those of its base classes, its q depend on the tokens drafted before,
  and a chain ends early by the value of `least_confidence`.
  """

  def logits_after(self, state):
    """Returns (tokens [B, W], depth) -> logits after them, [B, W, V]."""
    logits_bgv = self.logits(self.outputs(state))

    def logits_after(tokens_bw, depth: int):
      bias_bwv = self.target_head.widen(self.apply(tokens_bw, method='bias'))
      return logits_bgv[:, depth, None] + bias_bwv

    return logits_after

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    root_b1 = root_of(tokens_bs, length_b)
    logits_after = self.logits_after(state)
    feed = lambda carry, level: (carry, logits_after(level.tokens, level.depth))
    return growth.grow(
      self.tree,
      self.law,
      sampling,
      root_b1,
      self._numbers(keys_b, length_b),
      logits_after(root_b1, 0),
      feed,
      None,
      least_confidence=self.least_confidence,
    )[0], state
