"""Config of every training run."""

import dataclasses
from typing import Literal

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
      'eval_batches', 'checkpoint_every', least=1, kind=int,
    )  # fmt: skip
    check_range(self, 'seed', 'warmup_steps', least=0, kind=int)
    check_range(self, 'decay_share', least=0, most=1)
    check_range(self, 'learning_rate', 'weight_decay', least=0)
    check_range(self, 'clip_norm', least=0, open_least=True)
    check_range(self, 'beta2', least=0, most=1, open_most=True)
