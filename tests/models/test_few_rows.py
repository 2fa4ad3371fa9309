"""A few rows times a matrix: the same product, by another kernel."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specsamp.models import few_rows
from specsamp.sharding import mesh as meshes

_SPECS = {  # shapes of activations and weight
  'btd,dcf->btcf': ((2, 5, 8), (8, 2, 12)),
  'bthz,hzd->btd': ((1, 5, 2, 4), (2, 4, 8)),
  'bd,de->be': ((2, 8), (8, 6)),
  '...d,dv->...v': ((2, 1, 5, 8), (8, 6)),
}


@pytest.fixture
def old_cpu(monkeypatch):
  """A CPU whose library is slow at them, whatever this one is."""
  monkeypatch.setattr(few_rows, '_most_rows', lambda: 48)


def _program(spec, x_shape, weight_shape, dtype=jnp.float32):
  rng = np.random.default_rng(0)
  x, weight = (
    jnp.asarray(rng.standard_normal(shape), dtype)
    for shape in (x_shape, weight_shape)
  )
  # Each time a function of its own: none finds another's trace.
  run = jax.jit(lambda x, weight: few_rows.einsum(spec, x, weight))
  return run, x, weight


def _kernels(run, *args):
  text = run.lower(*args).as_text()
  return re.findall(r'stablehlo\.(convolution|dot_general)', text)


@pytest.mark.parametrize('spec', _SPECS)
def test_is_einsum(old_cpu, spec):
  run, x, weight = _program(spec, *_SPECS[spec])
  assert _kernels(run, x, weight) == ['convolution']
  wanted = np.einsum(spec, np.float64(x), np.float64(weight))
  np.testing.assert_allclose(run(x, weight), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  ('rows', 'kernel'),
  [(1, 'dot_general'), (48, 'convolution'), (49, 'dot_general')],
)
def test_how_many_rows(old_cpu, rows, kernel):
  run, x, weight = _program('btd,de->bte', (1, rows, 8), (8, 6))
  assert _kernels(run, x, weight) == [kernel]


def test_other_types_are_the_librarys(old_cpu):
  run, x, weight = _program('bd,de->be', (5, 8), (8, 6), jnp.bfloat16)
  assert _kernels(run, x, weight) == ['dot_general']


def test_a_mesh_splits_products_and_no_convolutions(old_cpu):
  run, x, weight = _program('bd,de->be', (5, 8), (8, 6))
  with meshes.use(meshes.make(data=4, model=2)):
    assert _kernels(run, x, weight) == ['dot_general']


@pytest.mark.parametrize(
  ('machine', 'flags', 'rows'),
  [
    ('x86_64', 'flags : fma avx avx2', 48),
    ('x86_64', 'flags : fma avx2 avx512f avx512bw', 16),
    ('x86_64', None, 0),
    ('aarch64', 'Features : asimd', 0),
  ],
)
def test_which_cpus(monkeypatch, tmp_path, machine, flags, rows):
  """The library is kept where the features are not known."""
  path = tmp_path / 'cpuinfo'
  if flags:
    path.write_text(flags)
  monkeypatch.setattr(few_rows, '_CPU_FLAGS', path)
  monkeypatch.setattr(few_rows.platform, 'machine', lambda: machine)
  assert few_rows._most_rows.__wrapped__() == rows
