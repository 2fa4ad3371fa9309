"""What a loop of speculative sampling gains, from times and acceptance.

As Chen et al. 2302.01318 and Leviathan et al. 2211.17192 reckon: every drafted
token is accepted with the same chance α, whatever came before it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from specsamp.drafting.draft import TokenTree
from specsamp.planning import tree_search

GAMMAS = range(1, 11)


class Point(NamedTuple):
  """A loop of one draft length.

  Attributes:
    gamma: γ, drafted tokens.
    tau: tokens a loop, the bonus or residual token included.
    loop_ms: milliseconds of it.
    ms_per_token: loop_ms / tau.
    speedup: over autoregressive sampling.
  """

  gamma: int
  tau: float
  loop_ms: float
  ms_per_token: float
  speedup: float


def expected_tokens(alpha: float, gamma: int) -> float:
  """τ of a chain: (1 - α^(γ + 1)) / (1 - α), and γ + 1 for α = 1.

  Args:
    alpha: chance that a drafted token is accepted.
    gamma: drafted tokens, at least 0.

  Raises:
    ValueError: α that is no chance.
  """
  return tree_search.expected_tokens(TokenTree.chain(gamma), (alpha,))


def alpha_of(tau: float, gamma: int) -> float:
  """The α of which `expected_tokens` is τ.

  Args:
    tau: tokens a loop.
    gamma: drafted tokens, at least 1.

  Raises:
    ValueError: τ that no α gives: it is at least 1 and at most γ + 1.
  """
  if not 1 <= tau <= gamma + 1:
    raise ValueError(
      f'tau of {gamma} drafted tokens must be 1 to {gamma + 1}, got {tau:g}'
    )
  low, high = 0.0, 1.0
  for _ in range(50):  # halves are exact that far
    middle = (low + high) / 2
    if expected_tokens(middle, gamma) < tau:
      low = middle
    else:
      high = middle
  return (low + high) / 2


def loop_ms(draft_ms: float, score_ms: float, gamma: int) -> float:
  """Milliseconds of a loop: γ draft steps and one scoring pass."""
  return gamma * draft_ms + score_ms


def implied_tau(speedup: float, loop_ms: float, target_ms: float) -> float:
  """Tokens a loop that a published speedup takes.

  Args:
    speedup: over autoregressive sampling.
    loop_ms: milliseconds of a loop.
    target_ms: milliseconds of an autoregressive token.
  """
  return loop_ms / (target_ms / speedup)


def curve(
  alpha: float,
  draft_ms: float,
  score_ms: Callable[[int], float],
  target_ms: float,
) -> list[Point]:
  """Loops of 1 to 10 drafted tokens.

  Args:
    alpha: chance that a drafted token is accepted.
    draft_ms: milliseconds of a draft step.
    score_ms: milliseconds of a scoring pass over γ + 1 tokens, given γ.
    target_ms: milliseconds of an autoregressive token.
  """
  points = []
  for gamma in GAMMAS:
    tau = expected_tokens(alpha, gamma)
    loop = loop_ms(draft_ms, score_ms(gamma), gamma)
    points.append(Point(gamma, tau, loop, loop / tau, target_ms * tau / loop))
  return points


def best(points: Sequence[Point]) -> Point:
  """The fastest."""
  return max(points, key=lambda point: point.speedup)
