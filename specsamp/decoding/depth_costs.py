"""What a round of each depth costs here: timed in the program that decodes."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.decoding.request import Request
from specsamp.drafting.adaptive import AdaptiveDrafter
from specsamp.drafting.drafter import Drafter
from specsamp.errors import UserError
from specsamp.utils import distributed, progress

_ROUNDS = 16  # that are timed together


def measure(request: Request, repeats: int = 9) -> np.ndarray:
  """Milliseconds [K] of a round of each depth; the first process's.

  The depth with the least cost is always chosen, and costs are a value: so
  every depth is timed in the one program that there is, at this request's
  batch size, the depths taking turns.

  Args:
    request: of an `AdaptiveDrafter`; its own costs are not read.
    repeats: how often each depth is timed; the mean of the fastest third
      counts.

  Raises:
    UserError: a request of another drafter.
  """
  drafter = request.inputs.drafter
  if not isinstance(drafter, AdaptiveDrafter):
    raise UserError(
      f'depth costs: got a request of a {type(drafter).__name__}, expected one '
      'of an AdaptiveDrafter'
    )
  request.compile()
  requests = [request.with_drafter(part) for part in drafter.parts()]
  times = [[] for _ in requests]
  turns = [i for _ in range(repeats) for i in range(len(requests))]
  for i in progress.bar('timing depths', turns, unit='loop', stays=False):
    times[i].append(_ms_a_round(requests[i]))
  # Other work only slows a loop, and not all depths' alike: of two depths that
  # differ by a fifth, means of nine loops but the slowest differed by 0.15 to
  # 0.26 in seven timings, those of the fastest three by 0.17 to 0.20.
  counted = np.sort(times, axis=1)[:, : max(repeats // 3, 1)]
  ms = counted.mean(axis=1).astype(np.float32)
  return distributed.of_first(ms)


def measured(
  drafter: AdaptiveDrafter, request_of: Callable[[Drafter], Request]
) -> AdaptiveDrafter:
  """The drafter with the costs that it has in this request."""
  return drafter.replace(ms=jnp.asarray(measure(request_of(drafter))))


def _ms_a_round(request: Request) -> float:
  state = jax.block_until_ready(request.prefill())
  began = time.perf_counter()
  state = jax.block_until_ready(request.decode(state, rounds=_ROUNDS))
  rounds = int(np.asarray(state.stats.rounds).max())
  return 1e3 * (time.perf_counter() - began) / max(rounds, 1)
