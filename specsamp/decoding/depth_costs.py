"""Cost of a round at each draft depth or tree size, timed where it decodes."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.decoding.request import Request
from specsamp.drafting.adaptive import CostAwareDrafter
from specsamp.drafting.drafter import Drafter
from specsamp.errors import UserError
from specsamp.utils import distributed, progress

_ROUNDS = 16  # timed together


def measure(request: Request, repeats: int = 9) -> np.ndarray:
  """Returns the milliseconds [K] of a round of each choice, from process 0.

  A choice is a depth or a tree size. The timings are interleaved and use the
  request's batch size. Costs are traced values, so one compiled program serves
  all choices: each timing sets costs that force its choice. A result is the
  mean of the fastest third.

  Raises:
    UserError: the request's drafter does not choose by cost.
  """
  drafter = request.inputs.drafter
  if not isinstance(drafter, CostAwareDrafter):
    raise UserError(
      f'depth costs: got a request of a {type(drafter).__name__}, expected one '
      'of an AdaptiveDrafter or AdaptiveTreeDrafter'
    )
  request.compile()
  requests = list(map(request.with_drafter, drafter.at_each_choice()))
  times = [[] for _ in requests]
  turns = list(range(len(requests))) * repeats
  for i in progress.bar('timing drafts', turns, unit='loop', stays=False):
    times[i].append(_ms_per_round(requests[i]))
  # Other work slows some loops. For two depths that differ by a fifth, means of
  # nine loops but the slowest differed by 0.15 to 0.26 in seven timings, means
  # of the fastest three by 0.17 to 0.20.
  fastest = np.sort(times, axis=1)[:, : max(repeats // 3, 1)]
  return distributed.of_first(fastest.mean(axis=1).astype(np.float32))


def measured(
  drafter: CostAwareDrafter, make_request: Callable[[Drafter], Request]
) -> CostAwareDrafter:
  """Returns the drafter with the costs measured for a request."""
  return drafter.replace(ms=jnp.asarray(measure(make_request(drafter))))


def _ms_per_round(request: Request) -> float:
  state = jax.block_until_ready(request.prefill())
  began = time.perf_counter()
  state = jax.block_until_ready(request.decode(state, rounds=_ROUNDS))
  rounds = int(np.asarray(state.stats.rounds).max())
  return 1e3 * (time.perf_counter() - began) / max(rounds, 1)
