"""float16 holds what bfloat16 does: by range, or else by a bound."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import tiny

import specsamp
from specsamp.drafting import trained_drafter
from specsamp.errors import UserError
from specsamp.models import Transformer, float16, kernels

_FAMILIES = {
  'llama': {},
  'qwen': dict(qk_norm=True, biases='qkv', tied_embeddings=True, padding=2),
  'opt': dict(
    norm='layer',
    positions='learned',
    gated=False,
    biases='all',
    activation='relu',
  ),
  'gopher': dict(positions='relative'),
}


def _model(family, seed=0):
  return tiny.model(23, seed, **_FAMILIES[family])


def _logits(model, dtype, params):
  """Of a text, a row alone, fed to a cache in two pieces."""
  transformer = Transformer(dataclasses.replace(model.config, dtype=dtype))
  tokens = jnp.asarray([[3, 1, 4, 1, 5]], jnp.int32)
  cache = transformer.init_cache(params, 1, 16)
  apply = lambda *args: transformer.apply({'params': params}, *args)
  first = apply(tokens[:, :4], None, cache)
  second = apply(tokens[:, 4:], jnp.full((1, 1), 4, jnp.int32), first.cache)
  assert {leaf.dtype for leaf in jax.tree.leaves(second.cache)} == {
    jnp.dtype(dtype)
  }
  return np.concatenate([first.logits, second.logits], axis=1)


def _scaled(params, names, factor):
  """The parameters of these names, times a factor."""
  return jax.tree_util.tree_map_with_path(
    lambda path, x: x * np.float32(factor) if path[-1].key in names else x,
    params,
  )


@pytest.mark.parametrize('family', _FAMILIES)
@pytest.mark.parametrize(
  ('names', 'factor'),
  [
    ((), 1),
    # The embedding, and so the stream, is beyond 65504 from the first layer.
    (('embedding', 'position_embedding'), 1e5),
    # Hidden units of the MLP are, of a gated one their product alone.
    (('up',), 3e4),
    # What the branches add is.
    (('o', 'down'), 3e4),
    (('up', 'down'), 3e4),
  ],
  ids=['plain', 'embedding', 'hidden', 'branches', 'both'],
)
def test_what_bfloat16_holds_does_not_overflow(family, names, factor):
  model = _model(family)
  params = _scaled(model.params, names, factor)
  if model.config.tied_embeddings and 'embedding' in names:
    pytest.skip('a head so large is no weight of float16')
  wanted = _logits(model, 'float32', params)
  found = _logits(model, 'float16', params)
  scale = np.abs(wanted[np.abs(wanted) < 1e29]).max()
  assert np.isfinite(found).all()
  np.testing.assert_allclose(found, wanted, rtol=2**-6, atol=2**-6 * scale)


def test_what_is_beyond_is_the_largest_number():
  x = jnp.asarray([1e9, -1e9, 3.0], jnp.float32)
  np.testing.assert_array_equal(
    float16.narrow(x, 'float16'), [65504, -65504, 3]
  )
  assert float16.narrow(x, 'bfloat16').dtype == jnp.bfloat16


@pytest.mark.parametrize('largest', [0, 1e-45, 1e-30, 1, 7e4, 1e38])
def test_products_of_any_size(largest):
  rng = np.random.default_rng(1)
  x = rng.uniform(-1, 1, (1, 3, 8)).astype(np.float32) * np.float32(largest)
  weight = rng.uniform(-0.1, 0.1, (2, 5, 8)).astype(np.float16)
  found = kernels.project(jnp.asarray(x), weight, 'float16')
  wanted = np.einsum('btd,fzd->btfz', x.astype(float), weight.astype(float))
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(found, wanted, atol=2**-9 * largest + 1e-37)


@pytest.mark.parametrize(
  ('names', 'found'),
  [
    ((), ''),
    (('kv',), 'attention.kv'),
    (('q_bias',), ''),  # float32 until it is normed
    (('k_norm',), 'attention.k_norm'),
  ],
)
def test_reach_is_a_bound(names, found):
  model = _model('qwen')
  params = _scaled(model.params, names, 4e4)
  fault = float16.beyond_reach(model.config, params)
  assert (found in fault) if found else not fault
  norms = _scaled(model.params, ('scale',), 1e4)
  assert 'norm makes may be' in float16.beyond_reach(model.config, norms)


@pytest.mark.parametrize('family', _FAMILIES)
def test_nothing_reaches_further(family):
  """Values that a text makes, beside the bound of what made them."""
  model = _model(family, seed=3)
  reaches = float16._reaches(model.config, model.params)
  transformer = model.transformer
  cache = transformer.init_cache(model.params, 1, 16)
  tokens = jnp.asarray([[3, 1, 4, 1, 5, 9, 2, 6]], jnp.int32)
  out = transformer.apply({'params': model.params}, tokens, None, cache)
  assert np.abs(out.hidden).max() <= reaches['final_norm']
  for i in range(model.config.num_layers):
    reach = lambda name, i=i: reaches[f'layers_{i}.attention.{name}']
    largest = lambda arrays, i=i: np.abs(arrays[i]).max()
    assert largest(out.cache.values) <= reach('kv')
    keys = 'k_norm' if model.config.qk_norm else 'kv'
    assert largest(out.cache.keys) <= reach(keys)
    if out.cache.relative:
      assert largest(out.cache.relative) <= reach('relative')


@pytest.mark.integration
@pytest.mark.parametrize(
  'kind', ['hydra', 'eagle', 'medusa_parallel', 'eagle_parallel', 'dflash']
)
def test_drafters_of_a_float16_target(kind):
  """They draft in float16 what they draft in float32, beyond its range too."""
  target = tiny.model(23, 0)
  params = _scaled(target.params, ('down',), 3e4)
  target = dataclasses.replace(target, params=params)
  _assert_drafts_alike(target, lambda target: tiny.trained(target, kind))


@pytest.mark.integration
@pytest.mark.parametrize('kind', ['medusa', 'eagle', 'eagle3'])
def test_published_drafters_of_a_float16_target(kind):
  target = tiny.model(23, 0, num_layers=tiny.layers(kind))
  params = _scaled(target.params, ('down',), 3e4)
  target = dataclasses.replace(target, params=params)
  _assert_drafts_alike(target, lambda target: tiny.published(target, kind))


def _assert_drafts_alike(target, make):
  drafted = []
  for dtype in ('float32', 'float16'):
    config = dataclasses.replace(target.config, dtype=dtype)
    own = dataclasses.replace(target, transformer=Transformer(config))
    drafter = trained_drafter(make(own), own, 3)
    out = specsamp.generate(
      own,
      [[3, 1, 4, 1, 5]],
      drafter=drafter,
      sampling=specsamp.SamplingParams(temperature=0.0),
      max_new_tokens=8,
    )
    drafted.append((out.tokens, out.acceptance_rate))
  assert drafted[0] == drafted[1]


def test_heads_beyond_float16_are_refused():
  target = tiny.model(23, 0)
  config = dataclasses.replace(target.config, dtype='float16')
  target = dataclasses.replace(target, transformer=Transformer(config))
  given = tiny.trained(target, 'medusa')
  given = dataclasses.replace(
    given, params=_scaled(given.params, ('fuse',), 1e6)
  )
  with pytest.raises(UserError, match='fuse has a value of .* 65504'):
    trained_drafter(given, target, 3)


_PRODUCTS = {  # shapes of both, and the rows of the first
  'btd,hzd->bthz': ((1, 1, 8), (2, 6, 8), 1),
  'bthz,dhz->btd': ((1, 1, 2, 6), (8, 2, 6), 1),
  'bd,ed->be': ((1, 8), (4, 8), 1),
  'btd,vd->btv': ((2, 3, 8), (5, 8), 6),
}
_CASES = [(spec, False) for spec in _PRODUCTS] + [
  (spec, True)
  for spec in _PRODUCTS
  if 'hz,' not in spec  # sums over one axis
]


@pytest.mark.parametrize(('spec', 'is_head'), _CASES)
def test_a_cpu_multiplies_bfloat16_in_products_that_it_has(spec, is_head):
  """Their results are float32, and they have two rows or more."""
  rng = np.random.default_rng(0)
  *shapes, rows = _PRODUCTS[spec]
  x, weight = (
    jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in shapes
  )

  @jax.jit
  def run(x, weight):
    if is_head:
      return kernels.logits(x, weight, 'bfloat16')
    num_summed = 2 if 'hz,' in spec else 1
    return kernels.project(x, weight, 'bfloat16', num_summed)

  got = run(x, weight)
  wanted = np.einsum(spec, *(np.asarray(v, np.float32) for v in (x, weight)))
  assert got.dtype == (jnp.float32 if is_head else jnp.bfloat16)
  np.testing.assert_allclose(
    got.astype(jnp.float32),
    wanted,
    rtol=1e-6 if is_head else 2.0**-8,
    atol=1e-5,
  )
  text = run.lower(x, weight).as_text()
  (result,) = re.findall(r'dot_general.*-> tensor<(.*)xf32>', text)
  sizes = map(int, result.split('x'))
  assert math.prod(sizes) == wanted.size // rows * max(rows, 2)
