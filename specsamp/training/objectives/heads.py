"""Losses of Medusa's and Hydra's heads (2401.10774, 2.2.1; 2402.05109, 3)."""

import jax.numpy as jnp

from specsamp.training.objectives.batch import Batch, Weights
from specsamp.training.objectives.depths import Labels, take, weighted_sum


def loss(module, params, target_head, batch: Batch, weights: Weights):
  """Sums the losses of all heads; see `Objective.loss`.

  Head j reads the target's feature at t; Hydra's also reads the tokens t + 1 to
  t + j. Its label is token t + 1 + j, or the target's distribution after the
  text up to t + j. Means are over the positions that have such a token. The
  papers have the loss text and a decay of 0.8: head j weighs 0.8^j.
  """
  tokens, starts_bm, features_btd = batch.tokens, batch.starts, batch.features
  length, width = features_btd.shape[1:]
  labels = Labels.make(target_head, batch)
  rows = lambda array: array.reshape(-1, *array.shape[2:])
  feature_rd = rows(take(features_btd, starts_bm))
  distances = range(1, module.num_heads + 1)
  embedded_bjmd = [
    target_head.embed(take(tokens, starts_bm + j)) for j in distances
  ]
  path_rjd = rows(jnp.stack(embedded_bjmd, axis=2))
  depths = []
  for j in distances:
    hidden_rd = module.apply({'params': params}, feature_rd, path_rjd, j)
    logits_bmv = target_head.logits(hidden_rd.reshape(*starts_bm.shape, width))
    depths.append(labels.compare(weights, logits_bmv, starts_bm + j, j))
  return weighted_sum(weights, depths, length, first=1)
