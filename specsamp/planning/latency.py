"""Predicted times of passes: a roofline plus collectives and overhead.

The model follows Chen et al. 2302.01318, section 3. A pass over few tokens
reads the weights and the caches, and does its arithmetic meanwhile. Then it
waits for its all-reduces, whose few bytes take less time than their hops.

Known error: the paper finds a 7B slower on 16 chips than on 4. Predicted are
4.8 ms on 4, 3.8 on 8, 4.0 on 16 and 4.7 on 32. The paper's order would need a
hop of 5.9 µs, with which a step of the 70B takes 16.7 ms instead of 14.1. The
paper's conclusion holds: the 4B of 8 layers on 16 chips, at 1.8 ms, is faster
than the 7B on any slice.
"""

import dataclasses
import pathlib
import sys

from specsamp.errors import UserError, check_name
from specsamp.planning.topology import Topology
from specsamp.planning.work import Collective, Work
from specsamp.utils import files

MEASURED = ('draft_ms', 'score_ms', 'target_ms')

# By kind: the number of messages relative to an all-reduce, and the bytes that
# a chip sends per byte of its result, given the number of chips.
_KINDS = {
  'all-reduce': (1, lambda n: 2 * (n - 1) / n),
  'all-gather': (1 / 2, lambda n: (n - 1) / n),
  'reduce-scatter': (1 / 2, lambda n: n - 1),
  'all-to-all': (1 / 2, lambda n: (n - 1) / n),
  'collective-permute': (1 / 2, lambda n: 1),
}


@dataclasses.dataclass(frozen=True)
class Time:
  """Milliseconds of a pass.

  Attributes:
    memory: time to read weights and caches.
    compute: time of the arithmetic, which overlaps with `memory`.
    collectives: time to wait for other chips.
    step: fixed time of a pass, or of its kernels.
  """

  memory: float
  compute: float
  collectives: float
  step: float

  @property
  def total(self) -> float:
    return max(self.memory, self.compute) + self.collectives + self.step


def predict(work: Work, topology: Topology) -> Time:
  """Returns the time of a pass.

  Args:
    work: work of one chip.
    topology: chips that run the pass together.

  Raises:
    ValueError: unknown kind of collective.
  """
  chip = topology.chip
  return Time(
    memory=1e3 * (work.weights + work.caches) / chip.hbm_bandwidth,
    compute=1e3 * work.flops / chip.peak_flops,
    collectives=1e3
    * sum(
      collective.count * _seconds(collective, topology)
      for collective in work.collectives
    ),
    step=1e3 * topology.overhead(work.kernels),
  )


def _seconds(collective: Collective, topology: Topology) -> float:
  check_name('collective', collective.kind, _KINDS)
  if topology.num_chips == 1:
    return 0.0
  share, bytes_sent = _KINDS[collective.kind]
  num_bytes = bytes_sent(topology.num_chips) * collective.num_bytes
  return topology.latency(share) + num_bytes / topology.link_bandwidth


def measured(path: str | pathlib.Path) -> dict[str, float]:
  """Reads measured milliseconds, which replace predicted ones in a plan.

  Args:
    path: a JSON object with any of draft_ms (a draft step), score_ms (a scoring
      pass) and target_ms (a pass of the target over one token).

  Raises:
    UserError: the file cannot be read, or has other keys or values.
  """
  try:
    values = files.read_json(path)
  except OSError as error:
    raise UserError(f'measured times {path}: {error.strerror}') from None
  except ValueError:
    values = None
  if not isinstance(values, dict):
    raise UserError(
      f'measured times {path}: expected a JSON object with any of '
      f'{", ".join(MEASURED)}'
    )
  for key, value in values.items():
    check_name(f'measured times {path}: key', key, MEASURED)
    # Written so that NaN fails too; bool is a subclass of int.
    if type(value) not in (int, float) or not 0 < value < sys.float_info.max:
      raise UserError(
        f'measured times {path}: {key}: got {value!r}, expected a positive '
        'number of milliseconds'
      )
  return {key: float(value) for key, value in values.items()}
