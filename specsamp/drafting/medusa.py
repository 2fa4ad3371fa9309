"""Medusa (Cai et al. 2401.10774): a head for every token ahead.

Hydra's heads (Ankner et al. 2402.05109) also read drafted tokens.
"""

from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from flax import struct

from specsamp.drafting import features, growth
from specsamp.drafting.drafter import Drafter, root_of
from specsamp.models import TransformerConfig, float16, kernels


class MedusaHeads(nn.Module):
  """Heads of residual SiLU blocks, all on one feature of the target.

  Head j reads the feature of the token before the root. Its output, through an
  LM head, predicts the j-th token after the root. Blocks start as the identity.
  The LM head is the target's, or one for each head, as in section 2.1.1.

  Attributes:
    config: the target's configuration.
    num_heads: number of heads.
    num_blocks: blocks of each head; a block after the first reads the one
      before it.
    has_lm_heads: True if each head has a separate LM head.
    draft_vocab: number of tokens that it can draft, rows of the target's LM
      head; 0 is all.
  """

  config: TransformerConfig
  num_heads: int
  num_blocks: int = 1
  has_lm_heads: bool = False
  draft_vocab: int = 0
  taps: ClassVar[tuple[int, ...]] = ()

  @classmethod
  def for_target(
    cls,
    target: TransformerConfig,
    ahead: int,
    num_layers: int,
    draft_vocab: int = 0,
  ):
    return cls(target, ahead, draft_vocab=draft_vocab)

  def setup(self):
    if self.draft_vocab:
      self.draft_rows = features.draft_rows(self)

  @property
  def ahead(self) -> int:
    return self.num_heads

  def inputs(self, feature_bd, path_bjd, head: int):
    """Returns the input of a head's first block, a list of [B, D]."""
    return [feature_bd]

  @nn.compact
  def __call__(self, feature_bd, path_bjd, head: int):
    """Returns the feature that a head predicts, [B, D].

    If heads have LM heads, it returns the logits, float32 [B, V].

    Args:
      feature_bd: [B, D]; B may be any batch of nodes.
      path_bjd: [B, >= head, D], embeddings of the root and the tokens after it,
        for heads that read them.
      head: number of the head, from 1.
    """
    parts = self.inputs(feature_bd, path_bjd, head)
    x_bd = Residual(self.config, name=f'head_{head}')(feature_bd, parts)
    for block in range(1, self.num_blocks):
      residual = Residual(self.config, name=f'head_{head}_{block}')
      x_bd = residual(x_bd, [x_bd])
    if not self.has_lm_heads:
      return x_bd
    rows = self.config.vocab_size
    return features.LMHead(self.config, rows, name=f'lm_head_{head}')(x_bd)

  def init_params(self, key):
    """Returns random parameters, a nested dict of float32 arrays."""

    def all_heads(module):
      c = self.config
      zeros = jnp.zeros((1, c.width), c.dtype)
      path = jnp.zeros((1, self.num_heads, c.width), c.dtype)
      return [module(zeros, path, j) for j in range(1, self.num_heads + 1)]

    return nn.init(all_heads, self)(key)['params']


class Residual(nn.Module):
  """Residual block: x + silu(W [parts] + b)."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x, parts):
    c = self.config
    zeros = nn.initializers.zeros
    fuse = self.param('fuse', zeros, (c.width, len(parts) * c.width))
    bias = self.param('fuse_bias', zeros, (c.width,))
    dtype = float16.wide(c.dtype)
    both = jnp.concatenate([part.astype(dtype) for part in parts], axis=-1)
    fused = kernels.project(both, fuse, c.dtype)
    return x.astype(dtype) + nn.silu(fused + bias.astype(dtype)[None])


class HydraHeads(MedusaHeads):
  """Medusa's heads that also read the embeddings of the root and its path."""

  def inputs(self, feature_bd, path_bjd, head: int):
    return [feature_bd, *(path_bjd[:, i] for i in range(head))]


@struct.dataclass
class MedusaDrafter(features.OnePassDrafter):
  """Drafter with `MedusaHeads`.

  Its state is the target's feature of the token before the root, [B, D].
  """

  def init(self, tokens_bp, length_b, no_feature_b1f, capacity):
    return no_feature_b1f[:, 0]

  resume = Drafter.resume

  def prefill(self, state, tokens_bc, features_bcf, start_b, length_b):
    root_b = features.within(length_b - 1 - start_b, tokens_bc.shape[1])
    return features.at(features_bcf, root_b)[:, 0]

  def outputs(self, state):
    heads = range(1, self.tree.depth + 1)
    return jnp.stack([self.apply(state, None, j) for j in heads], axis=1)

  def logits(self, hidden_btd):
    if self.module.has_lm_heads:
      return self.target_head.widen(hidden_btd)
    return self.target_head.logits(hidden_btd)

  def commit(self, state, draft, verdict, root_b, scored):
    return features.at(scored.features, verdict.node)[:, 0]


@struct.dataclass
class HydraDrafter(MedusaDrafter):
  """Drafter with `HydraHeads`, level by level; they read a node's path."""

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
      self._numbers(keys_b, length_b),
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
