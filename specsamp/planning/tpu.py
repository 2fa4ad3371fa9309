"""TPU slices by name: their chips, shapes and devices to compile for."""

import dataclasses
import importlib.util
import math
import os
import re
from typing import ClassVar, NamedTuple

from specsamp.errors import UserError


def parse(name: str) -> 'Slice':
  """Returns the slice of a name: the four chips of a host or more.

  Args:
    name: a generation with a shape in chips, in libtpu's form (v4:2x2x4,
      v5e:4x4), or a product name of Google Cloud, which means the default shape
      of its size. Product names of v4 and v5p count TensorCores, two per chip
      (v4-32). Those of v5e (also v5litepod) and v6e count chips (v5e-16).

  Raises:
    UserError: the generation, size or shape is unknown.
  """

  def refuse(expected):
    raise UserError(f'topology: got {name!r}, expected {expected}')

  match = re.fullmatch(r'(\w+)([:-])(\w+)', name)
  chip = match and GENERATIONS.get(match[1])
  if not chip:
    refuse('a generation with a shape or size, such as v4:2x2x4 or v5e-16')
  if match[2] == '-':
    shapes = {
      str(math.prod(shape) * chip.cores): shape for shape in chip.shapes
    }
    if match[3] not in shapes:
      unit = 'TensorCores' if chip.cores > 1 else 'chips'
      refuse(f'for {match[1]} one of {", ".join(shapes)} {unit}')
    return Slice(chip, shapes[match[3]])
  largest = chip.shapes[-1]
  dims = 'x'.join(['([1-9][0-9]{0,3})'] * len(largest))
  numbers = re.fullmatch(dims, match[3])
  if not numbers:
    refuse(
      f'{len(largest)} dimensions for {chip.name}, such as '
      f'{Slice(chip, chip.shapes[2]).name}'
    )
  shape = tuple(map(int, numbers.groups()))
  if shape[0] % 2 or shape[1] % 2:
    refuse('even numbers in the first two dimensions: a host has 2x2 chips')
  if math.prod(shape) > math.prod(largest):
    refuse(f'at most {math.prod(largest)} chips for {chip.name}')
  return Slice(chip, shape)


class Constants(NamedTuple):
  """Times in seconds that data sheets do not state.

  Attributes:
    hop_seconds: time to send a message to the neighbour and add it there.
    step_seconds: fixed time of a pass for its launch, sampling and the host.
  """

  hop_seconds: float
  step_seconds: float


# Fitted to the times that Chen et al. 2302.01318, section 6, report at batch
# size 1: 14.1 ms for Chinchilla 70B and 1.8 ms for the 4B draft on 16 TPU v4,
# 5 ms for a 7B on 4. The fit minimizes the squared logarithms of predicted over
# reported times with caches of 2,048 slots. It reproduces the times within 4 %;
# tests/planning/test_latency.py repeats it.
CONSTANTS = Constants(hop_seconds=3.9e-6, step_seconds=0.73e-3)


