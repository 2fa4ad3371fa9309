"""GPUs by name: their capabilities, hosts and devices to compile for."""

import dataclasses
import importlib.util
import os
import re

from specsamp.errors import UserError

# Times in seconds that no data sheet has: the gap between two kernels of a CUDA
# graph on an H100 (hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles), the
# start of an all-reduce, and its messages over NVLink, PCIe and the network
# (baseLatencies and hwLatencies of rings under the protocol LL in NCCL 2.28's
# src/graph/tuning.cc).
_KERNEL = 1.3e-6
_ALL_REDUCE = 6.6e-6
_NVLINK, _PCIE, _NETWORK = 0.6e-6, 1.0e-6, 2.7e-6

_GPUS_PER_HOST = 8


_KIB = 1024
# Threads, KiB of shared memory, KiB that a block may use, and float32 units of
# a multiprocessor, by compute capability (CUDA C++ Programming Guide).
_MULTIPROCESSORS = {
  (7, 5): (1024, 64, 64, 64),
  (8, 0): (2048, 164, 163, 64),
  (8, 9): (1536, 100, 99, 128),
  (9, 0): (2048, 228, 227, 128),
  (10, 0): (2048, 228, 227, 128),
}


@dataclasses.dataclass(frozen=True)
class Gpu:
  """Published capabilities of a GPU.

  Attributes:
    name: name in this package.
    description: name in the driver.
    capability: major and minor version of the compute capability.
    hbm_bytes: memory size that the driver reports.
    hbm_bandwidth: bytes per second.
    peak_flops: dense 16-bit operations per second of the tensor cores.
    link_bandwidth: bytes per second to the other GPUs of the host, one way.
    network_bandwidth: bytes per second, its share of the host's adapters.
    has_nvlink: True if NVLink joins the GPUs of a host, False for PCIe.
    multiprocessors: number of multiprocessors.
    clock_ghz: highest clock.
    l2_bytes: size of the L2 cache.
  """

  name: str
  description: str
  capability: tuple[int, int]
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
    return self.capability >= (8, 0)

  @property
  def target_config(self) -> str:
    """XLA's `GpuTargetConfigProto` as text."""
    major, minor = self.capability
    threads, shared, shared_optin, units = _MULTIPROCESSORS[self.capability]
    fields = dict(
      threads_per_block_limit=1024,
      threads_per_warp=32,
      shared_memory_per_block=48 * _KIB,
      shared_memory_per_core=shared * _KIB,
      shared_memory_per_block_optin=shared_optin * _KIB,
      threads_per_core_limit=threads,
      core_count=self.multiprocessors,
      fpus_per_core=units,
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
    device_info = '\n'.join(f'  {key}: {val}' for key, val in fields.items())
    # CUDA graphs hold branches from driver 12.3 on.
    return f"""gpu_device_info {{
{device_info}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  driver_version: "12.8.0"
  runtime_version: "12.8.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
device_description_str: "{self.description}"
"""


# Sources: NVIDIA's data sheets, nvidia.com/en-us/data-center/{h100,h200,a100,
# l4,tesla-t4} and the HGX B200's. Figures for sparse operations are halved, and
# so are bandwidths of NVLink and PCIe, which count both ways. Clocks, caches
# and memory as the driver reports it (less than is sold) are from XLA's target
# files, xla/backends/gpu/target_config/specs; for L4 and T4, from their white
# papers and `nvidia-smi`. Each GPU of a DGX H100, H200 or B200 has a network
# adapter of 400 Gb/s, of a DGX A100 one of 200. All L4 or T4 of a cloud host
# share 100 Gb/s.
GPUS = {
  gpu.name: gpu
  for gpu in (
    Gpu(
      'h100', 'NVIDIA H100 80GB HBM3', (9, 0), 84_942_979_072, 3350e9, 989e12,
      450e9, 50e9, True, 132, 1.98, 50 * 2**20,
    ),
    Gpu(
      'h200', 'NVIDIA H200', (9, 0), 151_397_597_184, 4800e9, 989e12,
      450e9, 50e9, True, 132, 1.98, 50 * 2**20,
    ),
    Gpu(
      'b200', 'NVIDIA B200', (10, 0), 191_514_411_008, 7700e9, 2250e12,
      900e9, 50e9, True, 148, 1.965, 126 * 2**20,
    ),
    Gpu(
      'a100-80', 'NVIDIA A100-SXM4-80GB', (8, 0), 84_987_740_160, 2039e9,
      312e12, 300e9, 25e9, True, 108, 1.41, 40 * 2**20,
    ),
    Gpu(
      'a100-40', 'NVIDIA A100-SXM4-40GB', (8, 0), 42_331_013_120, 1555e9,
      312e12, 300e9, 25e9, True, 108, 1.41, 40 * 2**20,
    ),
    Gpu(
      'l4', 'NVIDIA L4', (8, 9), int(22.03 * 2**30), 300e9, 121e12,
      32e9, 1.5e9, False, 58, 2.04, 48 * 2**20,
    ),
    Gpu(
      't4', 'Tesla T4', (7, 5), 15_843_721_216, 320e9, 65e12,
      16e9, 1.5e9, False, 40, 1.59, 4 * 2**20,
    ),
  )
}  # fmt: skip

_BY_NAME = GPUS | {'a100': GPUS['a100-80']}


def parse(name: str) -> 'Nodes | None':
  """Returns the GPUs of a name: h100 (one), h100:8 or h100:2x8 (two hosts).

  Returns:
    None if the name is not that of a GPU.

  Raises:
    UserError: the number of hosts or GPUs is out of range.
  """
  model, colon, numbers = name.partition(':')
  gpu = _BY_NAME.get(model)
  if not gpu:
    return None
  counts = re.fullmatch(
    '(?:([1-9][0-9]{0,2})x)?([1-9][0-9]?)', numbers if colon else '1'
  )
  if not counts or int(counts[2]) > _GPUS_PER_HOST:
    raise UserError(
      f'topology: got {name!r}, expected 1 to {_GPUS_PER_HOST} GPUs of a host, '
      f'such as {gpu.name}:8, or of several, such as {gpu.name}:2x8'
    )
  return Nodes(gpu, int(counts[1] or 1), int(counts[2]))


def of_kind(description: str) -> 'Nodes | None':
  """Returns one GPU of this driver name, or None if it is not listed."""
  gpus = {gpu.description: Nodes(gpu, 1, 1) for gpu in GPUS.values()}
  return gpus.get(description)


@dataclasses.dataclass(frozen=True)
class Nodes:
  """GPUs of one or several hosts.

  Attributes:
    chip: GPU type.
    hosts: number of hosts.
    per_host: number of GPUs in each host.
  """

  chip: Gpu
  hosts: int
  per_host: int

  @property
  def name(self) -> str:
    """The name in the form that `parse` reads."""
    hosts = f'{self.hosts}x' if self.hosts > 1 else ''
    return f'{self.chip.name}:{hosts}{self.per_host}'

  @property
  def num_chips(self) -> int:
    return self.hosts * self.per_host

  @property
  def link_bandwidth(self) -> float:
    """The bytes per second that a GPU can send in an all-reduce.

    Between hosts NCCL runs one ring per adapter. All adapters of a host
    together carry the bytes that one GPU sends to the next.
    """
    if self.hosts > 1:
      network = self.per_host * self.chip.network_bandwidth
      return min(self.chip.link_bandwidth, network)
    return self.chip.link_bandwidth

  @property
  def all_reduce_seconds(self) -> float:
    """The time of an all-reduce of a few bytes: NCCL's estimate for a ring."""
    hop = _NVLINK if self.chip.has_nvlink else _PCIE
    all_steps = 2 * (self.num_chips - 1)
    between = min(2 * self.hosts, all_steps) if self.hosts > 1 else 0
    return _ALL_REDUCE + (all_steps - between) * hop + between * _NETWORK

  def overhead(self, num_kernels: float) -> float:
    """Returns the seconds that a pass spends between its kernels."""
    return _KERNEL * num_kernels

  @property
  def note(self) -> str:
    """An explanation of the predicted times, for a report."""
    return (
      'Times of GPUs are predicted from published figures alone: the longer of '
      'reading weights and caches and of the arithmetic, plus '
      f'{1e6 * _KERNEL:g} µs per kernel in a CUDA graph, plus '
      f"NCCL's own estimate of an all-reduce: {1e6 * _ALL_REDUCE:g} µs, and "
      f'for each of its 2 (n - 1) messages {1e6 * _NVLINK:g} µs (NVLink), '
      f'{1e6 * _PCIE:g} µs (PCIe) or {1e6 * _NETWORK:g} µs (another host). '
      'Branches that the host decides are not included.'
    )

  def devices(self) -> list:
    """Returns one device per GPU, to compile for. No GPU is needed.

    Raises:
      UserError: jax's CUDA plugin, which contains the compiler, is missing.
    """
    plugins = ('jax_cuda12_plugin', 'jax_cuda13_plugin')
    if not any(map(importlib.util.find_spec, plugins)):
      raise UserError(
        "jax's CUDA plugin is not installed, which compiles for GPUs: "
        "pip install 'specsamp[gpuaot]'"
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
