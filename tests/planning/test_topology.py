"""Names of slices, good and bad, and the compiler's devices."""

import importlib.util

import pytest

from specsamp.errors import UserError
from specsamp.planning.gpu import GPUS, of_kind
from specsamp.planning.topology import parse


@pytest.mark.parametrize(
  ('name', 'full', 'chips'),
  [
    ('v4:2x2x1', 'v4:2x2x1', 4),
    ('v5litepod:4x4', 'v5e:4x4', 16),
    ('v4-256', 'v4:4x4x8', 128),
    ('v5p-12288', 'v5p:16x16x24', 6144),
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


def test_a_driver_names_its_gpu():
  for name, chip in GPUS.items():
    assert of_kind(chip.description) == parse(f'{name}:1')
  assert of_kind('NVIDIA H100 PCIe') is None  # another bandwidth


@pytest.mark.parametrize(
  ('name', 'expected'),
  [
    ('', 'expected one of v4, v5e, v5p, v6e, h100'),
    ('H100:8', 'did you mean h100?'),
    ('v4', 'expected a generation with a shape or size, such as v4:2x2x4'),
    ('h100:9', 'expected 1 to 8 GPUs of a host, such as h100:8'),
    ('v5e-12', 'expected for v5e one of 4, 8, 16, 32, 64, 128, 256 chips'),
    ('v4-4', '4096, 8192 TensorCores'),
    ('v4:4x4', 'expected 3 dimensions for v4, such as v4:2x2x4'),
    ('v5e:1x4', 'expected even numbers in the first two dimensions'),
    ('v5e:32x32', 'expected at most 256 chips for v5e'),
  ],
)
def test_bad_names(name, expected):
  with pytest.raises(UserError) as error:
    parse(name)
  line = str(error.value)
  assert line.startswith(f'topology: got {name!r}, ') and expected in line


def test_all_reduce_of_gpus():
  """NCCL's estimate is a constant and 2 (n - 1) messages."""
  seconds = lambda name: pytest.approx(parse(name).all_reduce_seconds)
  assert seconds('h100:8') == 6.6e-6 + 14 * 0.6e-6
  assert seconds('t4:4') == 6.6e-6 + 6 * 1e-6
  assert seconds('h100:2x8') == 6.6e-6 + 26 * 0.6e-6 + 4 * 2.7e-6
  assert seconds('h100:4x1') == 6.6e-6 + 6 * 2.7e-6
  # All eight adapters of a host carry the bytes that one GPU sends.
  eight, sixteen = (parse(n).link_bandwidth for n in ('h100:8', 'h100:2x8'))
  assert sixteen == 8 * 50e9 < eight
  assert parse('h100:4x1').link_bandwidth == 50e9


@pytest.mark.parametrize(
  ('name', 'extra'), [('v4-8', 'tpu'), ('h100:8', 'gpuaot')]
)
def test_no_compiler(monkeypatch, name, extra):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(UserError, match=rf"pip install 'specsamp\[{extra}\]'"):
    parse(name).devices()


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
