"""How long a pass takes: a roofline, and what collectives and steps add.

The model is that of Chen et al. 2302.01318, section 3: a pass over few tokens
reads the weights and the caches, does its arithmetic meanwhile, and then waits
for its all-reduces, whose few bytes take less time than their hops do.

Where it is wrong: the paper finds a 7B slower on 16 chips than on 4. Here it
takes 4.8 ms on 4, 3.8 on 8, 4.0 on 16 and 4.7 on 32. For the paper's order a
hop would have to take 5.9 µs, and then the 70B takes 16.7 ms and a step, not
14.1. What the paper concludes stands: 1.8 ms for the 4B of 8 layers on 16 chips
is less than any slice makes of the 7B.
"""

import dataclasses
import pathlib
import sys

from specsamp.errors import UserError
from specsamp.planning.topology import Topology
from specsamp.planning.work import Collective, Work
from specsamp.utils import files

MEASURED = ('draft_ms', 'score_ms', 'target_ms')

# Of an all-reduce: the share of its steps, and the bytes that a chip sends for
# each byte of its result, given the number of chips.
_KINDS = {
  'all-reduce': (1, lambda n: 2 * (n - 1) / n),
  'all-gather': (1 / 2, lambda n: (n - 1) / n),
  'reduce-scatter': (1 / 2, lambda n: n - 1),
  'all-to-all': (1 / 2, lambda n: (n - 1) / n),
  'collective-permute': (1 / 2, lambda n: 1),
}


def predict(work: Work, topology: Topology) -> 'Time':
  """How long a pass takes.

  Args:
    work: of one chip.
    topology: all of it runs the pass.

  Raises:
    ValueError: a collective of some other kind than XLA's.
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
  if collective.kind not in _KINDS:
    raise ValueError(
      f'collective: got {collective.kind!r}, expected one of '
      f'{", ".join(_KINDS)}'
    )
  if topology.num_chips == 1:
    return 0.0
  share, sent = _KINDS[collective.kind]
  num_bytes = sent(topology.num_chips) * collective.num_bytes
  return topology.latency(share) + num_bytes / topology.link_bandwidth


def measured(path: str | pathlib.Path) -> dict[str, float]:
  """Measured milliseconds, to plan with in place of predicted ones.

  Args:
    path: a JSON object with any of draft_ms (a draft step), score_ms (a scoring
      pass) and target_ms (a pass of the target over one token).

  Raises:
    UserError: a file that can't be read, or other keys or values than these.
  """
  what = f'measured times {path}'
  keys = ', '.join(MEASURED)
  try:
    values = files.read_json(path)
  except OSError as error:
    raise UserError(f'{what}: {error.strerror}') from None
  except ValueError as error:
    raise UserError(f'{what}: {error}, expected JSON') from None
  if not isinstance(values, dict):
    raise UserError(
      f'{what}: got {type(values).__name__}, expected an object with any of '
      f'{keys}'
    )
  for key, value in values.items():
    if key not in MEASURED:
      raise UserError(f'{what}: got key {key!r}, expected any of {keys}')
    # NaN fails this too; true and false are ints to Python.
    if type(value) not in (int, float) or not 0 < value < sys.float_info.max:
      raise UserError(
        f'{what}: {key}: got {value!r}, expected a positive number of '
        'milliseconds'
      )
  return {key: float(value) for key, value in values.items()}


@dataclasses.dataclass(frozen=True)
class Time:
  """Milliseconds of a pass.

  Attributes:
    memory: to read weights and caches.
    compute: to multiply, while they are read.
    collectives: to wait for other chips.
    step: what every pass costs, or its kernels.
  """

  memory: float
  compute: float
  collectives: float
  step: float

  @property
  def total(self) -> float:
    return max(self.memory, self.compute) + self.collectives + self.step
