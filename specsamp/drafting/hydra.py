"""Hydra (Ankner et al. 2402.05109): Medusa's heads, told what was drafted."""

import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.drafting import candidates
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
    tree = self.tree
    root_b1 = root_of(tokens_bs, length_b)
    internal = np.asarray(tree.internal)
    depths_i = np.asarray(tree.depths)[internal]
    rank_n = np.zeros(tree.size, np.int32)
    rank_n[internal] = np.arange(len(internal))

    def feed(embedded_bid, depth, tokens_bw):
      """Embeddings so far, in the order of the internal nodes; logits."""
      embedded_bid = jnp.concatenate(
        [embedded_bid, self.target_head.embed(tokens_bw)], axis=1
      )
      nodes_w = internal[depths_i == depth]
      path_wj = rank_n[tree.paths[nodes_w, : depth + 1]]
      return embedded_bid, self._logits(state, embedded_bid, path_wj)

    embedded_b1d = self.target_head.embed(root_b1)
    return candidates.grow(
      tree,
      self.law,
      sampling,
      root_b1,
      self._uniforms(keys_b, length_b),
      self._logits(state, embedded_b1d, np.zeros((1, 1), np.int32)),
      feed,
      embedded_b1d,
    )[0], state

  def _logits(self, feature_bd, embedded_bid, path_wj):
    """Logits [B, W, V] after the W nodes of these paths of J tokens each."""
    batch, width = feature_bd.shape
    count, length = path_wj.shape
    path = embedded_bid[:, path_wj].reshape(batch * count, length, width)
    feature = jnp.repeat(feature_bd, count, axis=0)
    hidden = self._head(feature, path, length)
    return self.target_head.logits(hidden.reshape(batch, count, width))
