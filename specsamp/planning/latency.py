"""Predicted times of passes: a roofline plus all-reduces and overhead.

The prediction follows Chen et al. 2302.01318, section 3. A pass over few tokens
reads the weights and the caches, and overlaps its arithmetic with the reads.
Then it waits for its all-reduces, whose bytes take less time than their hops.

Known error: the paper finds a 7B slower on 16 chips than on 4. The predicted
times are 4.8 ms on 4 chips, 3.8 on 8, 4.0 on 16 and 4.7 on 32. The paper's
order needs a hop of 5.9 µs, with which a step of the 70B would take 16.7 ms
instead of 14.1. The paper's conclusion holds: the 4B of 8 layers on 16 chips,
at 1.8 ms, is faster than the 7B on any slice.
"""

from collections.abc import Sequence
from typing import NamedTuple

from specsamp.planning.topology import Topology
from specsamp.planning.work import Work


class Time(NamedTuple):
  """Milliseconds of one or several passes.

  Attributes:
    memory: time to read weights and caches.
    compute: time of the arithmetic, which overlaps with `memory`.
    collectives: time to wait for other chips.
    step: fixed time of a pass, or of its kernels.
    total: time of the whole pass or passes.
  """

  memory: float
  compute: float
  collectives: float
  step: float
  total: float


def predict(work: Work, topology: Topology) -> Time:
  """Returns the time of a pass.

  Args:
    work: work of one chip.
    topology: chips that run the pass together.
  """
  chip, num_chips = topology.chip, topology.num_chips
  seconds = 0.0
  for reduce in work.collectives if num_chips > 1 else ():
    # A chip sends (n - 1) / n of the result to sum, and as much to send back.
    num_bytes = 2 * (num_chips - 1) / num_chips * reduce.num_bytes
    each = topology.all_reduce_seconds + num_bytes / topology.link_bandwidth
    seconds += reduce.count * each
  memory = 1e3 * (work.weights + work.caches) / chip.hbm_bandwidth
  compute = 1e3 * work.flops / chip.peak_flops
  collectives = 1e3 * seconds
  step = 1e3 * topology.overhead(work.kernels)
  total = max(memory, compute) + collectives + step
  return Time(memory, compute, collectives, step, total)


def predict_all(passes: Sequence[Work], topology: Topology) -> Time:
  """Returns the time of passes that run one after the other."""
  times = [predict(work, topology) for work in passes]
  return Time(*map(sum, zip(*times, strict=True)))
