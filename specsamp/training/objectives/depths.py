"""What drafts lose at each of their depths, in all and in metrics."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specsamp.training.objectives import acceptance
from specsamp.training.objectives.batch import Weights
from specsamp.training.objectives.groups import mean_where


class Depth(NamedTuple):
  """The tokens of one depth, of M drafts in each row.

  Where fewer drafts are as deep as this, they are the first ones.

  Attributes:
    loss: float [B, M].
    log_alpha: [B, M], see `acceptance.per_position`.
    hit: bool [B, M], whether the most probable token is the target's.
    inside: bool [B, M], whether the text reaches as far.
    teaches: bool [B, M], where the loss counts; None is wherever it is inside.
  """

  loss: jax.Array
  log_alpha: jax.Array
  hit: jax.Array
  inside: jax.Array
  teaches: jax.Array | None = None


def summed(weights: Weights, depths: Sequence[Depth], first: int = 0):
  """Sum over depths j of the mean losses as they weigh, and metrics.

  Args:
    weights: by decay, depth j weighs decay^j.
    depths: in order.
    first: j of the first one.

  Returns:
    The total; and by name the total, loss_1, agreement_1 and alpha_1 of the
    first depth, and so on: means that are not weighed.
  """
  metrics, counts = {}, []
  for j, depth in enumerate(depths, start=1):
    hit = depth.hit.astype(jnp.float32)
    alpha = jnp.exp(depth.log_alpha)
    counts.append(depth.inside if depth.teaches is None else depth.teaches)
    metrics[f'agreement_{j}'] = mean_where(hit, depth.inside)
    metrics[f'alpha_{j}'] = mean_where(alpha, depth.inside)
    metrics[f'loss_{j}'] = mean_where(depth.loss, counts[-1])
  if weights.positions == 'expected_length':
    weights_bmj = _expected_length_weights(depths)
    weighed = [
      mean_where(weights_bmj[:, : depth.loss.shape[1], j] * depth.loss, where)
      for j, (depth, where) in enumerate(zip(depths, counts, strict=True))
    ]
  else:
    weighed = [
      weights.decay ** (first + j) * metrics[f'loss_{j + 1}']
      for j in range(len(depths))
    ]
  total = sum(weighed)
  return total, {'loss': total, **metrics}


def _expected_length_weights(depths: Sequence[Depth]):
  """[B, M, J], of all drafts as if they were as deep as any."""
  most = depths[0].loss.shape[1]

  def stacked(arrays):
    padded = [
      jnp.pad(array, ((0, 0), (0, most - array.shape[1]))) for array in arrays
    ]
    return jnp.stack(padded, axis=-1)

  return acceptance.expected_length_weights(
    stacked([depth.log_alpha for depth in depths]),
    stacked([depth.inside for depth in depths]),
  )
