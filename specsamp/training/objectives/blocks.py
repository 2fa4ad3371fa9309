"""Loss of DFlash and TreeFlash: blocks after anchors of a text (2602.06036).

Every anchor is the root of a block. It sees itself and the text before the
anchor by the masks of drafting. All blocks of a text are rows of one pass and
share their context. Many blocks are trained in parts, so that no layer holds
the attention scores of all blocks at once.
"""

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.dflash import block_masks, embedded_blocks
from specsamp.training.objectives import depths

# Tokens of blocks in a part: after a text of as many tokens they have 1 GB of
# scores in a layer of 32 heads, where 512 blocks of 16 at once have 11 GB.
_PART = 2048


def outputs(module, params, target_head, context_btd, tokens_bt, starts_bm):
  """Returns the outputs of blocks that propose tokens: [B, M, J, D].

  Args:
    module: `DFlashLayers`, of K tokens a block, J of which propose one.
    params: parameters of the module.
    target_head: the target's embedding.
    context_btd: result of the module's `context` for the text.
    tokens_bt: int [B, T].
    starts_bm: int [B, M], the anchors. Outputs of an anchor beyond the text
      are noise.
  """
  (batch, length), count = tokens_bt.shape, starts_bm.shape[1]
  x_bqd, block_bq = embedded_blocks(
    module, params, target_head, starts_bm, depths.take(tokens_bt, starts_bm)
  )
  text_t = np.arange(length, dtype=np.int32)
  text_bt = jnp.broadcast_to(text_t, tokens_bt.shape)
  positions_bs = jnp.concatenate([text_bt, block_bq], axis=1)
  size = module.block_size
  block_q = np.repeat(np.arange(count, dtype=np.int32), size)
  at_q = np.tile(np.arange(size, dtype=np.int32), count)
  # Blocks follow the text, and have no text in their slots.
  no_text_q = np.full(len(at_q), np.iinfo(np.int32).max, np.int32)
  # Not of numpy: the program would contain this array as a constant.
  is_same_qq = jnp.asarray(block_q)[:, None] == block_q[None]
  at_qq = jnp.where(is_same_qq, at_q[None], -1)
  masks = block_masks(
    module,
    starts_bm[:, block_q],
    at_q,
    np.concatenate([text_t, no_text_q])[None],
    jnp.pad(at_qq, ((0, 0), (length, 0)), constant_values=-1)[None],
  )
  out_bqd, _ = module.apply(
    {'params': params},
    x_bqd,
    context_btd,
    positions_bs,
    mask=masks,
    slot_positions=positions_bs,
  )
  shape = (batch, count, size, out_bqd.shape[-1])
  return out_bqd.reshape(shape)[:, :, size - module.ahead :]


def dflash(module, params, target_head, batch, config):
  """Sums the losses of all masks.

  p is the target's distribution along the text. DFlash's q has read no token
  after the root, so it averages over the tokens that may come there.
  TreeFlash's q has read the last of them. Mask j weighs
  decay^(j - 1). The authors use the loss `text` and a decay of exp(-1 / 7) for
  blocks of 16, exp(-1 / 4) for blocks of 8.
  """
  tokens = batch.tokens
  length = tokens.shape[1] - 1
  context_btd = module.apply(
    {'params': params}, batch.features, method='context'
  )
  labels = depths.Labels.of(batch)

  ahead = module.ahead
  places = lambda starts_bm: (
    jnp.repeat(starts_bm, ahead, axis=1)
    + np.tile(np.arange(ahead, dtype=np.int32), starts_bm.shape[1])[None]
  )

  def heads_input(starts_bm):
    """Returns inputs of the LM head, [B, m, J, D]."""
    hidden_bmjd = outputs(
      module, params, target_head, context_btd, tokens[:, :-1], starts_bm
    )
    hidden_brd = module.apply(
      {'params': params},
      hidden_bmjd.reshape(len(tokens), -1, hidden_bmjd.shape[-1]),
      target_head.embed(depths.take(tokens, places(starts_bm))),
      method='after',
    )
    return hidden_brd.reshape(hidden_bmjd.shape)

  max_starts = max(_PART // module.block_size, 1)
  # The backward pass computes each part again, but not the logits after it.
  hidden_bmjd = depths.in_parts(
    jax.checkpoint(heads_input), batch.starts, max_starts
  )
  rows, count, _, width = hidden_bmjd.shape
  distance_r = np.tile(np.arange(ahead, dtype=np.int32), count)
  whole = labels.compare(
    config,
    target_head,
    hidden_bmjd.reshape(rows, -1, width),
    places(batch.starts),
    distance_r[None],
  )
  whole = jax.tree.map(lambda x: x.reshape(rows, count, ahead), whole)
  by_depth = [
    jax.tree.map(lambda x, j=j: x[:, :, j], whole) for j in range(module.ahead)
  ]
  return depths.weighted_sum(config, by_depth, length)
