"""Products of activations and weights: values, gradients, CPU programs."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specsamp.models import kernels
from specsamp.sharding import mesh as meshes

# Shape of a weight, and the number of its summed axes. No other array of the
# programs below is as large as the weight.
_WEIGHTS = {
  'matrix': ((6, 28), 1),
  'gate_and_up': ((2, 12, 28), 1),
  'keys_and_values': ((2, 3, 4, 28), 1),
  'attention_output': ((10, 4, 7), 2),
}
_CLOSE = dict(rtol=1e-5, atol=1e-5)
_weights = pytest.mark.parametrize('name', _WEIGHTS)


def _arrays(name, *tokens, dtype=jnp.float32):
  """Returns activations of this many tokens, and a weight."""
  rng = np.random.default_rng(0)
  shape, num_summed = _WEIGHTS[name]
  draw = lambda *sizes: jnp.asarray(rng.standard_normal(sizes), dtype)
  return draw(*tokens, *shape[-num_summed:]), draw(*shape)


def _program(name, dtype='float32'):
  """Returns a new function, whose traces are not shared with other tests."""
  num_summed = _WEIGHTS[name][1]
  return jax.jit(
    lambda x, weight: kernels.project(x, weight, dtype, num_summed)
  )


def _wanted(name, x, weight):
  """Returns the product by NumPy, in float64."""
  num_summed = _WEIGHTS[name][1]
  x, weight = (np.asarray(array, np.float64) for array in (x, weight))
  axes = range(-num_summed, 0)
  return np.tensordot(x, weight, (list(axes), list(axes)))


@pytest.mark.parametrize(
  'tokens',
  [(1, 1), (1, 3), (1, 8), (1, 16), (1, 17), (5,), (5, 1), (5, 4)],
  ids=str,
)
@_weights
def test_products(name, tokens):
  x, weight = _arrays(name, *tokens)
  got = _program(name)(x, weight)
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(got, _wanted(name, x, weight), **_CLOSE)


@_weights
def test_gradients(name):
  count = 5  # columns
  x, weight = _arrays(name, 1, count)
  run = _program(name)
  shape = _wanted(name, x, weight).shape
  above = jnp.cos(jnp.arange(math.prod(shape), dtype=jnp.float32))
  above = above.reshape(shape)
  loss = lambda x, weight: (run(x, weight) * above).sum()
  x_grad, weight_grad = jax.grad(loss, (0, 1))(x, weight)
  flat = lambda array, *sizes: np.asarray(array, np.float64).reshape(*sizes)
  size = math.prod(weight.shape[-_WEIGHTS[name][1] :])
  above = flat(above, count, -1)
  wanted = above @ flat(weight, -1, size)
  np.testing.assert_allclose(flat(x_grad, count, size), wanted, **_CLOSE)
  wanted = above.T @ flat(x, count, size)
  np.testing.assert_allclose(flat(weight_grad, -1, size), wanted, **_CLOSE)


@pytest.mark.parametrize(
  ('count', 'columns'),
  [
    (1, None), (2, 4), (4, 4), (5, 8), (8, 8), (16, 16), (17, None),
  ],
)  # fmt: skip
@_weights
def test_few_tokens_are_columns_and_no_weight_is_copied(name, count, columns):
  """The compiler does not move the transposes into the product."""
  x, weight = _arrays(name, 1, count)
  text = _program(name).lower(x, weight).compile().as_text()
  shape, num_summed = _WEIGHTS[name]
  outputs = math.prod(shape[:-num_summed])
  (product,) = (dims for kind, dims in _results(text) if kind == 'dot')
  assert product == ((outputs, columns) if columns else (count, outputs))
  if count < 17:
    assert {
      kind for kind, dims in _results(text) if math.prod(dims) == weight.size
    } <= {'parameter', 'bitcast'}


def _results(text):
  """Yields (operation, shape) of each instruction of a compiled program."""
  for shape, operation in re.findall(r'= \w+\[([\d,]*)\]\S* ([\w-]+)\(', text):
    yield operation, tuple(int(size) for size in shape.split(',') if size)


def _operations(run, *args):
  return set(re.findall(r'stablehlo\.(\w+)', run.lower(*args).as_text()))


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_only_float32_is_multiplied_by_columns(dtype):
  x, weight = _arrays('matrix', 1, 5, dtype=dtype)
  assert 'transpose' not in _operations(_program('matrix', dtype), x, weight)


@pytest.mark.parametrize(
  ('name', 'rows', 'is_head'),
  [
    *((name, (1, 1), False) for name in _WEIGHTS),
    ('matrix', (1,), True),
    ('matrix', (2, 3), True),
  ],
)
def test_bfloat16_products_on_cpus(name, rows, is_head):
  """They have float32 results and at least two rows, for which XLA is fast."""
  x, weight = _arrays(name, *rows, dtype=jnp.bfloat16)
  run = _program(name, 'bfloat16')
  if is_head:
    run = jax.jit(lambda *args: kernels.logits(*args, 'bfloat16'))
  got = run(x, weight)
  assert got.dtype == (jnp.float32 if is_head else jnp.bfloat16)
  wanted = _wanted(name, x, weight)
  np.testing.assert_allclose(
    got.astype(jnp.float32),
    wanted,
    rtol=1e-6 if is_head else 2.0**-8,
    atol=1e-5,
  )
  text = run.lower(x, weight).as_text()
  (result,) = re.findall(r'dot_general.*-> tensor<(.*)xf32>', text)
  size, count = math.prod(map(int, result.split('x'))), math.prod(rows)
  assert size == wanted.size // count * max(count, 2)


@_weights
def test_a_mesh_splits_products_without_columns(name):
  """Rows of the batch and outputs of the weight stay on their devices."""
  mesh = meshes.make(data=4, model=2)
  x, weight = _arrays(name, 4, 2)
  wanted = _wanted(name, x, weight)
  split = lambda *axes: jax.NamedSharding(mesh, jax.P(*axes))
  x = jax.device_put(x, split('data'))
  weight = jax.device_put(weight, split('model'))
  with meshes.use(mesh):
    run = _program(name)
    assert 'optimization_barrier' not in _operations(run, x, weight)
    text = run.lower(x, weight).compile().as_text()
    got = run(x, weight)
  assert not re.search(r'all-(gather|reduce|to-all)', text)
  np.testing.assert_allclose(got, wanted, **_CLOSE)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('num_tokens', [1, 3])
def test_scores(num_tokens, dtype):
  """The scores of a single token per row are computed by slot."""
  rng = np.random.default_rng(0)
  draw = lambda *sizes: jnp.asarray(rng.standard_normal(sizes), dtype)
  q_buqz, keys_busz = draw(4, 2, 2 * num_tokens, 8), draw(4, 2, 11, 8)
  wanted = np.einsum(
    'buqz,busz->buqs', np.float64(q_buqz), np.float64(keys_busz)
  )
  for mesh in (None, meshes.make(data=4, model=2)):
    with meshes.use(mesh):
      run = jax.jit(lambda *args: kernels.scores(*args, num_tokens))
      got = run(q_buqz, keys_busz)
      operations = _operations(run, q_buqz, keys_busz)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, wanted, **_CLOSE)
    is_by_slot = 'optimization_barrier' in operations
    assert is_by_slot == (num_tokens == 1 and mesh is None)
