"""GPUs by name: what they can do, their nodes, their compiler's devices."""

import dataclasses
import importlib.util
import os
import re
from typing import NamedTuple

from specsamp.errors import UserError

NOTE = (
  'GPUs are predicted from published figures alone: the longer of reading '
  'weights and caches and of the arithmetic; {kernel:g} µs a kernel, of which '
  'most are in CUDA graphs; and for an all-reduce what NCCL itself reckons '
  'with, {collective:g} µs and {nvlink:g} µs (NVLink), {pcie:g} µs (PCIe) or '
  '{network:g} µs (another host) for each of its 2 (n - 1) messages. Branches '
  'that the host decides are not in it.'
)


class Constants(NamedTuple):
  """Seconds that no data sheet tells.

  Attributes:
    kernel: between the end of a kernel and the work of the next.
    collective: of a collective, before its first message.
    nvlink: of a message between GPUs that NVLink joins.
    pcie: of one between GPUs that it does not.
    network: of one between hosts.
  """

  kernel: float
  collective: float
  nvlink: float
  pcie: float
  network: float


# Kernels of one CUDA graph on an H100: hazyresearch.stanford.edu/blog/
# 2025-05-27-no-bubbles. Messages: baseLatencies and
# hwLatencies of rings under the protocol LL in NCCL 2.28's src/graph/tuning.cc.
CONSTANTS = Constants(1.3e-6, 6.6e-6, 0.6e-6, 1.0e-6, 2.7e-6)

_PER_HOST = 8


@dataclasses.dataclass(frozen=True)
class Architecture:
  """What all GPUs of a compute capability share: CUDA C++ Programming Guide,
  Compute Capabilities.

  Attributes:
    capability: major and minor.
    threads: that a multiprocessor can hold.
    shared_memory: bytes of a multiprocessor, and of it what a block may have.
    fp32_units: of a multiprocessor.
  """

  capability: tuple[int, int]
  threads: int
  shared_memory: tuple[int, int]
  fp32_units: int


_KIB = 1024
TURING = Architecture((7, 5), 1024, (64 * _KIB, 64 * _KIB), 64)
AMPERE = Architecture((8, 0), 2048, (164 * _KIB, 163 * _KIB), 64)
ADA = Architecture((8, 9), 1536, (100 * _KIB, 99 * _KIB), 128)
HOPPER = Architecture((9, 0), 2048, (228 * _KIB, 227 * _KIB), 128)
BLACKWELL = Architecture((10, 0), 2048, (228 * _KIB, 227 * _KIB), 128)


@dataclasses.dataclass(frozen=True)
class Gpu:
  """What a GPU can do, as published.

  Attributes:
    name: ours.
    description: the driver's name for it.
    architecture: its compute capability's.
    hbm_bytes: of its memory, as its driver reports them.
    hbm_bandwidth: bytes a second.
    peak_flops: 16 bit operations a second of its tensor cores, dense.
    link_bandwidth: bytes a second that it can send to the others of its host.
    network_bandwidth: bytes a second of its share of the host's adapters.
    has_nvlink: whether they are joined by NVLink; by PCIe if not.
    multiprocessors: their number.
    clock_ghz: the highest.
    l2_bytes: of the cache.
  """

  name: str
  description: str
  architecture: Architecture
  hbm_bytes: int
  hbm_bandwidth: float
  peak_flops: float
  link_bandwidth: float
  network_bandwidth: float
  has_nvlink: bool
  multiprocessors: int
  clock_ghz: float
  l2_bytes: int

  @property
  def has_bfloat16(self) -> bool:
    return self.architecture.capability >= (8, 0)

  @property
  def target_config(self) -> str:
    """XLA's `GpuTargetConfigProto` as text."""
    own = self.architecture
    major, minor = own.capability
    fields = dict(
      threads_per_block_limit=1024,
      threads_per_warp=32,
      shared_memory_per_block=48 * _KIB,
      shared_memory_per_core=own.shared_memory[0],
      shared_memory_per_block_optin=own.shared_memory[1],
      threads_per_core_limit=own.threads,
      core_count=self.multiprocessors,
      fpus_per_core=own.fp32_units,
      block_dim_limit_x=2**31 - 1,
      block_dim_limit_y=2**16 - 1,
      block_dim_limit_z=2**16 - 1,
      memory_bandwidth=int(self.hbm_bandwidth),
      l2_cache_size=self.l2_bytes,
      clock_rate_ghz=self.clock_ghz,
      device_memory_size=self.hbm_bytes,
      registers_per_core_limit=65536,
      registers_per_block_limit=65536,
    )
    lines = [f'  {name}: {value}' for name, value in fields.items()]
    # CUDA graphs hold branches from driver 12.3 on.
    versions = [f'  {name}_version: "12.8.0"' for name in ('driver', 'runtime')]
    return '\n'.join(
      [
        'gpu_device_info {',
        *lines,
        f'  cuda_compute_capability {{ major: {major} minor: {minor} }}',
        *versions,
        '}',
        'platform_name: "CUDA"',
        'dnn_version_info { major: 9 minor: 8 }',
        f'device_description_str: "{self.description}"',
      ]
    )