@dataclasses.dataclass(frozen=True)
class Chip:
  """Published capabilities of a chip.

  Attributes:
    name: generation.
    hbm_bytes: memory that libtpu grants a program, a little less than the
      published size.
    hbm_bandwidth: bytes per second.
    peak_flops: bfloat16 operations per second.
    link_bandwidth: bytes per second over one link to a neighbour, one way.
      Google Cloud's pages sum over both ways of all links, two for each
      dimension of the torus.
    cores: number that a chip counts for in product names.
    shapes: default shapes of the product sizes, largest last.
  """

  name: str
  hbm_bytes: int
  hbm_bandwidth: float
  peak_flops: float
  link_bandwidth: float
  cores: int
  shapes: tuple[tuple[int, ...], ...]
  has_bfloat16: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Slice:
  """Chips in a mesh of two or three dimensions.

  Attributes:
    chip: chip type.
    shape: number of chips in each dimension.
    constants: fitted times.
  """

  chip: Chip
  shape: tuple[int, ...]
  constants: Constants = CONSTANTS

  @property
  def name(self) -> str:
    """The name in libtpu's form, see `parse`."""
    return f'{self.chip.name}:{"x".join(map(str, self.shape))}'

  @property
  def num_chips(self) -> int:
    return math.prod(self.shape)

  @property
  def all_reduce_seconds(self) -> float:
    """The time of an all-reduce of a few bytes.

    An all-reduce runs dimension by dimension. In a dimension of d chips, d - 1
    consecutive messages sum, and d - 1 others send the sums back.
    """
    steps = sum(2 * (dim - 1) for dim in self.shape)
    return steps * self.constants.hop_seconds

  @property
  def link_bandwidth(self) -> float:
    """The bytes per second that a chip can send in an all-reduce.

    A chip sends over one link for each dimension in which it has a neighbour.
    A second link would help only in rings, which small slices do not have.
    """
    return self.chip.link_bandwidth * sum(dim > 1 for dim in self.shape)

  def overhead(self, num_kernels: float) -> float:
    """Returns the fixed seconds of a pass. A TPU runs no separate kernels."""
    return self.constants.step_seconds

  @property
  def note(self) -> str:
    """An explanation of the predicted times, for a report."""
    hop, step = self.constants
    return (
      'Times of TPUs are predicted: the longer of reading weights and caches '
      'and of the arithmetic, plus all collectives, plus a constant per pass. '
      f'{1e6 * hop:g} µs per hop of a collective and {1e3 * step:g} ms per '
      'pass are fitted to the three times that Chen et al. 2302.01318 report.'
    )

  def devices(self) -> list:
    """Returns one device per chip, to compile for. No TPU is needed.

    Raises:
      UserError: the compiler, libtpu, is not installed.
    """
    if importlib.util.find_spec('libtpu') is None:
      raise UserError(
        'libtpu is not installed, which compiles for TPUs: '
        "pip install 'specsamp[tpu]'"
      )
    # Otherwise libtpu queries a metadata server for the machine's hardware, and
    # logs many lines if there is no such server.
    os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
    os.environ.setdefault('TPU_WORKER_HOSTNAMES', 'localhost')
    os.environ.setdefault('TPU_ACCELERATOR_TYPE', 'v5litepod-4')
    # A compiler need not hold libtpu's lock, which only one process can hold.
    os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
    from jax.experimental import topologies

    # Otherwise the two cores of a v4 are two devices. Those of a v5p never are.
    megacore = {'chip_config_name': 'megacore'}
    options = megacore if self.chip.name == 'v4' else {}
    return list(
      topologies.get_topology_desc(self.name, 'tpu', **options).devices
    )


_SHAPES_2D = ((2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SHAPES_3D = (
  (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8),
  (8, 8, 8), (8, 8, 16), (8, 16, 16), (16, 16, 16),
)  # fmt: skip

# Source: docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e}. Published memory is
# 32, 16, 95 and 32 GB; the sizes below are those that the compiler of libtpu
# 0.0.42 reports when it refuses a larger program. Links: 400 (v5e), 1200 (v5p)
# and 800 GB/s (v6e), divided by 4, 6 and 4 links and by two ways. v4's page has
# no figure; glennklockwood.com/garden/processors/TPUv4 has 400 Gb/s.
# jax-ml.github.io/scaling-book/tpus assumes a tenth less for each.
CHIPS = {
  chip.name: chip
  for chip in (
    Chip('v4', int(30.75 * 2**30), 1200e9, 275e12, 50e9, 2, _SHAPES_3D),
    Chip('v5e', int(15.75 * 2**30), 819e9, 197e12, 50e9, 1, _SHAPES_2D),
    Chip(
      'v5p', int(95.74 * 2**30), 2765e9, 459e12, 100e9, 2,
      (*_SHAPES_3D, (16, 16, 24)),
    ),
    Chip('v6e', int(31.25 * 2**30), 1638e9, 918e12, 100e9, 1, _SHAPES_2D),
  )
}  # fmt: skip

GENERATIONS = CHIPS | {'v5litepod': CHIPS['v5e']}
