"""Weights in 8 bits: rounding, products, lookups, and their CPU programs."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import tiny

from specsamp.errors import UserError
from specsamp.models import kernels, quantized
from specsamp.sharding import mesh as meshes

# Name of a weight, its shape, and the number of its summed axes.
_WEIGHTS = {
  'down': ((6, 28), 1),
  'up': ((2, 12, 28), 1),
  'kv': ((2, 3, 4, 28), 1),
  'o': ((10, 4, 7), 2),
}
_weights = pytest.mark.parametrize('name', _WEIGHTS)
_kinds = pytest.mark.parametrize('kind', ['int8', 'w8a8'])


def _arrays(name, *tokens):
  """Returns activations of this many tokens, and a weight."""
  rng = np.random.default_rng(0)
  shape, num_summed = _WEIGHTS[name]
  draw = lambda *sizes: rng.standard_normal(sizes).astype(np.float32)
  return draw(*tokens, *shape[-num_summed:]), draw(*shape)


# Few tokens are rounded to 16 bits on CPUs, and more tokens are not.
_ATOL = {'int8': 1e-3, 'w8a8': 2e-5}


def _run(name, dtype='float32'):
  return jax.jit(lambda x, w: kernels.project(x, w, dtype, _WEIGHTS[name][1]))


def _wanted(name, x, weight, kind):
  """Returns the product with a quantized weight by NumPy, in float64."""
  axes = tuple(range(-_WEIGHTS[name][1], 0))
  x = x.astype(np.float64)
  if kind == 'w8a8':
    scale = (np.abs(x).max(axis=axes, keepdims=True) / 127).astype(np.float32)
    x = np.rint(x.astype(np.float32) / scale) * scale.astype(np.float64)
  weight = np.asarray(quantized.dequantize(weight), np.float64)
  return np.tensordot(x, weight, (axes, axes))


@_weights
def test_rounding(name):
  """The largest weight of an output is 127 steps, others the nearest step."""
  _, weight = _arrays(name, 1)
  got = quantized.quantize_weight(name, weight, 'int8')
  kept = weight.ndim - _WEIGHTS[name][1]
  assert (got.values.dtype, got.scale.shape) == (jnp.int8, weight.shape[:kept])
  flat = np.abs(np.asarray(got.values)).reshape(*weight.shape[:kept], -1)
  assert (flat.max(axis=-1) == 127).all()
  steps = np.expand_dims(got.scale, tuple(range(kept, weight.ndim)))
  error = np.abs(quantized.dequantize(got) - weight)
  assert (error <= 0.5001 * steps).all()
  assert error.max() > 0.3 * steps.min()


@_kinds
@pytest.mark.parametrize('tokens', [(1, 1), (1, 5), (3,), (2, 40)], ids=str)
@_weights
def test_products(name, tokens, kind):
  x, weight = _arrays(name, *tokens)
  weight = quantized.quantize_weight(name, weight, kind)
  got = _run(name)(x, weight)
  wanted = _wanted(name, x, weight, kind)
  atol = _ATOL[kind]
  np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=atol)
  # A token's result does not depend on the tokens next to it.
  alone = _run(name)(x[:1], weight)
  np.testing.assert_allclose(alone, got[:1], rtol=1e-6, atol=atol)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
@pytest.mark.parametrize('count', [1, 5, 17])
@_weights
def test_products_of_accelerators(name, count, dtype):
  x, weight = _arrays(name, 1, count)
  weight = quantized.quantize_weight(name, weight, 'int8')
  rounded = jnp.asarray(x, dtype)
  got = kernels._convert_and_dot(
    dtype, _WEIGHTS[name][1], 'float32', rounded, weight.values
  )
  unit = weight.replace(scale=jnp.ones_like(weight.scale))
  wanted = _wanted(name, np.asarray(rounded, np.float32), unit, 'int8')
  np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
  ('kind', 'count', 'columns'),
  [('w8a8', 1, 2), ('w8a8', 5, 8), ('int8', 1, 2), ('int8', 3, 8)],
)
def test_cpus_multiply_integers_by_columns(kind, count, columns):
  """A product of integers with one row or column is many times slower."""
  x, weight = _arrays('down', 1, count)
  weight = quantized.quantize_weight('down', weight, kind)
  text = _run('down').lower(x, weight).compile().as_text()
  assert re.findall(r'= s32(\[[\d,]+\])\S* dot\(', text) == [f'[6,{columns}]']
  assert 'f32[6,28]' not in text  # no float copy of the weight


@_kinds
def test_a_mesh_computes_the_same(kind):
  mesh = meshes.make(data=4, model=2)
  target = tiny.model(16, 0)
  tokens = jnp.asarray([[1, 2, 3]] * 4)
  rounded = target.quantized(kind)
  sharded = target.on(mesh).quantized(kind)
  assert rounded.fingerprint == sharded.fingerprint
  moved = rounded.on(mesh)
  same = jax.tree.map(
    lambda a, b: a.sharding == b.sharding and bool((a == b).all()),
    moved.params,
    sharded.params,
  )
  assert jax.tree.all(same)
  apply = lambda model: (
    model.transformer.apply({'params': model.params}, tokens).logits
  )
  wanted = apply(rounded)
  with meshes.use(mesh):
    got = jax.jit(lambda: apply(sharded))()
  np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)


def test_a_quantized_model_is_another_model():
  target = tiny.model(16, 0)
  models = [target, target.quantized('int8'), target.quantized('w8a8')]
  assert [model.weights for model in models] == ['', 'int8', 'w8a8']
  assert len({model.fingerprint for model in models}) == 3
  assert {model.source_fingerprint for model in models} == {target.fingerprint}
  assert 'w8a8 weights' in repr(models[2])
  with pytest.raises(UserError, match="weights: got 'int4'"):
    target.quantized('int4')
  assert len({model.num_params for model in models}) == 1
  # The same integers serve both kinds.
  again = models[1].quantized('w8a8')
  assert again.params['head'].values is models[1].params['head'].values
