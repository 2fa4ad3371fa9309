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
    ('v4:2x2x4', 'v4:2x2x4', 16),
    ('v4:2x2x1', 'v4:2x2x1', 4),
    ('v5p:4x4x4', 'v5p:4x4x4', 64),
    ('v5e:4x4', 'v5e:4x4', 16),
    ('v5e:4x2', 'v5e:4x2', 8),
    ('v5litepod:4x4', 'v5e:4x4', 16),
    ('v6e:16x16', 'v6e:16x16', 256),
    ('v4-8', 'v4:2x2x1', 4),
    ('v4-32', 'v4:2x2x4', 16),
    ('v4-256', 'v4:4x4x8', 128),
    ('v5p-32', 'v5p:2x2x4', 16),
    ('v5p-12288', 'v5p:16x16x24', 6144),
    ('v5e-16', 'v5e:4x4', 16),
    ('v5litepod-16', 'v5e:4x4', 16),
    ('v6e-8', 'v6e:2x4', 8),
    ('v6e-16', 'v6e:4x4', 16),
    ('h100', 'h100:1', 1),
    ('h100:8', 'h100:8', 8),
    ('h100:2x8', 'h100:2x8', 16),
    ('a100:4', 'a100-80:4', 4),
    ('a100-40:1', 'a100-40:1', 1),
    ('t4:1x4', 't4:4', 4),
  ],
)
def test_parse(name, full, chips):
  found = parse(name)
  assert (found.name, found.num_chips) == (full, chips)
  assert parse(found.name) == found


@pytest.mark.parametrize('chip', CHIPS.values(), ids=lambda chip: chip.name)
def test_every_sold_size_is_a_shape_there_is(chip):
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
    ('v9-8', _GENERATIONS),
    ('V4-8', f'{_GENERATIONS}; did you mean v4?'),
    ('v4:', _SIZE),
    ('v4:2x2x4\n', _SIZE),
    ('H100:8', f'{_GENERATIONS}; did you mean h100?'),
    ('h100-80:8', f'{_GENERATIONS}; did you mean a100-80?'),
    ('h100:', _GPUS),
    ('h100:0', _GPUS),
    ('h100:9', _GPUS),
    ('h100:16', _GPUS),
    ('h100:0x8', _GPUS),
    ('h100:8\n', _GPUS),
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
    ('v5e:2x2x4', 'expected 2 dimensions for v5e, such as v5e:4x4'),
    ('v5litepod:16', 'expected 2 dimensions for v5e, such as v5e:4x4'),
    ('v4:2x2x0', 'expected 3 dimensions for v4, such as v4:2x2x4'),
    ('v4:2x2xa', 'expected 3 dimensions for v4, such as v4:2x2x4'),
    ('v4:2x2x٤', 'expected 3 dimensions for v4, such as v4:2x2x4'),
    ('v4:1x1x1', _EVEN),
    ('v4:2x3x4', _EVEN),
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
  found = parse(name)
  assert found.all_reduce_steps == steps
  assert found.link_bandwidth == dims * found.chip.link_bandwidth


def test_no_libtpu(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(
    UserError, match=r"pip install 'specsamp\[tpu\]'"
  ) as error:
    parse('v4-8').devices()
  assert '\n' not in str(error.value)


def test_all_reduce_of_gpus():
  """NCCL's own reckoning: a base, and 2 (n - 1) messages."""
  assert parse('h100:8').latency(1) == pytest.approx(6.6e-6 + 14 * 0.6e-6)
  assert parse('t4:4').latency(0.5) == pytest.approx(6.6e-6 + 3 * 1e-6)
  across = parse('h100:2x8')
  assert across.latency(1) == pytest.approx(6.6e-6 + 26 * 0.6e-6 + 4 * 2.7e-6)
  # All eight adapters of a host carry what one GPU sends to the next.
  assert across.link_bandwidth == 8 * 50e9 < parse('h100:8').link_bandwidth
  alone = parse('h100:4x1')
  assert alone.latency(1) == pytest.approx(6.6e-6 + 6 * 2.7e-6)
  assert alone.link_bandwidth == 50e9


def test_no_plugin(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(
    UserError, match=r"pip install 'specsamp\[gpuaot\]'"
  ) as error:
    parse('h100:8').devices()
  assert '\n' not in str(error.value)


@pytest.mark.gpu_aot
@pytest.mark.parametrize('name', GPUS)
def test_devices_of_gpus(name):
  found = parse(f'{name}:2x2').devices()
  assert [device.process_index for device in found] == [0, 0, 1, 1]
  assert {device.device_kind for device in found} == {GPUS[name].description}


@pytest.mark.tpu_aot
@pytest.mark.parametrize('name', ['v4-32', 'v5p-32', 'v5e-16', 'v6e-16'])
def test_devices(name):
  found = parse(name).devices()
  assert len(found) == 16
  assert {device.platform for device in found} == {'tpu'}
