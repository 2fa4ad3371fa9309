"""Medusa's and Hydra's head losses (2401.10774, 2.2.1; 2402.05109, 3)."""

import jax
import jax.numpy as jnp

from specsamp.training.objectives import acceptance
from specsamp.training.objectives.batch import Batch, Weights
from specsamp.training.objectives.depths import Depth, summed
from specsamp.training.objectives.groups import take


def loss(module, params, target_head, batch: Batch, weights: Weights):
  """Sum over heads of their losses as they weigh, and metrics.

  Head j reads the target's feature at t, Hydra's also the tokens t + 1 to
  t + j, and is asked for token t + 1 + j, or for the target's distribution
  after the text up to t + j. Means are over the positions that have such a
  token.

  Args:
    module: `MedusaHeads`.
    params: theirs.
    target_head: the target's embedding and LM head.
    batch: with features, of which the noise is not read.
    weights: the papers' loss is text, their decay 0.8: head j weighs 0.8^j.
  """
  tokens, starts_bm, features_btd = batch.tokens, batch.starts, batch.features
  length, width = features_btd.shape[1:]
  p_logits_btv = target_head.logits(features_btd)
  p_normalizer_bt = jax.nn.logsumexp(p_logits_btv, axis=-1)
  wanted_bt = jnp.argmax(p_logits_btv, axis=-1)
  rows = lambda array: array.reshape(-1, *array.shape[2:])
  feature_rd = rows(take(features_btd, starts_bm))
  embedded_bjmd = [
    target_head.embed(take(tokens, starts_bm + j))
    for j in range(1, module.num_heads + 1)
  ]
  path_rjd = rows(jnp.stack(embedded_bjmd, axis=2))
  depths = []
  for j in range(1, module.num_heads + 1):
    hidden = module.apply({'params': params}, feature_rd, path_rjd, j)
    logits_bmv = target_head.logits(hidden.reshape(*starts_bm.shape, width))
    at_bm = starts_bm + j
    loss_bm, log_alpha_bm = acceptance.per_position(
      weights.loss,
      logits_bmv,
      take(p_logits_btv, at_bm),
      take(tokens, at_bm + 1),
      eta=weights.eta,
      p_normalizer=take(p_normalizer_bt, at_bm),
    )
    hit_bm = jnp.argmax(logits_bmv, axis=-1) == take(wanted_bt, at_bm)
    depths.append(Depth(loss_bm, log_alpha_bm, hit_bm, at_bm < length))
  return summed(weights, depths, first=1)
