"""Inputs of the objectives."""

from typing import Literal, NamedTuple

import jax

from specsamp.training.objectives import acceptance

Positions = Literal['decay', 'expected_length']


class Batch(NamedTuple):
  """A batch of training sequences.

  Attributes:
    tokens: int [B, T + 1].
    starts: int [B, M], positions whose heads, masks, blocks or steps are
      trained.
    features: [B, T, E], the target's at the first T tokens: `hidden`, or the
      inputs of the layers that the drafter taps. None for objectives that read
      no features.
    noise: [B, T, E], added to the features that the drafter reads; None with
      `features`.
    hidden: [B, T, D], input of the target's LM head; None with `features`.
  """

  tokens: jax.Array
  starts: jax.Array
  features: jax.Array | None = None
  noise: jax.Array | None = None
  hidden: jax.Array | None = None


class Weights(NamedTuple):
  """The loss to minimize, and the weights of its parts.

  Attributes:
    decay: factor on the weight of a head, mask or step for each token between
      it and the root.
    retention: see `groups.sizes`.
    cross_entropy: weight of the distribution's loss relative to the regression
      of features (EAGLE's).
    loss: of the distribution, see `acceptance.per_position`.
    eta: of the loss lk_lambda, see `acceptance.per_position`.
    positions: weights of the tokens of a draft: by `decay`, or by
      `acceptance.expected_length_weights`.
    unroll: number of steps that EAGLE-3 drafts from each start.
  """

  decay: float = 1.0
  retention: float = 1.0
  cross_entropy: float = 0.1
  loss: acceptance.Loss = 'kl'
  eta: float = 3.0
  positions: Positions = 'decay'
  unroll: int = 1

  @property
  def read_p(self) -> bool:
    """True if the loss needs the target's distribution."""
    return self.loss != 'text' or self.positions == 'expected_length'