# Data sheets of NVIDIA's: nvidia.com/en-us/data-center/{h100,h200,a100,l4,
# tesla-t4} and the HGX B200's; where they count sparse operations, half of
# them; of NVLink's and PCIe's bytes, which they count both ways, half. Clocks,
# caches and memory as the driver reports it (less than is sold): XLA's own
# target files, xla/backends/gpu/target_config/specs, and L4's and T4's from
# their white papers and `nvidia-smi`. Network: a 400 Gb/s adapter a GPU in DGX
# H100, H200 and B200, 200 in DGX A100; 100 for all of a cloud's L4 or T4.
GPUS = {
  gpu.name: gpu
  for gpu in (
    Gpu(
      'h100', 'NVIDIA H100 80GB HBM3', HOPPER, 84_942_979_072, 3350e9, 989e12,
      450e9, 50e9, True, 132, 1.98, 50 * 2**20,
    ),
    Gpu(
      'h200', 'NVIDIA H200', HOPPER, 151_397_597_184, 4800e9, 989e12,
      450e9, 50e9, True, 132, 1.98, 50 * 2**20,
    ),
    Gpu(
      'b200', 'NVIDIA B200', BLACKWELL, 191_514_411_008, 7700e9, 2250e12,
      900e9, 50e9, True, 148, 1.965, 126 * 2**20,
    ),
    Gpu(
      'a100-80', 'NVIDIA A100-SXM4-80GB', AMPERE, 84_987_740_160, 2039e9,
      312e12, 300e9, 25e9, True, 108, 1.41, 40 * 2**20,
    ),
    Gpu(
      'a100-40', 'NVIDIA A100-SXM4-40GB', AMPERE, 42_331_013_120, 1555e9,
      312e12, 300e9, 25e9, True, 108, 1.41, 40 * 2**20,
    ),
    Gpu(
      'l4', 'NVIDIA L4', ADA, int(22.03 * 2**30), 300e9, 121e12,
      32e9, 1.5e9, False, 58, 2.04, 48 * 2**20,
    ),
    Gpu(
      't4', 'Tesla T4', TURING, 15_843_721_216, 320e9, 65e12,
      16e9, 1.5e9, False, 40, 1.59, 4 * 2**20,
    ),
  )
}  # fmt: skip

_BY_NAME = GPUS | {'a100': GPUS['a100-80']}


def parse(name: str) -> 'Nodes | None':
  """The GPUs of a name, such as h100:8 or 2x8 of two hosts; h100 is one.

  Returns:
    None for a name that is not of a GPU.

  Raises:
    UserError: numbers that there are not.
  """
  generation, colon, numbers = name.partition(':')
  gpu = _BY_NAME.get(generation)
  if not gpu:
    return None
  counts = re.fullmatch(
    '(?:([1-9][0-9]{0,2})x)?([1-9][0-9]?)', numbers if colon else '1'
  )
  if not counts or int(counts[2]) > _PER_HOST:
    raise UserError(
      f'topology: got {name!r}, expected 1 to {_PER_HOST} GPUs of a host, such '
      f'as {gpu.name}:8, or of several, such as {gpu.name}:2x8'
    )
  return Nodes(gpu, int(counts[1] or 1), int(counts[2]))


def of_kind(description: str) -> 'Nodes | None':
  """One GPU of the driver's name for it, None if it is not of this table."""
  for gpu in GPUS.values():
    if gpu.description == description:
      return Nodes(gpu, 1, 1)
  return None


@dataclasses.dataclass(frozen=True)
class Nodes:
  """GPUs of one or several hosts.

  Attributes:
    chip: every one of them.
    hosts: their number.
    per_host: GPUs of each.
  """

  chip: Gpu
  hosts: int
  per_host: int

  @property
  def name(self) -> str:
    """As `parse` reads it."""
    hosts = f'{self.hosts}x' if self.hosts > 1 else ''
    return f'{self.chip.name}:{hosts}{self.per_host}'

  @property
  def num_chips(self) -> int:
    return self.hosts * self.per_host

  @property
  def link_bandwidth(self) -> float:
    """Bytes a second that a GPU can send in an all-reduce.

    Between hosts NCCL has a ring for each adapter: all of them together carry
    what one GPU sends to the next.
    """
    if self.hosts > 1:
      network = self.per_host * self.chip.network_bandwidth
      return min(self.chip.link_bandwidth, network)
    return self.chip.link_bandwidth

  def latency(self, share: float) -> float:
    """Seconds that the messages of a collective take, however short they are.

    Args:
      share: of the messages of an all-reduce.
    """
    hop = CONSTANTS.nvlink if self.chip.has_nvlink else CONSTANTS.pcie
    all_steps = 2 * (self.num_chips - 1)
    between = min(2 * self.hosts, all_steps) if self.hosts > 1 else 0
    steps = (all_steps - between) * hop + between * CONSTANTS.network
    return CONSTANTS.collective + share * steps

  @property
  def constants(self) -> Constants:
    return CONSTANTS

  def overhead(self, num_kernels: float) -> float:
    """Seconds of a pass, whatever it computes."""
    return CONSTANTS.kernel * num_kernels

  @property
  def note(self) -> str:
    """What its predictions are made of."""
    return NOTE.format(
      **{name: 1e6 * value for name, value in CONSTANTS._asdict().items()}
    )

  def devices(self) -> list:
    """One a GPU, to compile for and not to run on.

    Raises:
      UserError: the plugin, which has the compiler, is not installed or was
        not let in.
    """
    if not any(map(_is_installed, ('12', '13'))):
      raise UserError(
        'jax_plugins.xla_cuda12: got no such package, expected the GPU '
        "compiler: pip install 'specsamp[gpuaot]'"
      )
    # Without a driver the plugin refuses to load otherwise.
    os.environ.setdefault('JAX_SKIP_CUDA_CONSTRAINTS_CHECK', '1')
    from jax.experimental import topologies

    return list(
      topologies.get_topology_desc(
        self.chip.name,
        'cuda',
        target_config=self.chip.target_config,
        topology=f'1x{self.hosts}x{self.per_host}',
      ).devices
    )


def _is_installed(version: str) -> bool:
  try:
    return (
      importlib.util.find_spec(f'jax_plugins.xla_cuda{version}') is not None
    )
  except ModuleNotFoundError:  # no plugin at all
    return False
