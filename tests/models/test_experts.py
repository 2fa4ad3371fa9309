"""Experts: the router's rules, blocks of tokens, and which weights are read."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specsamp.models import TransformerConfig, experts, quantized
from specsamp.sharding import mesh as meshes

_CONFIG = TransformerConfig(
  vocab_size=8,
  width=12,
  num_layers=1,
  num_heads=2,
  num_kv_heads=2,
  head_dim=6,
  mlp_width=8,
  max_length=8,
  num_experts=8,
  experts_per_token=3,
  expert_width=16,
)


@pytest.mark.parametrize(
  ('router', 'count', 'weights'),
  [
    # Scores are the logarithms of 1, 4, 2 and 3: probabilities .1, .4, .2, .3.
    ('softmax', 1, [0.4]),
    ('softmax', 2, [0.4, 0.3]),
    ('softmax', 4, [0.4, 0.3, 0.2, 0.1]),
    ('top_k', 1, [1.0]),
    ('top_k', 2, [4 / 7, 3 / 7]),
    ('top_k', 4, [0.4, 0.3, 0.2, 0.1]),
  ],
)
def test_weights_of_a_router(router, count, weights):
  config = dataclasses.replace(
    _CONFIG, num_experts=4, experts_per_token=count, router=router
  )
  scores = jnp.log(jnp.array([[1.0, 4.0, 2.0, 3.0]]))
  got, chosen = experts.route(scores, config)
  np.testing.assert_allclose(got, [weights], rtol=1e-6)
  np.testing.assert_array_equal(chosen, [[1, 3, 2, 0][:count]])


@functools.cache
def _params():
  rng = np.random.default_rng(0)
  c = _CONFIG
  shapes = dict(
    router=(c.num_experts, c.width),
    expert_gate=(c.num_experts, c.expert_width, c.width),
    expert_up=(c.num_experts, c.expert_width, c.width),
    expert_down=(c.num_experts, c.width, c.expert_width),
  )
  return {
    name: jnp.asarray(rng.standard_normal(shape, np.float32))
    for name, shape in shapes.items()
  }


def _tokens(num_tokens, skew):
  """Returns tokens; with skew, all of them choose the same experts."""
  rng = np.random.default_rng(1)
  x = rng.standard_normal((1, num_tokens, _CONFIG.width), np.float32)
  return jnp.asarray(x * 0.01 + 1 if skew else x)


def _dense(params, x):
  """Runs all experts over all tokens."""
  scores = x @ params['router'].T
  probs = jax.nn.softmax(scores)
  top = jax.lax.top_k(probs, _CONFIG.experts_per_token)[0][..., -1:]
  weights = jnp.where(probs >= top, probs, 0)
  weights /= weights.sum(axis=-1, keepdims=True)
  einsum = functools.partial(jnp.einsum, precision='highest')
  gate = einsum('btd,efd->btef', x, params['expert_gate'])
  up = einsum('btd,efd->btef', x, params['expert_up'])
  hidden = jax.nn.silu(gate) * up * weights[..., None]
  return einsum('btef,edf->btd', hidden, params['expert_down'])


def _run(params, x, dtype='float32'):
  config = dataclasses.replace(_CONFIG, dtype=dtype)
  return experts.Experts(config).apply({'params': params}, x)


_sizes = pytest.mark.parametrize(
  ('num_tokens', 'skew'),
  [(1, False), (5, False), (60, False), (60, True), (400, True)],
)


@_sizes
def test_no_token_is_dropped_and_no_other_expert_is_read(num_tokens, skew):
  """Weights that no token chose are NaN, which any product would show."""
  params, x = _params(), _tokens(num_tokens, skew)
  wanted = _dense(params, x)
  _, chosen = jax.lax.top_k(x @ params['router'].T, _CONFIG.experts_per_token)
  used = np.isin(np.arange(_CONFIG.num_experts), chosen)
  assert used.all() == (num_tokens == 60 and not skew)
  hidden = {
    name: value
    if name == 'router'
    else np.where(used[:, None, None], value, np.nan)
    for name, value in params.items()
  }
  for dtype, error in (
    ('float32', 1e-5),
    ('bfloat16', 4e-2),
    ('float16', 4e-3),
  ):
    exact = dtype == 'float32'
    inputs = hidden if exact else params, jnp.asarray(x, dtype)
    got = np.asarray(
      jax.jit(_run, static_argnums=2)(*inputs, dtype), np.float32
    )
    wrong = np.abs(got - wanted).max(axis=-1) > error * np.abs(wanted).max()
    # Scores that are rounded choose other experts for a few tokens.
    assert wrong.mean() <= (0 if exact else 0.2)


@_sizes
def test_blocks_hold_every_assignment_once(num_tokens, skew):
  x = _tokens(num_tokens, skew)[0]
  _, chosen = experts.route(x @ _params()['router'].T, _CONFIG)
  num_rows = experts.rows_per_block(num_tokens, _CONFIG)
  blocks = experts.group(chosen, _CONFIG.num_experts, num_rows)
  blocks, chosen = jax.tree.map(np.asarray, (blocks, chosen))
  rows = blocks.rows_nk
  assert len(set(rows.ravel())) == rows.size
  np.testing.assert_array_equal(
    blocks.tokens_mr.ravel()[rows], np.arange(num_tokens)[:, None] + 0 * rows
  )
  np.testing.assert_array_equal(blocks.experts_m[rows // num_rows], chosen)
  sizes = np.bincount(chosen.ravel(), minlength=_CONFIG.num_experts)
  assert (
    blocks.count == np.ceil(sizes / num_rows).sum() <= len(blocks.experts_m)
  )


def test_gradients():
  """A mixture of experts can be trained."""
  params, x = _params(), _tokens(7, False)
  loss = lambda run: jax.jit(jax.grad(lambda p: jnp.sum(run(p, x) ** 2)))
  got, wanted = loss(_run)(params), loss(_dense)(params)
  for name, value in wanted.items():
    scale = np.abs(value).max()
    np.testing.assert_allclose(
      got[name], value, atol=1e-4 * scale, err_msg=name
    )


@pytest.mark.parametrize('kind', ['', 'int8', 'w8a8'])
@pytest.mark.parametrize('num_tokens', [2, 60])
def test_a_mesh_computes_the_same(kind, num_tokens):
  """Two shards of each expert, over two rows of tokens."""
  params = _params()
  wanted = _run(params, jnp.reshape(_tokens(num_tokens, False), (2, -1, 12)))
  if kind:
    params = quantized.quantize(params, kind)
    assert quantized.is_quantized(params['expert_down'])
    assert not quantized.is_quantized(params['router'])
  x = jnp.reshape(_tokens(num_tokens, False), (2, -1, 12))
  alone = jax.jit(_run)(params, x)
  with meshes.use(meshes.make(2, 2, jax.devices()[:4])):
    shared = jax.jit(_run)(params, x)
  scale = np.abs(wanted).max()
  error = {'': 1e-6, 'int8': 0.02, 'w8a8': 0.05}[kind]
  np.testing.assert_allclose(alone, wanted, atol=error * scale)
  np.testing.assert_allclose(shared, alone, atol=error * scale)


@pytest.mark.parametrize('num_tokens', [1, 9])
def test_other_platforms_compute_the_same(num_tokens):
  x = _tokens(num_tokens, False)[0]
  _, chosen = experts.route(x @ _params()['router'].T, _CONFIG)
  run = lambda by, **how: by(x, _params(), chosen, _CONFIG, **how)
  wanted = run(experts._by_blocks)
  for got in (
    run(experts._by_sums),
    run(experts._by_all),
    run(experts._by_blocks, skips=False),
    run(experts._by_blocks, is_tpu=True),
  ):
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
