"""Losses of drafters that are one layer: EAGLE's, and ParallelSpec's of both.

EAGLE (2401.15077, 4.2): regression of the feature and cross-entropy with the
target's distribution. ParallelSpec (2410.05589, 4.3): the sum of EAGLE's losses
over a group, or of Medusa's on the text.
"""

import jax
import jax.numpy as jnp

from specsamp.training.objectives import groups as layout
from specsamp.training.objectives import language_model as losses
from specsamp.training.objectives.batch import Batch, Weights


def medusa_parallel(
  module, params, target_head, batch: Batch, weights: Weights
):
  """-log q(the text) at the root, and decay^j times that at mask j.

  Offline: nothing is asked of the target, so agreement is with the text.

  Args:
    module: a `MedusaParallelLayer`.
    params: its own.
    target_head: the target's embedding and LM head.
    batch: features and noise are not read.
    weights: the paper's decay is 0.8.
  """
  tokens, count = batch.tokens, module.num_masks
  masks_m = layout.sizes(batch.starts.shape[1], count, weights.retention)
  groups = layout.outputs(
    module, params, target_head, None, tokens[:, :-1], batch.starts, masks_m
  )
  logits_bqv = target_head.logits(groups.hidden)
  label_bq = layout.take(tokens[:, 1:], groups.reads)
  losses_g = layout.by_depth(
    groups,
    losses.next_tokens(logits_bqv, label_bq),
    tokens.shape[1] - 1,
    count,
  )
  return _sum(
    weights.decay,
    losses_g,
    _agreement(module, groups, logits_bqv, label_bq, tokens),
  )


def eagle(module, params, target_head, batch: Batch, weights: Weights):
  """SmoothL1(feature) + weight * CE(p, q), summed over the group.

  Args:
    module: an `EagleLayer`, or an `EagleParallelLayer`.
    params: its own.
    target_head: the target's embedding and LM head.
    batch: with features.
    weights: EAGLE's cross-entropy is 0.1; the paper sums over masks plainly,
      which is a decay of 1.
  """
  tokens, features_btd = batch.tokens, batch.features
  groups = layout.outputs(
    module,
    params,
    target_head,
    features_btd + batch.noise,
    tokens[:, :-1],
    batch.starts,
    layout.sizes(batch.starts.shape[1], module.num_masks, weights.retention),
  )
  logits_bqv = target_head.logits(groups.hidden)
  p_logits_btv = target_head.logits(features_btd)
  log_q_bqv = jax.nn.log_softmax(logits_bqv, axis=-1)
  p_btv = jax.nn.softmax(p_logits_btv, axis=-1)
  wanted_bqd = layout.take(features_btd, groups.reads).astype(jnp.float32)
  error_bqd = jnp.abs(groups.hidden.astype(jnp.float32) - wanted_bqd)
  smooth_bq = jnp.mean(
    jnp.where(error_bqd < 1, 0.5 * error_bqd**2, error_bqd - 0.5), axis=-1
  )
  cross_bq = -jnp.sum(layout.take(p_btv, groups.reads) * log_q_bqv, axis=-1)
  mean = lambda values: layout.by_depth(
    groups, values, features_btd.shape[1], module.num_masks
  )
  regression_g, cross_g = mean(smooth_bq), mean(cross_bq)
  wanted_bq = layout.take(jnp.argmax(p_logits_btv, axis=-1), groups.reads)
  metrics = _agreement(module, groups, logits_bqv, wanted_bq, tokens)
  metrics |= {'regression': regression_g[0], 'cross_entropy': cross_g[0]}
  losses_g = regression_g + weights.cross_entropy * cross_g
  return _sum(weights.decay, losses_g, metrics)


def _agreement(module, groups, logits_bqv, wanted_bq, tokens):
  """How often the most probable token at each depth is the wanted one."""
  hit_bq = jnp.argmax(logits_bqv, axis=-1) == wanted_bq
  hits_g = layout.by_depth(
    groups, hit_bq.astype(jnp.float32), tokens.shape[1] - 1, module.num_masks
  )
  return {f'agreement_{j + 1}': hit for j, hit in enumerate(hits_g)}


def _sum(decay, losses_g, metrics):
  weights_g = decay ** jnp.arange(len(losses_g), dtype=jnp.float32)
  total = jnp.sum(weights_g * losses_g)
  each = {f'loss_{j + 1}': loss for j, loss in enumerate(losses_g)}
  return total, {'loss': total, **metrics, **each}
