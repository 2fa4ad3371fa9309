"""Comparison of drafted tokens with a text, depth by depth."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specsamp.training.distill_config import DistillConfig
from specsamp.training.objectives import acceptance

# Logits in a part of a batch: 128 MiB of float32.
_PART_LOGITS = 1 << 25


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
    next: int [B, T], the text's next token.
    hidden: [B, T, D], input of the target's LM head; None if only the text is
      known.
    counts: bool [B, T], see `Batch`, or None.
  """

  next: jax.Array
  hidden: jax.Array | None
  counts: jax.Array | None

  @classmethod
  def of(cls, batch: Batch) -> 'Labels':
    return cls(batch.tokens[:, 1:], batch.hidden, batch.counts)

  def compare(
    self, config: DistillConfig, target_head, hidden_bmd, places_bm, distance
  ) -> Depth:
    """Compares drafted distributions with the labels, in parts.

    The logits of a whole batch take more memory than everything else. For a
    gradient, the loss of a part and its gradient in `hidden_bmd` are computed
    together, so that the logits are neither kept nor computed again.

    If the drafter cannot draft all tokens, p is the target's distribution on
    those that it can. Places whose text has another token teach nothing, and
    count as rejected.

    Args:
      config: names the loss.
      target_head: the target's LM head. It gets no gradient.
      hidden_bmd: [B, M, D], the drafter's outputs, inputs of the LM head.
      places_bm: int [B, M], position of the token before each drafted one. It
        may be beyond the text.
      distance: int, one for all or [1, M], from the starts to `places_bm`.
    """

    def total(hidden_bmd, places_bm):
      p_logits = None
      if self.hidden is not None:
        p_logits = target_head.row_logits(take(self.hidden, places_bm))
      logits_bmk = target_head.row_logits(hidden_bmd)
      next_bm = target_head.row_of(take(self.next, places_bm))
      next_bm = jnp.minimum(next_bm, target_head.num_rows - 1)
      compared = compare(config, logits_bmk, next_bm, p_logits)
      return compared[0].sum(), compared

    def over_parts(compute, hidden_bmd):
      num_logits = target_head.num_rows * len(hidden_bmd)
      max_places = max(_PART_LOGITS // num_logits, 1)
      return in_parts(
        lambda part: compute(*part), (hidden_bmd, places_bm), max_places
      )

    @jax.custom_vjp
    def compared(hidden_bmd):
      return over_parts(lambda *part: total(*part)[1], hidden_bmd)

    def forward(hidden_bmd):
      gradient_bmd, result = over_parts(
        jax.grad(total, has_aux=True), hidden_bmd
      )
      return result, gradient_bmd

    def backward(gradient_bmd, cotangents):
      loss_bm = cotangents[0].astype(gradient_bmd.dtype)
      return (loss_bm[..., None] * gradient_bmd,)

    compared.defvjp(forward, backward)
    loss_bm, log_alpha_bm, hit_bm = compared(hidden_bmd)
    inside_bm = self.is_inside(places_bm)
    if target_head.draft_rows is None:
      has_row_bm = jnp.ones_like(inside_bm)
    else:
      next_bm = target_head.row_of(take(self.next, places_bm))
      has_row_bm = next_bm < target_head.num_rows
    if log_alpha_bm is not None:
      log_alpha_bm = jnp.where(has_row_bm, log_alpha_bm, acceptance.NEVER)
    return Depth(
      start=places_bm - distance,
      loss=loss_bm,
      log_alpha=log_alpha_bm,
      hit=hit_bm & has_row_bm,
      inside=inside_bm,
      teaches=inside_bm & has_row_bm,
    )

  def is_inside(self, places_bm):
    """Returns `Depth.inside` of tokens after these places."""
    inside_bm = places_bm < self.next.shape[1]
    if self.counts is None:
      return inside_bm
    return inside_bm & take(self.counts, places_bm)


def compare(
  config: DistillConfig, q_logits, next_bm, p_logits=None, p_normalizer=None
):
  """Compares drafted distributions with the right ones.

  Args:
    config: names the loss.
    q_logits: float32 [B, M, V], the draft's logits.
    next_bm: int [B, M], the column of the text's token.
    p_logits: float32 [B, M, V], the target's logits; None if only the text is
      known.
    p_normalizer: see `acceptance.per_position`.

  Returns:
    The loss, log alpha and `Depth.hit`, [B, M] each.
  """
  loss_bm, log_alpha_bm = acceptance.per_position(
    config.loss,
    q_logits,
    p_logits,
    next_bm,
    eta=config.eta,
    p_normalizer=p_normalizer,
  )
  best_bm = next_bm if p_logits is None else jnp.argmax(p_logits, axis=-1)
  return loss_bm, log_alpha_bm, jnp.argmax(q_logits, axis=-1) == best_bm


def in_parts(compute, arrays, max_size: int):
  """Computes a tree of arrays [B, M, ..] for at most `max_size` of M at once.

  Args:
    compute: (arrays of a part) -> a tree of arrays.
    arrays: tree of arrays [B, M, ..]. Copies of the last of M fill up the last
      part.
    max_size: largest M of a part.
  """
  count = jax.tree.leaves(arrays)[0].shape[1]
  parts = -(-count // max_size)
  if parts == 1:
    return compute(arrays)
  size = -(-count // parts)

  def split(array):
    axes = ((0, 0), (0, parts * size - count), *((0, 0),) * (array.ndim - 2))
    array = jnp.pad(array, axes, mode='edge')
    array = array.reshape(len(array), parts, size, *array.shape[2:])
    return jnp.moveaxis(array, 1, 0)

  def join(array):
    array = jnp.moveaxis(array, 0, 1)
    return array.reshape(len(array), -1, *array.shape[3:])[:, :count]

  return jax.tree.map(join, jax.lax.map(compute, jax.tree.map(split, arrays)))


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
