"""Comparison of drafted tokens with a text, depth by depth."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specsamp.training.distill_config import DistillConfig
from specsamp.training.objectives import acceptance


class Batch(NamedTuple):
  """A batch of training sequences.

  Attributes:
    tokens: int [B, T + 1].
    starts: int [B, M], positions whose heads, masks, blocks or steps are
      trained.
    features: [B, T, E], the target's features at the first T tokens: `hidden`,
      or the inputs of the layers that the drafter taps. None, like the next
      two, for objectives that read no features.
    noise: [B, T, E], added to the features that the drafter reads.
    hidden: [B, T, D], input of the target's LM head.
    counts: bool [B, T], True where the next token's loss counts; None counts
      all.
  """

  tokens: jax.Array
  starts: jax.Array
  features: jax.Array | None = None
  noise: jax.Array | None = None
  hidden: jax.Array | None = None
  counts: jax.Array | None = None


class Depth(NamedTuple):
  """Losses of the tokens that drafts have at one depth: arrays [B, M].

  Attributes:
    start: int, the position that each draft continues.
    loss: float.
    log_alpha: float, see `acceptance.per_position`; None if the target's
      distribution is unknown.
    hit: bool, True if the draft's most probable token is the right one.
    inside: bool, True if the text has a token there that counts.
    teaches: bool, True if the loss counts.
  """

  start: jax.Array
  loss: jax.Array
  log_alpha: jax.Array | None
  hit: jax.Array
  inside: jax.Array
  teaches: jax.Array


class Labels(NamedTuple):
  """Right answers after each token of a text.

  Attributes:
    logits: float32 [B, T, V], the target's; None if only the text is known.
    normalizer: float32 [B, T], logsumexp of the target's logits over all of its
      tokens; `logits` may have only a part of the tokens.
    best: int [B, T], the column of the target's most probable token.
    next: int [B, T], the column of the text's next token.
    counts: bool [B, T], see `Batch`, or None.
  """

  logits: jax.Array | None
  normalizer: jax.Array | None
  best: jax.Array
  next: jax.Array
  counts: jax.Array | None = None

  @classmethod
  def make(cls, target_head, batch: Batch) -> 'Labels':
    """Returns the labels of a batch, from its text alone without `hidden`."""
    next_bt = batch.tokens[:, 1:]
    if batch.hidden is None:
      return cls(None, None, next_bt, next_bt, batch.counts)
    logits_btv = target_head.logits(batch.hidden)
    return cls(
      logits_btv,
      jax.nn.logsumexp(logits_btv, axis=-1),
      jnp.argmax(logits_btv, axis=-1),
      next_bt,
      batch.counts,
    )

  def compare(
    self, config: DistillConfig, q_logits, places_bm, distance
  ) -> Depth:
    """Compares drafted distributions with the labels.

    Args:
      config: names the loss.
      q_logits: float32 [B, M, V], the draft's logits.
      places_bm: int [B, M], position of the token before each drafted one. It
        may be beyond the text.
      distance: int, one for all or [1, M], from the starts to `places_bm`.
    """
    there = [None if x is None else take(x, places_bm) for x in self]
    logits_bmv, normalizer_bm, best_bm, next_bm, counts_bm = there
    loss_bm, log_alpha_bm = acceptance.per_position(
      config.loss,
      q_logits,
      logits_bmv,
      next_bm,
      eta=config.eta,
      p_normalizer=normalizer_bm,
    )
    inside_bm = places_bm < self.next.shape[1]
    if counts_bm is not None:
      inside_bm &= counts_bm
    return Depth(
      start=places_bm - distance,
      loss=loss_bm,
      log_alpha=log_alpha_bm,
      hit=jnp.argmax(q_logits, axis=-1) == best_bm,
      inside=inside_bm,
      teaches=inside_bm,
    )


def weighted_sum(
  config: DistillConfig, depths: Sequence[Depth], length: int, first: int = 0
):
  """Sums the mean losses of all depths, weighted.

  Args:
    config: with position_weights 'decay', depth j weighs decay^j.
    depths: losses of each depth, in order.
    length: T, tokens of the text.
    first: j of the first depth.

  Returns:
    The total, and metrics by name: the total as `loss`, and unweighted means
    loss_1, agreement_1 and alpha_1 of the first depth, and so on.
  """
  by_length = config.position_weights == 'expected_length'
  if by_length:
    weights_jbm = _expected_length_weights(depths, length)
  metrics, total = {}, 0
  for j, depth in enumerate(depths):
    loss = mean_where(depth.loss, depth.teaches)
    hit = depth.hit.astype(jnp.float32)
    metrics[f'loss_{j + 1}'] = loss
    metrics[f'agreement_{j + 1}'] = mean_where(hit, depth.inside)
    if depth.log_alpha is not None:
      alpha = jnp.exp(depth.log_alpha)
      metrics[f'alpha_{j + 1}'] = mean_where(alpha, depth.inside)
    if by_length:
      total += mean_where(weights_jbm[j] * depth.loss, depth.teaches)
    else:
      total += config.decay ** (first + j) * loss
  return total, {'loss': total, **metrics}


def _expected_length_weights(depths: Sequence[Depth], length: int):
  """Returns `acceptance.expected_length_weights` of each depth: [B, M] each.

  A draft that lacks a depth gets the mean acceptance of that depth's drafts.
  """
  # A row for each position of the text, whether or not a draft starts there.
  scatter = jax.vmap(
    lambda start_m, values_m: (
      jnp.zeros(length, values_m.dtype).at[start_m].set(values_m)
    )
  )
  weights_btj = acceptance.expected_length_weights(
    jnp.stack([scatter(d.start, d.log_alpha) for d in depths], axis=-1),
    jnp.stack([scatter(d.start, d.inside) for d in depths], axis=-1),
  )
  return [take(weights_btj[..., j], d.start) for j, d in enumerate(depths)]


def mean_where(values, where):
  """Returns the mean of the values where `where` is True; 0 if nowhere."""
  total = jnp.sum(jnp.where(where, values, 0))
  return total / jnp.maximum(where.sum(dtype=values.dtype), 1)


def take(array_bt, places_bm):
  """Returns entries [B, M, ..] of each row; beyond the end, the last one."""
  return jax.vmap(lambda row, place: jnp.take(row, place, axis=0, mode='clip'))(
    array_bt, places_bm
  )
