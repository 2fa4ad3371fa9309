"""Names of slices, good and bad, and the compiler's devices."""

import importlib.util

import pytest

from specsamp.errors import UserError
from specsamp.planning.gpu import GPUS
from specsamp.planning.topology import parse
from specsamp.planning.tpu import CHIPS


@pytest.mark.parametrize(
  ('name', 'full', 'chips'),
  [
    ('v4:2x2x1', 'v4:2x2x1', 4),
    ('v5p:4x4x4', 'v5p:4x4x4', 64),
    ('v5e:4x2', 'v5e:4x2', 8),
    ('v5litepod:4x4', 'v5e:4x4', 16),
    ('v4-256', 'v4:4x4x8', 128),
    ('v5p-12288', 'v5p:16x16x24', 6144),
    ('v5litepod-16', 'v5e:4x4', 16),
    ('v6e-16', 'v6e:4x4', 16),
    ('h100', 'h100:1', 1),
    ('h100:2x8', 'h100:2x8', 16),
    ('a100:4', 'a100-80:4', 4),
    ('t4:1x4', 't4:4', 4),
  ],
)
def test_parse(name, full, chips):
  topology = parse(name)
  assert (topology.name, topology.num_chips) == (full, chips)
  assert parse(topology.name) == topology


def test_every_product_size_has_a_valid_shape():
  for chip in CHIPS.values():
    for shape in chip.shapes:
      name = f'{chip.name}:{"x".join(map(str, shape))}'
      assert parse(name).shape == shape


_GENERATIONS = (
  'expected one of v4, v5e, v5p, v6e, h100, h200, b200, a100-80, a100-40, l4, '
  't4 with a shape or size, such as v4:2x2x4, v5e-16 or h100:8'
)
_SIZE = 'expected a generation with a shape or size, such as v4:2x2x4 or v5e-16'
_GPUS = (
  'expected 1 to 8 GPUs of a host, such as h100:8, or of several, such as '
  'h100:2x8'
)
_EVEN = (
  'expected even numbers in the first two dimensions: a host has 2x2 chips'
)


@pytest.mark.parametrize(
  ('name', 'expected'),
  [
    ('', _GENERATIONS),
    ('v4', _SIZE),
    ('v4:2x2x4\n', _SIZE),
    ('H100:8', f'{_GENERATIONS}; did you mean h100?'),
    ('h100:', _GPUS),
    ('h100:9', _GPUS),
    ('h100:0x8', _GPUS),
    ('h100:2x2x2', _GPUS),
    (
      'v5e-12',
      'expected for v5e one of 4, 8, 16, 32, 64, 128, 256 chips',
    ),
    (
      'v4-4',
      'expected for v4 one of 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, '
      '8192 TensorCores',
    ),
    ('v4:4x4', 'expected 3 dimensions for v4, such as v4:2x2x4'),
    ('v5litepod:16', 'expected 2 dimensions for v5e, such as v5e:4x4'),
    ('v4:2x2x0', 'expected 3 dimensions for v4, such as v4:2x2x4'),
    ('v4:2x2xa', 'expected 3 dimensions for v4, such as v4:2x2x4'),
    ('v4:1x1x1', _EVEN),
    ('v5e:1x4', _EVEN),
    ('v5e:32x32', 'expected at most 256 chips for v5e, not 1024'),
  ],
)
def test_bad_names(name, expected):
  with pytest.raises(UserError) as error:
    parse(name)
  assert str(error.value) == f'topology: got {name!r}, {expected}'


@pytest.mark.parametrize(
  ('name', 'steps', 'dims'),
  [
    ('v4:2x2x1', 4, 2),
    ('v4:2x2x4', 10, 3),
    ('v4:4x4x4', 18, 3),
    ('v5e:4x4', 12, 2),
  ],
)
def test_all_reduce(name, steps, dims):
  topology = parse(name)
  assert topology.all_reduce_steps == steps
  assert topology.link_bandwidth == dims * topology.chip.link_bandwidth


@pytest.mark.parametrize(
  ('name', 'extra'), [('v4-8', 'tpu'), ('h100:8', 'gpuaot')]
)
def test_no_compiler(monkeypatch, name, extra):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(UserError, match=rf"pip install 'specsamp\[{extra}\]'"):
    parse(name).devices()


def test_all_reduce_of_gpus():
  """NCCL's estimate is a constant and 2 (n - 1) messages."""
  assert parse('h100:8').latency(1) == pytest.approx(6.6e-6 + 14 * 0.6e-6)
  assert parse('t4:4').latency(0.5) == pytest.approx(6.6e-6 + 3 * 1e-6)
  across = parse('h100:2x8')
  assert across.latency(1) == pytest.approx(6.6e-6 + 26 * 0.6e-6 + 4 * 2.7e-6)
  # All eight adapters of a host carry the bytes that one GPU sends.
  assert across.link_bandwidth == 8 * 50e9 < parse('h100:8').link_bandwidth
  alone = parse('h100:4x1')
  assert alone.latency(1) == pytest.approx(6.6e-6 + 6 * 2.7e-6)
  assert alone.link_bandwidth == 50e9


@pytest.mark.gpu_aot
@pytest.mark.parametrize('name', GPUS)
def test_devices_of_gpus(name):
  devices = parse(f'{name}:2x2').devices()
  assert [device.process_index for device in devices] == [0, 0, 1, 1]
  assert {device.device_kind for device in devices} == {GPUS[name].description}


@pytest.mark.tpu_aot
@pytest.mark.parametrize('name', ['v4-32', 'v5p-32', 'v5e-16', 'v6e-16'])
def test_devices(name):
  devices = parse(name).devices()
  assert len(devices) == 16
  assert {device.platform for device in devices} == {'tpu'}
