"""Medusa's and Hydra's head losses (2401.10774, 2.2.1; 2402.05109, 3)."""

import jax.numpy as jnp

from specsamp.training.objectives import language_model as losses
from specsamp.training.objectives.batch import Batch, Weights
from specsamp.training.objectives.groups import mean_where, take


def loss(module, params, target_head, batch: Batch, weights: Weights):
  """Sum over heads of decay^j times head j's cross-entropy, and metrics.

  Head j reads the target's feature at t, Hydra's also the tokens t + 1 to
  t + j, and is asked for token t + 1 + j. Means are over the positions that
  have such a token.

  Args:
    module: `MedusaHeads`.
    params: theirs.
    target_head: the target's embedding and LM head.
    batch: with features, of which the noise is not read.
    weights: the papers' decay is 0.8.
  """
  tokens, starts_bm, features_btd = batch.tokens, batch.starts, batch.features
  length, width = features_btd.shape[1:]
  wanted_bt = jnp.argmax(target_head.logits(features_btd), axis=-1)
  rows = lambda array: array.reshape(-1, *array.shape[2:])
  feature_rd = rows(take(features_btd, starts_bm))
  embedded_bjmd = [
    target_head.embed(take(tokens, starts_bm + j))
    for j in range(1, module.num_heads + 1)
  ]
  path_rjd = rows(jnp.stack(embedded_bjmd, axis=2))
  total, metrics = 0.0, {}
  for j in range(1, module.num_heads + 1):
    hidden = module.apply({'params': params}, feature_rd, path_rjd, j)
    logits_bmv = target_head.logits(hidden.reshape(*starts_bm.shape, width))
    inside_bm = starts_bm + j < length
    label_bm = take(tokens, starts_bm + 1 + j)
    loss_bm = losses.next_tokens(logits_bmv, label_bm)
    hit_bm = jnp.argmax(logits_bmv, axis=-1) == take(wanted_bt, starts_bm + j)
    metrics[f'agreement_{j}'] = mean_where(
      hit_bm.astype(jnp.float32), inside_bm
    )
    metrics[f'loss_{j}'] = mean_where(loss_bm, inside_bm)
    total += weights.decay**j * metrics[f'loss_{j}']
  return total, {'loss': total, **metrics}
