"""What a round of each depth costs here: timed in the program that decodes."""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np

from specsamp import progress
from specsamp.decoding.request import Request
from specsamp.drafting.adaptive import FIRST_WAIT, AdaptiveDrafter
from specsamp.sharding import distributed

_ROUNDS = FIRST_WAIT  # in which the choice is that of the costs alone


def measure(request: Request, repeats: int = 9) -> np.ndarray:
  """Milliseconds [K] of a round of each depth; the first process's.

  The depth with the least cost is always chosen, and costs are a value: so
  every depth is timed in the one program that there is, at this request's
  batch size, the depths taking turns.

  Args:
    request: of an `AdaptiveDrafter`; what it costs by itself is not read.
    repeats: how often each depth is timed; the medians count.
  """
  count = len(request.inputs.drafter.depths)
  request.compile()
  times = [[] for _ in range(count)]
  turns = [i for _ in range(repeats) for i in range(count)]
  for i in progress.bar('timing depths', turns, unit='loop', stays=False):
    times[i].append(_ms_a_round(_choosing(request, i)))
  ms = np.median(np.asarray(times), axis=1).astype(np.float32)
  return distributed.of_first(ms)


def with_costs(drafter: AdaptiveDrafter, ms) -> AdaptiveDrafter:
  """The drafter, and what its rounds cost."""
  return drafter.replace(ms=jnp.asarray(ms, jnp.float32))


def _choosing(request: Request, i: int) -> Request:
  """A request whose rounds are all of this depth."""
  drafter = request.inputs.drafter
  ms = np.full(len(drafter.depths), 1e6, np.float32)
  ms[i] = 1.0
  inputs = request.inputs.replace(drafter=with_costs(drafter, ms))
  return dataclasses.replace(request, inputs=inputs)


def _ms_a_round(request: Request) -> float:
  state = jax.block_until_ready(request.prefill())
  began = time.perf_counter()
  state = jax.block_until_ready(request.decode(state, rounds=_ROUNDS))
  rounds = int(np.asarray(state.stats.rounds).max())
  return 1e3 * (time.perf_counter() - began) / max(rounds, 1)
