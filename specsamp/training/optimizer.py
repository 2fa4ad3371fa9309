"""AdamW or Muon with a warm-up and a decay of the learning rate."""

import jax
import optax.contrib

from specsamp.checkpoints import weights
from specsamp.training.run_config import RunConfig


def make_optimizer(config: RunConfig) -> optax.GradientTransformation:
  """Returns the optimizer of a config; it clips gradients by global norm."""
  schedule = _schedule(config)
  common = dict(weight_decay=config.weight_decay)
  if config.optimizer == 'muon':
    optimizer = optax.contrib.muon(
      schedule,
      adam_b2=config.beta2,
      adam_weight_decay=config.weight_decay,
      consistent_rms=0.2,  # an update's root mean square, like AdamW's
      muon_weight_dimension_numbers=_matmuls_of_layers,
      weight_decay_mask=_is_matrix,
      **common,
    )
  else:
    optimizer = optax.adamw(
      schedule, b2=config.beta2, mask=_is_matrix, **common
    )
  return optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)


def _schedule(config: RunConfig) -> optax.Schedule:
  """Returns (step) -> learning rate."""
  peak, warmup_steps = config.learning_rate, config.warmup_steps
  if not config.decay_share:
    decay_steps = max(config.steps, warmup_steps + 1)
    return optax.warmup_cosine_decay_schedule(
      0.0, peak, warmup_steps, decay_steps
    )
  left = max(config.steps - warmup_steps, 1)
  decay_steps = min(round(config.decay_share * config.steps), left)
  return optax.join_schedules(
    [
      optax.linear_schedule(0.0, peak, warmup_steps),
      optax.constant_schedule(peak),
      optax.linear_schedule(peak, 0.0, decay_steps),
    ],
    [warmup_steps, warmup_steps + left - decay_steps],
  )


def _is_matrix(params):
  return jax.tree_util.tree_map_with_path(
    lambda path, p: weights.is_matrix(path[-1].key, p), params
  )


def _matmuls_of_layers(params):
  """Returns the axes that the matrices of layers sum over; None for others.

  Muon then treats keys apart from values, and gates apart from what they gate.
  """
  matmuls = {
    'q': ((2,), (0, 1)),
    'kv': ((3,), (1, 2)),
    'o': ((1, 2), (0,)),
    'up': ((2,), (1,)),
    'down': ((1,), (0,)),
  }

  def numbers(path, _):
    axes = matmuls.get(path[-1].key)
    return axes and optax.contrib.MuonDimensionNumbers(*axes)

  return jax.tree_util.tree_map_with_path(numbers, params)
