"""Comparison of drafted tokens with a text, depth by depth."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specsamp.training.objectives import acceptance
from specsamp.training.objectives.batch import Batch, Weights


class Depth(NamedTuple):
  """Losses of the tokens that drafts have at one depth.

  Attributes:
    start: int [B, M], the position that each draft continues.
    loss: float [B, M].
    log_alpha: float [B, M], see `acceptance.per_position`; None if the target's
      distribution is unknown.
    hit: bool [B, M], True if the draft's most probable token is the right one.
    inside: bool [B, M], True if the text has a token there.
    teaches: bool [B, M], True if the loss counts; None for wherever `inside`.
  """

  start: jax.Array
  loss: jax.Array
  log_alpha: jax.Array | None
  hit: jax.Array
  inside: jax.Array
  teaches: jax.Array | None = None


class Labels(NamedTuple):
  """Right answers after each token of a text.

  Attributes:
    logits: float32 [B, T, V], the target's; None if only the text is known.
    normalizer: float32 [B, T], logsumexp of the target's logits over all of its
      tokens, of which `logits` may have a part.
    best: int [B, T], the column of the target's most probable token.
    next: int [B, T], the column of the text's next token.
  """

  logits: jax.Array | None
  normalizer: jax.Array | None
  best: jax.Array
  next: jax.Array

  @classmethod
  def make(cls, target_head, batch: Batch) -> 'Labels':
    """Returns the labels of a batch; those of its text without `hidden`."""
    next_bt = batch.tokens[:, 1:]
    if batch.hidden is None:
      return cls(None, None, next_bt, next_bt)
    logits_btv = target_head.logits(batch.hidden)
    return cls(
      logits_btv,
      jax.nn.logsumexp(logits_btv, axis=-1),
      jnp.argmax(logits_btv, axis=-1),
      next_bt,
    )

  def compare(self, weights: Weights, q_logits, places_bm, distance) -> Depth:
    """Compares drafted distributions with the labels.

    Args:
      weights: of the loss.
      q_logits: float32 [B, M, V], the draft's logits.
      places_bm: int [B, M], position of the token before each drafted one. It
        may be beyond the text.
      distance: int, one for all or [1, M], from the starts to `places_bm`.
    """
    there = [None if x is None else take(x, places_bm) for x in self]
    logits_bmv, normalizer_bm, best_bm, next_bm = there
    loss_bm, log_alpha_bm = acceptance.per_position(
      weights.loss,
      q_logits,
      logits_bmv,
      next_bm,
      eta=weights.eta,
      p_normalizer=normalizer_bm,
    )
    return Depth(
      start=places_bm - distance,
      loss=loss_bm,
      log_alpha=log_alpha_bm,
      hit=jnp.argmax(q_logits, axis=-1) == best_bm,
      inside=places_bm < self.next.shape[1],
    )


def weighted_sum(
  weights: Weights, depths: Sequence[Depth], length: int, first: int = 0
):
  """Sums the mean losses of all depths, weighted.

  Args:
    weights: with positions 'decay', depth j weighs decay^j.
    depths: in order.
    length: T, tokens of the text.
    first: j of the first depth.

  Returns:
    The total; and by name the total as `loss`, and loss_1, agreement_1 and
    alpha_1 of the first depth, and so on: means without weights.
  """
  metrics = {}
  counts = [d.inside if d.teaches is None else d.teaches for d in depths]
  for j, (depth, counts_bm) in enumerate(
    zip(depths, counts, strict=True), start=1
  ):
    hit = depth.hit.astype(jnp.float32)
    metrics[f'loss_{j}'] = mean_where(depth.loss, counts_bm)
    metrics[f'agreement_{j}'] = mean_where(hit, depth.inside)
    if depth.log_alpha is not None:
      alpha = jnp.exp(depth.log_alpha)
      metrics[f'alpha_{j}'] = mean_where(alpha, depth.inside)
  if weights.positions == 'expected_length':
    losses = [
      mean_where(weights_bm * depth.loss, counts_bm)
      for weights_bm, depth, counts_bm in zip(
        _expected_length_weights(depths, length), depths, counts, strict=True
      )
    ]
  else:
    losses = [
      weights.decay ** (first + j) * metrics[f'loss_{j + 1}']
      for j in range(len(depths))
    ]
  total = sum(losses)
  return total, {'loss': total, **metrics}


def _expected_length_weights(depths: Sequence[Depth], length: int):
  """Returns `acceptance.expected_length_weights` of each depth: [B, M] each.

  Drafts that a depth lacks count as the others of that depth do on average.
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
