"""Speedup of a speculative loop, from times and an acceptance rate.

Every draft token is accepted with the same probability α, independently of the
tokens before it (Chen et al. 2302.01318, Leviathan et al. 2211.17192).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from specsamp.drafting.draft import TokenTree
from specsamp.errors import UserError
from specsamp.planning import tree_search

GAMMAS = range(1, 11)


class Point(NamedTuple):
  """Predicted loop of one draft length.

  Attributes:
    gamma: γ, number of draft tokens.
    tau: τ, tokens per loop, the bonus or residual token included.
    loop_ms: milliseconds per loop.
    ms_per_token: loop_ms / tau.
    speedup: speedup over autoregressive decoding.
  """

  gamma: int
  tau: float
  loop_ms: float
  ms_per_token: float
  speedup: float


def expected_tokens(alpha: float, gamma: int) -> float:
  """Returns τ of a chain, (1 - α^(γ + 1)) / (1 - α), or γ + 1 for α = 1."""
  return tree_search.expected_tokens(TokenTree.chain(gamma), (alpha,))


def alpha_of(tau: float, gamma: int) -> float:
  """Returns the α for which `expected_tokens` is τ.

  Raises:
    UserError: τ is not between 1 and γ + 1.
  """
  if not 1 <= tau <= gamma + 1:
    raise UserError(
      f'tau of {gamma} draft tokens must be 1 to {gamma + 1}, got {tau:g}'
    )
  low, high = 0.0, 1.0
  for _ in range(50):  # halves are exact in float64 that far
    middle = (low + high) / 2
    if expected_tokens(middle, gamma) < tau:
      low = middle
    else:
      high = middle
  return (low + high) / 2


def curve(
  alpha: float,
  draft_ms: float,
  score_ms: Callable[[int], float],
  target_ms: float,
) -> list[Point]:
  """Returns the predicted loops of 1 to 10 draft tokens.

  Args:
    alpha: probability that a draft token is accepted.
    draft_ms: milliseconds of a draft step.
    score_ms: γ -> milliseconds of a scoring pass over γ + 1 tokens.
    target_ms: milliseconds of an autoregressive token.
  """
  points = []
  for gamma in GAMMAS:
    tau = expected_tokens(alpha, gamma)
    loop = gamma * draft_ms + score_ms(gamma)
    points.append(Point(gamma, tau, loop, loop / tau, target_ms * tau / loop))
  return points


def best(points: Sequence[Point]) -> Point:
  """Returns the fastest loop."""
  return max(points, key=lambda point: point.speedup)
