"""TPU slices by name: their chips, their shape, their compiler's devices."""

import dataclasses
import importlib.util
import math
import os
import re
from typing import ClassVar, NamedTuple

from specsamp.errors import UserError


def parse(name: str) -> 'Slice':
  """The slice of a name, of four chips or more: libtpu has no smaller host.

  Args:
    name: a generation and a shape in chips, as libtpu writes it (v4:2x2x4,
      v5e:4x4), or the name that Google Cloud sells it under: v4-32 and v5p-32
      count the TensorCores of 16 chips, v5e-16 (also v5litepod-16) and v6e-16
      count chips. These get the default shape of their size.

  Raises:
    UserError: a generation, size or shape that there is not.
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
      what = 'TensorCores' if chip.cores > 1 else 'chips'
      refuse(f'for {match[1]} one of {", ".join(shapes)} {what}')
    return Slice(chip, shapes[match[3]])
  largest = chip.shapes[-1]
  dims = match[3].split('x')
  if len(dims) != len(largest) or not all(
    re.fullmatch('[1-9][0-9]{0,3}', dim) for dim in dims
  ):
    refuse(
      f'{len(largest)} dimensions for {chip.name}, such as '
      f'{Slice(chip, chip.shapes[2]).name}'
    )
  shape = tuple(map(int, dims))
  if shape[0] % 2 or shape[1] % 2:
    refuse('even numbers in the first two dimensions: a host has 2x2 chips')
  if math.prod(shape) > math.prod(largest):
    refuse(
      f'at most {math.prod(largest)} chips for {chip.name}, not '
      f'{math.prod(shape)}'
    )
  return Slice(chip, shape)


NOTE = (
  'TPUs are predicted as the longer of reading weights and caches and of the '
  'arithmetic, then every collective, then a constant for each step: {hop:g} '
  'µs a hop and {step:g} ms a step, both fitted to the three times that Chen '
  'et al. 2302.01318 report.'
)


class Constants(NamedTuple):
  """What no data sheet tells.

  Attributes:
    hop_seconds: from a chip to its neighbour and into the sum there.
    step_seconds: of a pass, whatever it computes: launch, sampling, host.
  """

  hop_seconds: float
  step_seconds: float


# Fitted to the times that Chen et al. 2302.01318, section 6, report at batch
# size 1: 14.1 ms for Chinchilla 70B and 1.8 ms for the 4B draft on 16 TPU v4,
# 5 ms for a 7B on 4. Least squares of the logarithm of predicted over reported,
# of `work.of_pass` with caches of 2,048 slots; they come out within 4%.
# tests/planning/test_latency.py fits them again.
CONSTANTS = Constants(hop_seconds=3.9e-6, step_seconds=0.73e-3)


@dataclasses.dataclass(frozen=True)
class Chip:
  """What a chip can do, as published.

  Attributes:
    name: the generation.
    hbm_bytes: of memory that a program can have: libtpu's own limit, a little
      less than what is published.
    hbm_bandwidth: bytes a second.
    peak_flops: bfloat16 operations a second.
    link_bandwidth: bytes a second over one of its links to a neighbour, one
      way. Google Cloud's pages give the sum over all links, two for each
      dimension of the torus, and both ways.
    cores: that its sold names count for each chip.
    shapes: of the slices that are sold by size, the largest last.
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
    chip: of every one.
    shape: chips in each dimension.
    constants: fitted ones.
  """

  chip: Chip
  shape: tuple[int, ...]
  constants: Constants = CONSTANTS

  @property
  def name(self) -> str:
    """As libtpu writes it, see `parse`."""
    return f'{self.chip.name}:{"x".join(map(str, self.shape))}'

  @property
  def num_chips(self) -> int:
    return math.prod(self.shape)

  @property
  def all_reduce_steps(self) -> int:
    """Messages from neighbour to neighbour, one after the other.

    Of an all-reduce that goes dimension by dimension: d - 1 to sum along each,
    and d - 1 to bring the sums back. 0 for one chip.
    """
    return sum(2 * (dim - 1) for dim in self.shape)

  @property
  def link_bandwidth(self) -> float:
    """Bytes a second that a chip can send in an all-reduce.

    One link for each dimension in which it has a neighbour: the second one
    helps where a dimension is closed to a ring, and in small slices none is.
    """
    return self.chip.link_bandwidth * sum(dim > 1 for dim in self.shape)

  def latency(self, share: float) -> float:
    """Seconds that the messages of a collective take, however short they are.

    Args:
      share: of the messages of an all-reduce.
    """
    return share * self.all_reduce_steps * self.constants.hop_seconds

  def overhead(self, num_kernels: float) -> float:
    """Seconds of a pass, whatever it computes; a TPU's has no kernels."""
    return self.constants.step_seconds

  @property
  def note(self) -> str:
    """What its predictions are made of."""
    return NOTE.format(
      hop=1e6 * self.constants.hop_seconds,
      step=1e3 * self.constants.step_seconds,
    )

  def devices(self) -> list:
    """One a chip, to compile for and not to run on. None of it need be there.

    Raises:
      UserError: libtpu, the compiler, is not installed.
    """
    if importlib.util.find_spec('libtpu') is None:
      raise UserError(
        'libtpu: got no such package, expected the TPU compiler: '
        "pip install 'specsamp[tpu]'"
      )
    # Without these libtpu asks a cloud machine's metadata server what it runs
    # on, and complains at length where there is none.
    os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
    os.environ.setdefault('TPU_WORKER_HOSTNAMES', 'localhost')
    os.environ.setdefault('TPU_ACCELERATOR_TYPE', 'v5litepod-4')
    # One process at a time may have the chips; a compiler has none.
    os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
    from jax.experimental import topologies

    # v4's two cores count as two devices otherwise; v5p's are always one.
    options = {}
    if self.chip.name == 'v4':
      options['chip_config_name'] = 'megacore'
    return list(
      topologies.get_topology_desc(self.name, 'tpu', **options).devices
    )


_SHAPES_2D = ((2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SHAPES_3D = (
  (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8),
  (8, 8, 8), (8, 8, 16), (8, 16, 16), (16, 16, 16),
)  # fmt: skip

# docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e}: memory, its bandwidth, peak,
# links and shapes. Published memory is 32, 16, 95 and 32 GB; here is what the
# compiler of libtpu 0.0.42 calls available when it refuses a larger program.
# Links: v5e 400, v5p 1200, v6e 800 GB/s, divided by 4, 6 and 4 links and by two
# ways. v4's page has none; glennklockwood.com/garden/processors/TPUv4 has 400
# Gb/s. jax-ml.github.io/scaling-book/tpus reckons with a tenth less for each.
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
