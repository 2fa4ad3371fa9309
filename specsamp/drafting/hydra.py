"""Hydra (Ankner et al. 2402.05109): Medusa's heads that read drafted tokens."""

import jax.numpy as jnp
from flax import struct

from specsamp.drafting import growth
from specsamp.drafting.drafter import root_of
from specsamp.drafting.medusa import MedusaDrafter, MedusaHeads


class HydraHeads(MedusaHeads):
  """Medusa's heads that also read the embeddings of the root and its path."""

  def inputs(self, feature_bd, path_bjd, head: int):
    return [feature_bd, *(path_bjd[:, i] for i in range(head))]


@struct.dataclass
class HydraDrafter(MedusaDrafter):
  """Drafts level by level from `HydraHeads`, which read a node's path."""

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    root_b1 = root_of(tokens_bs, length_b)
    embed = lambda tokens_bw: self.target_head.embed(tokens_bw)[:, :, None]

    def feed(path_bwjd, level):
      """Returns the embeddings of the path to each node, and its logits."""
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
    """Returns logits [B, W, V] after W nodes, with paths of J tokens."""
    batch, count, length, width = path_bwjd.shape
    path = path_bwjd.reshape(batch * count, length, width)
    feature = jnp.repeat(feature_bd, count, axis=0)
    hidden = self.apply(feature, path, length)
    return self.target_head.logits(hidden.reshape(batch, count, width))
