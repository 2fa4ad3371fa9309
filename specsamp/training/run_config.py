"""Config of every training run, and its optimizer."""

import dataclasses
from typing import Literal

import jax
import optax.contrib

from specsamp.checkpoints import weights
from specsamp.errors import check_range

Optimizer = Literal['adamw', 'muon']
Storage = Literal['float32', 'int8']


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
  """Settings of every training run.

  Attributes:
    batch_size: sequences in a step.
    length: tokens in a sequence.
    steps: steps of the optimizer.
    learning_rate: peak learning rate, after the warm-up; a cosine to zero
      follows.
    warmup_steps: steps of linear warm-up.
    decay_share: share of the steps, at the end, in which the learning rate
      falls linearly to zero after it was held at its peak. 1 is all steps after
      the warm-up, 0 is the cosine.
    optimizer: adamw, or muon for the matrices of the layers (Jordan et al.
      2024), with updates scaled to the size of AdamW's (2502.16982), and NAdamW
      for other parameters.
    weight_decay: weight decay of matrices.
    beta2: beta2 of AdamW; beta1 is 0.9.
    clip_norm: largest global norm of a gradient.
    seed: seed of the weights and of the order of the data.
    log_every: steps between lines of metrics.
    eval_every: steps between validations on the held-out files.
    eval_batches: batches in a validation.
    checkpoint_every: steps between checkpoints.
  """

  batch_size: int = 16
  length: int = 256
  steps: int = 1000
  learning_rate: float = 1e-3
  warmup_steps: int = 100
  decay_share: float = 0.0
  optimizer: Optimizer = 'adamw'
  weight_decay: float = 0.1
  beta2: float = 0.95
  clip_norm: float = 1.0
  seed: int = 0
  log_every: int = 10
  eval_every: int = 200
  eval_batches: int = 8
  checkpoint_every: int = 200

  def __post_init__(self):
    check_range(
      self, 'batch_size', 'length', 'steps', 'log_every', 'eval_every',
      'eval_batches', 'checkpoint_every', min=1, kind=int,
    )  # fmt: skip
    check_range(self, 'seed', 'warmup_steps', min=0, kind=int)
    check_range(self, 'decay_share', min=0, max=1)
    check_range(self, 'learning_rate', 'weight_decay', min=0)
    check_range(self, 'clip_norm', min=0, open_min=True)
    check_range(self, 'beta2', min=0, max=1, open_max=True)


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
  """Returns the summed axes of the matrices of layers, None for other arrays.

  Muon then treats keys apart from values, and gates apart from hidden units.
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
