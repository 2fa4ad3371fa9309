"""Products of activations and weights: values, gradients, CPU programs."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specsamp.models import kernels
from specsamp.sharding import mesh as meshes

# Shapes of a weight, and the number of axes that are summed over. No other
# array of the programs below is as large as the weight.
_WEIGHTS = {
  'matrix': ((6, 28), 1),
  'gate_and_up': ((2, 12, 28), 1),
  'keys_and_values': ((2, 3, 4, 28), 1),
  'attention_output': ((10, 4, 7), 2),
}
_NUM_TOKENS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 48, 49)


def _arrays(name, *tokens, dtype=jnp.float32):
  """Returns activations of this many tokens, and a weight."""
  rng = np.random.default_rng(0)
  shape, num_summed = _WEIGHTS[name]
  draw = lambda *sizes: jnp.asarray(rng.standard_normal(sizes), dtype)
  return draw(*tokens, *shape[-num_summed:]), draw(*shape)


def _program(name, dtype='float32'):
  """Returns a new function, so that no trace is found again."""
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


@pytest.mark.parametrize('name', _WEIGHTS)
@pytest.mark.parametrize('count', _NUM_TOKENS)
def test_products_of_any_number_of_tokens(name, count):
  x, weight = _arrays(name, 1, count)
  got = _program(name)(x, weight)
  assert got.dtype == jnp.float32
  wanted = _wanted(name, x, weight)
  np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('tokens', [(5,), (5, 1), (2, 5), (5, 4)], ids=str)
@pytest.mark.parametrize('name', _WEIGHTS)
def test_products_of_any_batch(name, tokens):
  x, weight = _arrays(name, *tokens)
  got = _program(name)(x, weight)
  wanted = _wanted(name, x, weight)
  np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
@pytest.mark.parametrize('tokens', [(5,), (2, 1, 5), (1, 1)], ids=str)
def test_logits_are_float32(dtype, tokens):
  hidden, head = _arrays('matrix', *tokens, dtype=dtype)
  got = jax.jit(lambda *args: kernels.logits(*args, dtype))(hidden, head)
  assert got.dtype == jnp.float32
  wanted = _wanted('matrix', hidden, head)
  np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('name', _WEIGHTS)
@pytest.mark.parametrize('count', [1, 5, 17])
def test_gradients(name, count):
  x, weight = _arrays(name, 1, count)
  run = _program(name)
  above = jnp.cos(jnp.arange(run(x, weight).size, dtype=jnp.float32))
  above = above.reshape(run(x, weight).shape)
  loss = lambda x, weight: (run(x, weight) * above).sum()
  of_x, of_weight = jax.grad(loss, (0, 1))(x, weight)
  flat = lambda array, *sizes: np.asarray(array, np.float64).reshape(*sizes)
  size = math.prod(weight.shape[-_WEIGHTS[name][1] :])
  above = flat(above, count, -1)
  wanted = above @ flat(weight, -1, size)
  close = dict(rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(flat(of_x, count, size), wanted, **close)
  wanted = above.T @ flat(x, count, size)
  np.testing.assert_allclose(flat(of_weight, -1, size), wanted, **close)


@pytest.mark.parametrize('name', _WEIGHTS)
def test_products_under_vmap(name):
  x, weight = _arrays(name, 3, 1, 5)
  got = jax.vmap(_program(name), in_axes=(0, None))(x, weight)
  wanted = _wanted(name, x, weight)
  np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def _compiled(name, count):
  """Returns a product's program for this CPU, and the size of its weight."""
  x, weight = _arrays(name, 1, count)
  return _program(name).lower(x, weight).compile().as_text(), weight.size


def _results(text):
  """Yields (operation, shape) of each instruction of a compiled program."""
  for shape, operation in re.findall(r'= \w+\[([\d,]*)\]\S* ([\w-]+)\(', text):
    yield operation, tuple(int(size) for size in shape.split(',') if size)


@pytest.mark.parametrize('name', _WEIGHTS)
@pytest.mark.parametrize('count', [1, 2, 3, 5, 8, 16])
def test_no_program_for_few_tokens_copies_a_weight(name, count):
  text, size = _compiled(name, count)
  of_its_size = {
    operation for operation, shape in _results(text) if math.prod(shape) == size
  }
  assert of_its_size <= {'parameter', 'bitcast'}


@pytest.mark.parametrize(
  ('count', 'columns'),
  [(2, 4), (4, 4), (5, 8), (8, 8), (9, 16), (16, 16)],
)
@pytest.mark.parametrize('name', _WEIGHTS)
def test_weight_times_columns_for_few_tokens(name, count, columns):
  """The compiler does not move the transposes into the product."""
  text, _ = _compiled(name, count)
  shape, num_summed = _WEIGHTS[name]
  (found,) = (result for kind, result in _results(text) if kind == 'dot')
  assert found == (math.prod(shape[:-num_summed]), columns)


@pytest.mark.parametrize('count', [1, 17])
@pytest.mark.parametrize('name', _WEIGHTS)
def test_rows_times_weight_for_other_numbers_of_tokens(name, count):
  text, _ = _compiled(name, count)
  shape, num_summed = _WEIGHTS[name]
  (found,) = (result for kind, result in _results(text) if kind == 'dot')
  assert found == (count, math.prod(shape[:-num_summed]))


def _lowered(run, *args):
  text = run.lower(*args).as_text()
  return set(re.findall(r'stablehlo\.(\w+)', text))


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_other_types_are_no_columns(dtype):
  x, weight = _arrays('matrix', 1, 5, dtype=dtype)
  found = _lowered(_program('matrix', dtype), x, weight)
  assert 'dot_general' in found and 'transpose' not in found


@pytest.mark.parametrize('name', _WEIGHTS)
def test_a_mesh_splits_products_and_no_columns(name):
  """Rows of the batch and outputs of the weight stay on their devices."""
  mesh = meshes.make(data=4, model=2)
  x, weight = _arrays(name, 4, 2)
  wanted = _wanted(name, x, weight)
  where = lambda *axes: jax.NamedSharding(mesh, jax.P(*axes))
  x = jax.device_put(x, where('data'))
  weight = jax.device_put(weight, where('model'))
  with meshes.use(mesh):
    run = _program(name)
    found = _lowered(run, x, weight)
    text = run.lower(x, weight).compile().as_text()
    got = run(x, weight)
  assert 'dot_general' in found
  assert 'optimization_barrier' not in found
  assert not re.search(r'all-(gather|reduce|to-all)', text)
  np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('num_tokens', [1, 3])
def test_scores(num_tokens, dtype):
  """Those of a single token per row are computed by slot."""
  rng = np.random.default_rng(0)
  draw = lambda *sizes: jnp.asarray(rng.standard_normal(sizes), dtype)
  q_buqz, keys_busz = draw(4, 2, 2 * num_tokens, 8), draw(4, 2, 11, 8)
  # Each call has a new function, so that no trace is found again.
  make = lambda: jax.jit(lambda *args: kernels.scores(*args, num_tokens))
  wanted = np.einsum(
    'buqz,busz->buqs', np.float64(q_buqz), np.float64(keys_busz)
  )
  run = make()
  got = run(q_buqz, keys_busz)
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
  is_by_slot = 'optimization_barrier' in _lowered(run, q_buqz, keys_busz)
  assert is_by_slot == (num_tokens == 1)
  with meshes.use(meshes.make(data=4, model=2)):
    run = make()
    assert 'optimization_barrier' not in _lowered(run, q_buqz, keys_busz)
    got = run(q_buqz, keys_busz)
  np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
