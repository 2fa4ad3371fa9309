"""AdamW or Muon, under a warm-up and a decay of the learning rate."""

import jax
import optax
import optax.contrib

from specsamp.checkpoints import weights
from specsamp.training.run_config import RunConfig


def _rates(config: RunConfig) -> optax.Schedule:
  """(step) -> learning rate."""
  peak = config.learning_rate
  if not config.decay_share:
    return optax.warmup_cosine_decay_schedule(
      init_value=0.0,
      peak_value=peak,
      warmup_steps=config.warmup_steps,
      decay_steps=max(config.steps, config.warmup_steps + 1),
    )
  behind = max(config.steps - config.warmup_steps, 1)
  fall = min(round(config.decay_share * config.steps), behind)
  return optax.join_schedules(
    [
      optax.linear_schedule(0.0, peak, config.warmup_steps),
      optax.constant_schedule(peak),
      optax.linear_schedule(peak, 0.0, fall),
    ],
    [config.warmup_steps, config.warmup_steps + behind - fall],
  )


def make_optimizer(config: RunConfig) -> optax.GradientTransformation:
  """Under a warm-up and a decay, gradients clipped by global norm."""
  schedule = _rates(config)
  common = dict(weight_decay=config.weight_decay)
  if config.optimizer == 'muon':
    steps = optax.contrib.muon(
      schedule,
      adam_b2=config.beta2,
      adam_weight_decay=config.weight_decay,
      consistent_rms=0.2,  # an update's root mean square, as AdamW's
      muon_weight_dimension_numbers=_matmuls_of_layers,
      weight_decay_mask=_is_matrix,
      **common,
    )
  else:
    steps = optax.adamw(schedule, b2=config.beta2, mask=_is_matrix, **common)
  return optax.chain(optax.clip_by_global_norm(config.clip_norm), steps)


def _is_matrix(params):
  return jax.tree_util.tree_map_with_path(
    lambda path, p: weights.is_matrix(path[-1].key, p), params
  )


def _matmuls_of_layers(params):
  """Which axes of a layer's matrices a matmul sums over; None for all else.

  Keys are apart from values, and gates from what they gate.
  """
  matmuls = {
    'q': ((2,), (0, 1)),
    'kv': ((3,), (1, 2)),
    'o': ((1, 2), (0,)),
    'up': ((2,), (1,)),
    'down': ((1,), (0,)),
  }

  def of(path, _):
    axes = matmuls.get(path[-1].key)
    return axes and optax.contrib.MuonDimensionNumbers(*axes)

  return jax.tree_util.tree_map_with_path(of, params)
