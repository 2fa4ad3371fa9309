"""What objectives are given."""

from typing import NamedTuple

import jax


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
  """Of the parts of a loss.

  Attributes:
    decay: of a head's or mask's weight with its distance.
    retention: see `groups.sizes`.
    cross_entropy: beside the regression of features.
    unroll: steps that a drafter goes on for from a place (EAGLE-3's).
  """

  decay: float = 1.0
  retention: float = 1.0
  cross_entropy: float = 0.1
  unroll: int = 1
