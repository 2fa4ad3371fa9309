"""Losses of EAGLE, and of ParallelSpec's drafters for EAGLE and for Medusa.

EAGLE (2401.15077, 4.2) has a regression of the feature and cross-entropy with
the target's distribution. ParallelSpec (2410.05589, 4.3) sums EAGLE's losses
over a group, or Medusa's losses of the text. Any loss of `acceptance` can
replace the cross-entropy.
"""

import jax.numpy as jnp

from specsamp.training.objectives import groups
from specsamp.training.objectives.batch import Batch, Weights
from specsamp.training.objectives.depths import Labels, take, weighted_sum


def medusa_parallel(
  module, params, target_head, batch: Batch, weights: Weights
):
  """Sums the losses at the root and at every mask; see `Objective.loss`.

  The paper has the loss text and a decay of 0.8: mask j weighs 0.8^j. That loss
  needs no target, so `agreement` is with the text for every loss. Other losses
  compare with the target's distribution after the text and the tokens in
  between, which the drafter did not see.
  """
  outputs = groups.outputs(
    module,
    params,
    target_head,
    None,
    batch.tokens[:, :-1],
    batch.starts,
    weights.retention,
  )
  labels = Labels.make(target_head, batch)
  labels = labels._replace(best=labels.next)
  logits_bqv = target_head.logits(outputs.hidden)
  whole = labels.compare(
    weights, logits_bqv, outputs.reads, outputs.number[None]
  )
  length = batch.tokens.shape[1] - 1
  return weighted_sum(weights, outputs.by_depth(whole), length)


def eagle(module, params, target_head, batch: Batch, weights: Weights):
  """Sums SmoothL1(feature) + cross_entropy * loss(p, q) over the groups.

  See `Objective.loss`. EAGLE has the loss kl with a weight of 0.1; ParallelSpec
  has a decay of 1. Further metrics, of the tokens without masks, are
  `regression` and the distribution's loss by its name.
  """
  features_btd, length = batch.features, batch.features.shape[1]
  outputs = groups.outputs(
    module,
    params,
    target_head,
    features_btd + batch.noise,
    batch.tokens[:, :-1],
    batch.starts,
    weights.retention,
  )
  label_bqd = take(features_btd, outputs.reads).astype(jnp.float32)
  error_bqd = jnp.abs(outputs.hidden.astype(jnp.float32) - label_bqd)
  smooth_bq = jnp.mean(
    jnp.where(error_bqd < 1, 0.5 * error_bqd**2, error_bqd - 0.5), axis=-1
  )
  logits_bqv = target_head.logits(outputs.hidden)
  labels = Labels.make(target_head, batch)
  whole = labels.compare(
    weights, logits_bqv, outputs.reads, outputs.number[None]
  )
  of_tokens = {
    'regression': smooth_bq[:, :length].mean(),
    weights.loss: whole.loss[:, :length].mean(),
  }
  loss_bq = smooth_bq + weights.cross_entropy * whole.loss
  depths = outputs.by_depth(whole._replace(loss=loss_bq))
  total, metrics = weighted_sum(weights, depths, length)
  return total, metrics | of_tokens
