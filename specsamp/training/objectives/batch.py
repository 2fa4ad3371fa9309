"""What objectives are given."""

from typing import Literal, NamedTuple

import jax

from specsamp.training.objectives import acceptance

Positions = Literal['decay', 'expected_length']


class Batch(NamedTuple):
  """A batch of training sequences.

  Attributes:
    tokens: int [B, T + 1].
    starts: int [B, M], positions whose heads or masks are trained.
    features: the target's [B, T, taps * D] at the first T tokens; None for
      objectives that read none.
    noise: what is added to the features that the drafter reads; likewise.
    hidden: [B, T, D] there, what the target's LM head reads: the features
      themselves of a drafter that taps no layer.
  """

  tokens: jax.Array
  starts: jax.Array
  features: jax.Array | None = None
  noise: jax.Array | None = None
  hidden: jax.Array | None = None


class Weights(NamedTuple):
  """What is lessened, and how its parts weigh.

  Attributes:
    decay: of a head's or mask's weight with its distance.
    retention: see `groups.sizes`.
    cross_entropy: of the distribution's loss, beside the regression of
      features.
    loss: of the distribution, see `acceptance.per_position`.
    eta: of lk_lambda, likewise.
    positions: a draft's weigh by `decay`, or as
      `acceptance.expected_length_weights` has it.
    unroll: steps that a drafter goes on for from a place (EAGLE-3's).
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
    """Whether the target's distribution is needed, and not its text alone."""
    return self.loss != 'text' or self.positions == 'expected_length'
