"""DFlash's objective: blocks behind anchors of a text (2602.06036).

Every anchor is the root of a block, which sees the text before it and nothing
else, as in drafting: all blocks of a text are trained side by side, as rows
that share their context. Where they are many it is done in parts, so that no
layer holds the scores of all.
"""

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.dflash import embedded_blocks
from specsamp.training.objectives import acceptance
from specsamp.training.objectives.batch import Batch, Weights
from specsamp.training.objectives.depths import Depth, summed
from specsamp.training.objectives.groups import take

# Tokens of blocks in a part: behind a text of as many they have 1 GB of scores
# in a layer of 32 heads, where 512 blocks of 16 at once have 11 GB.
_PART = 2048


def outputs(module, params, target_head, context_btd, tokens_bt, starts_bm):
  """What comes out at the masks of blocks: [B, M, K - 1, D].

  Args:
    module: `DFlashLayers`, of K tokens a block.
    params: its own.
    target_head: the target's embedding.
    context_btd: what the module's `context` makes of the text.
    tokens_bt: int [B, T].
    starts_bm: int [B, M], the anchors. One beyond the text has a block too, of
      no meaning.
  """
  (batch, length), count = tokens_bt.shape, starts_bm.shape[1]
  x_bqd, block_bq = embedded_blocks(
    module, params, target_head, starts_bm, take(tokens_bt, starts_bm)
  )
  text_t = np.arange(length, dtype=np.int32)
  text_bt = jnp.broadcast_to(text_t, tokens_bt.shape)
  positions_bs = jnp.concatenate([text_bt, block_bq], axis=1)
  of_q = np.repeat(np.arange(count, dtype=np.int32), module.block_size)
  to_text_bqt = text_t[None, None] < starts_bm[:, of_q, None]
  own_bqq = jnp.broadcast_to(
    of_q[:, None] == of_q[None], (batch, len(of_q), len(of_q))
  )
  out_bqd, _ = module.apply(
    {'params': params},
    x_bqd,
    context_btd,
    positions_bs,
    mask=jnp.concatenate([to_text_bqt, own_bqq], axis=-1),
    slot_positions=positions_bs,
  )
  shape = (batch, count, module.block_size, out_bqd.shape[-1])
  return out_bqd.reshape(shape)[:, :, 1:]


def dflash(module, params, target_head, batch: Batch, weights: Weights):
  """Sum over masks of their losses as they weigh, and metrics.

  p is the target's along the text. q knows no token after the root: it is a
  mean over what may stand there.

  Args:
    module: `DFlashLayers`.
    params: its own.
    target_head: the target's embedding and LM head.
    batch: with features and what the LM head reads; the noise is not added.
    weights: the authors' loss is text, their decay exp(-1 / 7) for blocks of
      16 and exp(-1 / 4) for those of 8: mask j weighs decay^(j - 1).
  """
  tokens, starts_bm = batch.tokens, batch.starts
  length = tokens.shape[1] - 1
  variables = {'params': params}
  context_btd = module.apply(variables, batch.features, method='context')
  p_logits_btv = target_head.logits(batch.hidden)
  p_normalizer_bt = jax.nn.logsumexp(p_logits_btv, axis=-1)

  def of_part(starts_bm):
    """Losses, log alpha and hits of blocks: each [B, m, K - 1]."""
    hidden_bmjd = outputs(
      module, params, target_head, context_btd, tokens[:, :-1], starts_bm
    )
    shape, width = hidden_bmjd.shape[:3], hidden_bmjd.shape[3]
    place_br = _places(module, starts_bm).reshape(shape[0], -1)
    q_logits_brv = target_head.logits(
      hidden_bmjd.reshape(*place_br.shape, width)
    )
    p_logits_brv = take(p_logits_btv, place_br)
    loss_br, log_alpha_br = acceptance.per_position(
      weights.loss,
      q_logits_brv,
      p_logits_brv,
      take(tokens[:, 1:], place_br),
      eta=weights.eta,
      p_normalizer=take(p_normalizer_bt, place_br),
    )
    hit_br = jnp.argmax(q_logits_brv, -1) == jnp.argmax(p_logits_brv, -1)
    found = loss_br, log_alpha_br, hit_br
    return tuple(values.reshape(shape) for values in found)

  most = max(_PART // module.block_size, 1)
  found = (
    *_in_parts(of_part, starts_bm, most, length),
    _places(module, starts_bm) < length,
  )
  return summed(
    weights,
    [Depth(*(x[:, :, j] for x in found)) for j in range(module.ahead)],
  )


def _places(module, starts_bm):
  """Where the token before each proposed one stands: int [B, M, K - 1]."""
  at_j = np.arange(module.ahead, dtype=np.int32)
  return starts_bm[:, :, None] + at_j[None, None]


def _in_parts(of_part, starts_bm, most: int, beyond: int):
  """What `of_part` makes of the starts, of no more than `most` at once.

  Args:
    of_part: int [B, m] -> a tuple of arrays [B, m, ..]. In the backward pass it
      is computed anew.
    starts_bm: int [B, M].
    most: starts at once.
    beyond: stands for a start where parts of a size have one too many.
  """
  batch, count = starts_bm.shape
  parts = -(-count // most)
  if parts == 1:
    return of_part(starts_bm)
  size = -(-count // parts)
  starts_bm = jnp.pad(
    starts_bm, ((0, 0), (0, parts * size - count)), constant_values=beyond
  )
  starts_pbm = jnp.moveaxis(starts_bm.reshape(batch, parts, size), 1, 0)
  found = jax.lax.map(jax.checkpoint(of_part), starts_pbm)

  def together(array_pbm):
    array_bpm = jnp.moveaxis(array_pbm, 0, 1)
    return array_bpm.reshape(batch, parts * size, *array_pbm.shape[3:])[
      :, :count
    ]

  return tuple(map(together, found))
