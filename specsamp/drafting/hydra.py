"""Hydra (Ankner et al. 2402.05109): Medusa's heads, told what was drafted."""

import jax.numpy as jnp
from flax import struct

from specsamp.drafting import growth
from specsamp.drafting.drafter import root_of
from specsamp.drafting.medusa import MedusaDrafter, MedusaHeads


class HydraHeads(MedusaHeads):
  """Heads that read the embeddings of the root and of what follows it too."""

  def inputs(self, feature_bd, path_bjd, head: int):
    return [feature_bd, *(path_bjd[:, i] for i in range(head))]


@struct.dataclass
class HydraDrafter(MedusaDrafter):
  """Drafts level by level from heads that read a node's path too."""

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    root_b1 = root_of(tokens_bs, length_b)
    embed = lambda tokens_bw: self.target_head.embed(tokens_bw)[:, :, None]

    def feed(path_bwjd, level):
      """Embeddings of the path to each node, and the logits after it."""
      path_bwjd = jnp.concatenate(
        [level.of_parents(path_bwjd), embed(level.tokens)], axis=2
      )
      return path_bwjd, self._logits(state, path_bwjd)

    path_b11d = embed(root_b1)
    return growth.grow(
      self.tree,
      self.law,
      sampling,
      root_b1,
      self._uniforms(keys_b, length_b),
      self._logits(state, path_b11d),
      feed,
      path_b11d,
    )[0], state

  def _logits(self, feature_bd, path_bwjd):
    """Logits [B, W, V] after W nodes, paths of J tokens to them."""
    batch, count, length, width = path_bwjd.shape
    path = path_bwjd.reshape(batch * count, length, width)
    feature = jnp.repeat(feature_bd, count, axis=0)
    hidden = self._head(feature, path, length)
    return self.target_head.logits(hidden.reshape(batch, count, width))
