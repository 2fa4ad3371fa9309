"""float16 computes what float32 does, or decoding ends with an error."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import tiny

import specsamp
from specsamp.drafting import trained_drafter
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, kernels


def _with_dtype(model, dtype):
  config = dataclasses.replace(model.config, dtype=dtype)
  return dataclasses.replace(model, transformer=Transformer(config))


def _scaled(model, names, factor):
  """Multiplies the parameters with these names by a factor."""
  params = jax.tree_util.tree_map_with_path(
    lambda path, x: x * np.float32(factor) if path[-1].key in names else x,
    model.params,
  )
  return dataclasses.replace(model, params=params)


def _logits(model, dtype):
  """Returns logits of five tokens, which enter a cache in two passes."""
  transformer = _with_dtype(model, dtype).transformer
  tokens = jnp.asarray([[3, 1, 4, 1, 5]], jnp.int32)
  cache = transformer.init_cache(model.params, 1, 16)
  apply = lambda *args: transformer.apply({'params': model.params}, *args)
  first = apply(tokens[:, :4], None, cache)
  second = apply(tokens[:, 4:], jnp.full((1, 1), 4, jnp.int32), first.cache)
  assert {leaf.dtype for leaf in jax.tree.leaves(second.cache)} == {
    jnp.dtype(dtype)
  }
  return np.concatenate([first.logits, second.logits], axis=1)


@pytest.mark.parametrize('model', ['qwen', 'mixed'], indirect=True)
@pytest.mark.parametrize(
  ('names', 'factor', 'dtype'),
  [
    pytest.param((), 1, 'bfloat16', marks=pytest.mark.extended),
    pytest.param((), 1, 'float16', marks=pytest.mark.extended),
    # The embedding and the stream are beyond 65504.
    (('embedding',), 1e5, 'float16'),
    # The outputs of attention and MLP are beyond it, then the hidden units of
    # the MLP, and their product with the gate, too.
    (('o', 'down'), 3e4, 'float16'),
    (('up', 'down'), 3e4, 'float16'),
  ],
  ids=['bfloat16', 'plain', 'embedding', 'branches', 'hidden'],
)
def test_streams_and_hidden_units_do_not_overflow(model, names, factor, dtype):
  model = _scaled(LanguageModel(*model, tokenizer=None), names, factor)
  wanted = _logits(model, 'float32')
  got = _logits(model, dtype)
  scale = np.abs(wanted[np.abs(wanted) < 1e29]).max()
  tolerance = {'float16': 2**-6, 'bfloat16': 2**-3}[dtype]
  np.testing.assert_allclose(got, wanted, tolerance, tolerance * scale)


@pytest.mark.parametrize(
  'name', ['k_norm', pytest.param('scale', marks=pytest.mark.extended)]
)
def test_an_overflow_ends_decoding(name):
  model = _scaled(tiny.model(23, 0, qk_norm=True), [name], 1e6)
  run = lambda dtype: specsamp.generate(
    _with_dtype(model, dtype), [[3, 1, 4]], max_new_tokens=4, stop_tokens=[]
  )
  with pytest.raises(FloatingPointError, match=r"rows \[0\]; .*'float32'"):
    run('float16')
  assert len(run('float32').tokens[0]) == 4


@pytest.mark.parametrize('largest', [0, 1e-45, 1, 7e4, 1e38])
def test_products_of_any_size(largest):
  rng = np.random.default_rng(1)
  x = rng.uniform(-1, 1, (1, 3, 8)).astype(np.float32) * np.float32(largest)
  weight = rng.uniform(-0.1, 0.1, (2, 5, 8)).astype(np.float16)
  got = kernels.project(jnp.asarray(x), weight, 'float16')
  wanted = np.einsum('btd,fzd->btfz', x.astype(float), weight.astype(float))
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(got, wanted, atol=2**-9 * largest + 1e-37)


@pytest.mark.integration
@pytest.mark.parametrize(
  ('make', 'kind'),
  [
    (tiny.trained, 'dflash'),
    pytest.param(tiny.trained, 'eagle_parallel', marks=pytest.mark.extended),
    pytest.param(tiny.published, 'dspark', marks=pytest.mark.extended),
    pytest.param(tiny.published, 'eagle', marks=pytest.mark.extended),
    pytest.param(tiny.published, 'medusa', marks=pytest.mark.extended),
    pytest.param(tiny.published, 'eagle3', marks=pytest.mark.extended),
  ],
)
def test_drafters_of_a_float16_target(make, kind):
  """They draft as in float32, also when the target's stream is beyond 65504."""
  target = tiny.model(23, 0, num_layers=tiny.layers(kind))
  target = _scaled(target, ('down',), 3e4)
  drafted = []
  for dtype in ('float32', 'float16'):
    model = _with_dtype(target, dtype)
    out = specsamp.generate(
      model,
      [[3, 1, 4, 1, 5]],
      drafter=trained_drafter(make(model, kind), model, 3),
      sampling=specsamp.SamplingParams(temperature=0.0),
      max_new_tokens=8,
    )
    drafted.append((out.tokens, out.acceptance_rate))
  assert drafted[0] == drafted[1]
