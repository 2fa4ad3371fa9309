"""float16 computes what float32 does, or decoding ends with an error."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import tiny

import specsamp
from specsamp.drafting import trained_drafter
from specsamp.errors import UserError
from specsamp.models import Transformer, kernels

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


@pytest.mark.parametrize('family', _FAMILIES)
@pytest.mark.parametrize(
  ('names', 'factor'),
  [
    ((), 1),
    # The embedding and the stream are beyond 65504.
    (('embedding', 'position_embedding'), 1e5),
    # Hidden units of the MLP, or their product with the gate, are beyond it.
    (('up',), 3e4),
    # The outputs of attention and MLP are beyond it, then the hidden units too.
    (('o', 'down'), 3e4),
    (('up', 'down'), 3e4),
  ],
  ids=['plain', 'embedding', 'hidden', 'branches', 'both'],
)
def test_streams_and_hidden_units_do_not_overflow(family, names, factor):
  model = _scaled(tiny.model(23, 0, **_FAMILIES[family]), names, factor)
  if model.config.tied_embeddings and 'embedding' in names:
    pytest.skip('so large an LM head is beyond float16')
  wanted = _logits(model, 'float32')
  got = _logits(model, 'float16')
  scale = np.abs(wanted[np.abs(wanted) < 1e29]).max()
  np.testing.assert_allclose(got, wanted, rtol=2**-6, atol=2**-6 * scale)


@pytest.mark.parametrize(
  ('family', 'names'),
  [('qwen', ('k_norm',)), ('llama', ('kv',)), ('opt', ('scale',))],
)
def test_an_overflow_ends_decoding(family, names):
  model = _scaled(tiny.model(23, 0, **_FAMILIES[family]), names, 1e6)
  run = lambda dtype: specsamp.generate(
    _with_dtype(model, dtype), [[3, 1, 4]], max_new_tokens=4, stop_tokens=[]
  )
  with pytest.raises(FloatingPointError, match=r"rows \[0\]; .*'float32'"):
    run('float16')
  assert len(run('float32').tokens[0]) == 4


@pytest.mark.parametrize('largest', [0, 1e-45, 1e-30, 1, 7e4, 1e38])
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
  [(tiny.trained, kind) for kind in ('hydra', 'eagle_parallel', 'dflash')]
  + [(tiny.published, kind) for kind in ('medusa', 'eagle', 'eagle3')],
)
def test_drafters_of_a_float16_target(make, kind):
  """They draft as in float32, also when the target's stream is beyond 65504."""
  num_layers = tiny.layers(kind) if make is tiny.published else 2
  target = _scaled(tiny.model(23, 0, num_layers=num_layers), ('down',), 3e4)
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


def test_drafters_beyond_float16_are_refused():
  target = _with_dtype(tiny.model(23, 0), 'float16')
  heads = _scaled(tiny.trained(target, 'medusa'), ('fuse',), 1e6)
  with pytest.raises(UserError, match='fuse has a value of .* 65504'):
    trained_drafter(heads, target, 3)
