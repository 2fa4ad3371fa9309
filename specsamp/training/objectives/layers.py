"""Losses of drafters that are one layer: EAGLE's, and ParallelSpec's of both.

EAGLE (2401.15077, 4.2): regression of the feature and cross-entropy with the
target's distribution. ParallelSpec (2410.05589, 4.3): the sum of EAGLE's losses
over a group, or of Medusa's on the text. In place of cross-entropy stands any
loss of `acceptance`.
"""

import jax
import jax.numpy as jnp

from specsamp.training.objectives import acceptance
from specsamp.training.objectives import groups as layout
from specsamp.training.objectives.batch import Batch, Weights


def medusa_parallel(
  module, params, target_head, batch: Batch, weights: Weights
):
  """The loss at the root and at every mask, as they weigh, and metrics.

  As published, -log q(the text): then nothing is asked of the target, which is
  why agreement is with the text. For losses with the target's distribution it
  is that after the text and the tokens between, which q did not see.

  Args:
    module: a `MedusaParallelLayer`.
    params: its own.
    target_head: the target's embedding and LM head.
    batch: with features for `weights` that read p; noise is not read.
    weights: the paper's loss is text, its decay 0.8: mask j weighs 0.8^j.
  """
  tokens, count = batch.tokens, module.num_masks
  masks_m = layout.sizes(batch.starts.shape[1], count, weights.retention)
  groups = layout.outputs(
    module, params, target_head, None, tokens[:, :-1], batch.starts, masks_m
  )
  logits_bqv = target_head.logits(groups.hidden)
  label_bq = layout.take(tokens[:, 1:], groups.reads)
  p_logits_btv = None
  if batch.features is not None:
    p_logits_btv = target_head.logits(batch.features)
  loss_bq, log_alpha_bq = _of_distribution(
    weights, groups, logits_bqv, p_logits_btv, label_bq
  )
  length = tokens.shape[1] - 1
  mean = lambda values_bq: layout.by_depth(groups, values_bq, length, count)
  metrics = _metrics(mean, logits_bqv, label_bq, log_alpha_bq)
  losses_g = mean(loss_bq)
  if weights.positions == 'expected_length':
    weights_bq = layout.expected_length_weights(
      groups, log_alpha_bq, length, count
    )
    return _sum(mean(weights_bq * loss_bq), losses_g, metrics)
  return _sum(_decayed(weights.decay, losses_g), losses_g, metrics)


def eagle(module, params, target_head, batch: Batch, weights: Weights):
  """SmoothL1(feature) + weight * loss(p, q), summed over the group.

  Args:
    module: an `EagleLayer`, or an `EagleParallelLayer`.
    params: its own.
    target_head: the target's embedding and LM head.
    batch: with features.
    weights: EAGLE's loss is kl, its weight 0.1; the paper sums over masks
      plainly, which is a decay of 1.
  """
  tokens, features_btd = batch.tokens, batch.features
  count = module.num_masks
  groups = layout.outputs(
    module,
    params,
    target_head,
    features_btd + batch.noise,
    tokens[:, :-1],
    batch.starts,
    layout.sizes(batch.starts.shape[1], count, weights.retention),
  )
  logits_bqv = target_head.logits(groups.hidden)
  p_logits_btv = target_head.logits(features_btd)
  wanted_bqd = layout.take(features_btd, groups.reads).astype(jnp.float32)
  error_bqd = jnp.abs(groups.hidden.astype(jnp.float32) - wanted_bqd)
  smooth_bq = jnp.mean(
    jnp.where(error_bqd < 1, 0.5 * error_bqd**2, error_bqd - 0.5), axis=-1
  )
  label_bq = layout.take(tokens[:, 1:], groups.reads)
  apart_bq, log_alpha_bq = _of_distribution(
    weights, groups, logits_bqv, p_logits_btv, label_bq
  )
  length = tokens.shape[1] - 1
  mean = lambda values_bq: layout.by_depth(groups, values_bq, length, count)
  regression_g, apart_g = mean(smooth_bq), mean(apart_bq)
  wanted_bq = layout.take(jnp.argmax(p_logits_btv, axis=-1), groups.reads)
  metrics = _metrics(mean, logits_bqv, wanted_bq, log_alpha_bq)
  metrics |= {'regression': regression_g[0], weights.loss: apart_g[0]}
  losses_g = regression_g + weights.cross_entropy * apart_g
  if weights.positions == 'expected_length':
    weights_bq = layout.expected_length_weights(
      groups, log_alpha_bq, length, count
    )
    loss_bq = smooth_bq + weights.cross_entropy * apart_bq
    return _sum(mean(weights_bq * loss_bq), losses_g, metrics)
  return _sum(_decayed(weights.decay, losses_g), losses_g, metrics)


def _of_distribution(
  weights: Weights, groups, logits_bqv, p_logits_btv, label_bq
):
  """`acceptance.per_position` of every output, given p of every token."""
  p_logits_bqv = p_normalizer_bq = None
  if p_logits_btv is not None:
    p_logits_bqv = layout.take(p_logits_btv, groups.reads)
    p_normalizer_bq = layout.take(
      jax.nn.logsumexp(p_logits_btv, axis=-1), groups.reads
    )
  return acceptance.per_position(
    weights.loss,
    logits_bqv,
    p_logits_bqv,
    label_bq,
    eta=weights.eta,
    p_normalizer=p_normalizer_bq,
  )


def _metrics(mean, logits_bqv, wanted_bq, log_alpha_bq):
  """Of each depth: how often the most probable token is the wanted one; alpha.

  The latter where the target's distribution is known.
  """
  hit_bq = jnp.argmax(logits_bqv, axis=-1) == wanted_bq
  found = {'agreement': mean(hit_bq.astype(jnp.float32))}
  if log_alpha_bq is not None:
    found['alpha'] = mean(jnp.exp(log_alpha_bq))
  return {
    f'{name}_{j + 1}': value
    for name, values_g in found.items()
    for j, value in enumerate(values_g)
  }


def _decayed(decay, losses_g):
  return decay ** jnp.arange(len(losses_g), dtype=jnp.float32) * losses_g


def _sum(weighed_g, losses_g, metrics):
  total = jnp.sum(weighed_g)
  each = {f'loss_{j + 1}': loss for j, loss in enumerate(losses_g)}
  return total, {'loss': total, **metrics, **each}
