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
  """Sums the losses at the root and at every mask.

  The published loss is text. It needs no target, so `agreement` is with the
  text for every loss. Other losses compare with the target's distribution after
  the text and the tokens in between, which the drafter did not see.

  Args:
    module: a `MedusaParallelLayer`.
    params: of the module.
    target_head: the target's embedding and LM head.
    batch: with `hidden` if `weights.read_p`; its noise is not read.
    weights: the paper has the loss text and a decay of 0.8: mask j weighs
      0.8^j.

  Returns:
    The total and metrics, see `depths.weighted_sum`.
  """
  outputs = groups.outputs(
    module,
    params,
    target_head,
    None,
    batch.tokens[:, :-1],
    batch.starts,
    groups.sizes(batch.starts.shape[1], module.num_masks, weights.retention),
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

  Args:
    module: an `EagleLayer` or an `EagleParallelLayer`.
    params: of the module.
    target_head: the target's embedding and LM head.
    batch: with features.
    weights: EAGLE has the loss kl with a weight of 0.1; ParallelSpec a decay
      of 1.

  Returns:
    The total and metrics: those of `depths.weighted_sum`, and of the tokens,
    without masks, `regression` and the distribution's loss by its name.
  """
  features_btd, length = batch.features, batch.features.shape[1]
  outputs = groups.outputs(
    module,
    params,
    target_head,
    features_btd + batch.noise,
    batch.tokens[:, :-1],
    batch.starts,
    groups.sizes(batch.starts.shape[1], module.num_masks, weights.retention),
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
