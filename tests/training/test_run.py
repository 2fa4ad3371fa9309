"""Runs of any loss, with batches that are trees and frozen arrays."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from testing import small

from specsamp.errors import UserError
from specsamp.sharding import mesh as meshes
from specsamp.training import run, run_config

pytestmark = pytest.mark.usefixtures('standard_promotion')

_CONFIG = run_config.RunConfig(
  batch_size=8,
  length=1,
  steps=120,
  learning_rate=0.1,
  warmup_steps=2,
  weight_decay=0.0,
  eval_every=60,
  checkpoint_every=60,
)


class _Data:
  """Inputs and their weights."""

  def batch(self, step):
    rng = np.random.default_rng(step)
    return {
      'x': rng.standard_normal((8, 4), np.float32),
      'weight': rng.integers(1, 3, 8),
    }

  def in_order(self, num_batches):
    return map(self.batch, range(1000, 1000 + num_batches))


def _loss(params, frozen, batch):
  error = batch['x'] @ (params['head'] - frozen['head']).T
  loss = (batch['weight'][:, None] * error**2).mean()
  return loss, {'loss': loss, 'worst': jnp.abs(error).max()}


def _fit(workdir, mesh=None):
  frozen = {'head': np.arange(16, dtype=np.float32).reshape(4, 4) / 16}
  frozen = (
    meshes.shard(frozen, mesh) if mesh else jax.tree.map(jnp.asarray, frozen)
  )
  params = run.fit(
    _CONFIG,
    workdir,
    mesh,
    init=lambda key: {'head': jax.random.normal(key, (4, 4))},
    loss=_loss,
    data=lambda: (_Data(), _Data(), frozen),
  )
  return params, frozen


@pytest.mark.parametrize('shape', [None, (2, 4)], ids=str)
def test_parameters_approach_the_frozen_ones(tmp_path, shape):
  mesh = meshes.make(*shape) if shape else None
  params, frozen = _fit(tmp_path, mesh)
  np.testing.assert_allclose(params['head'], frozen['head'], atol=0.1)
  first, *_, last = small.metrics(tmp_path)
  assert (last['kind'], last['step']) == ('validation', 120)
  assert last['loss'] < first['loss'] / 10
  assert last['worst'] < first['worst']
  again, _ = _fit(tmp_path, mesh)  # reads the last checkpoint
  np.testing.assert_array_equal(again['head'], params['head'])
  line = f'model: 120 steps, held-out loss {last["loss"]:.3f}'
  assert run.summary(tmp_path, 'model') == line


def test_the_mesh_is_checked_before_data_is_read(tmp_path):
  mesh = meshes.make(3, 1, jax.devices()[:3])
  with pytest.raises(UserError, match='^batch_size 8 .* into 3 shards'):
    run.fit(_CONFIG, tmp_path, mesh, init=None, loss=None, data=None)


def test_the_rate_is_held_and_then_falls():
  config = dataclasses.replace(
    _CONFIG, steps=20, warmup_steps=4, decay_share=0.5, weight_decay=0.0
  )
  tx = run_config.make_optimizer(config)
  update = jax.jit(tx.update)
  params = {'scale': jnp.ones(1)}
  state, moves = tx.init(params), []
  for _ in range(config.steps):
    move, state = update(params, state, params)
    moves.append(-float(move['scale'][0]))
  # With equal gradients every move of AdamW is as long as the rate.
  rates = [0, 0.25, 0.5, 0.75, *[1] * 6, *np.linspace(1, 0.1, 10)]
  expected = config.learning_rate * np.asarray(rates)
  np.testing.assert_allclose(moves, expected, rtol=1e-4)


def test_muon_orthogonalizes_the_matrices_of_layers_only():
  """Its update has equal singular values, keys apart from values."""
  rng = np.random.default_rng(0)
  sizes = {'kv': (2, 2, 3, 8), 'o': (8, 2, 4), 'head': (5, 8), 'scale': (8,)}
  draw = lambda: {
    'block': {
      name: jnp.asarray(rng.standard_normal(shape, np.float32))
      for name, shape in sizes.items()
    }
  }
  params, grads = draw(), draw()
  config = dataclasses.replace(_CONFIG, warmup_steps=0, optimizer='muon')
  moves = {}
  for name in ('muon', 'adamw'):
    tx = run_config.make_optimizer(dataclasses.replace(config, optimizer=name))
    state = tx.init(params)
    moves[name] = jax.jit(tx.update)(grads, state, params)[0]['block']
  muon = moves['muon']
  for matrix in (
    muon['kv'][0].reshape(6, 8),
    muon['kv'][1].reshape(6, 8),
    muon['o'].reshape(8, 8),
  ):
    values = np.linalg.svd(matrix, compute_uv=False)
    # Five Newton-Schulz steps leave them within a third of each other.
    assert values.max() < 2.5 * values.min()
    # The size is AdamW's: the learning rate times 0.2.
    np.testing.assert_allclose(np.sqrt(np.mean(matrix**2)), 0.02, rtol=0.3)
  for name in ('head', 'scale'):  # the first step of NAdam is longer
    ratio = muon[name] / moves['adamw'][name]
    np.testing.assert_allclose(ratio, ratio.mean(), rtol=1e-4)
  values = np.linalg.svd(moves['adamw']['o'].reshape(8, 8), compute_uv=False)
  assert values.max() > 2.5 * values.min()


def test_a_state_that_is_not_finite_is_not_saved(tmp_path, monkeypatch):
  """Loss and gradient of the step that breaks it are finite."""
  make = run_config.make_optimizer

  def breaking(config):
    breaks = optax.stateless_with_tree_map(lambda g, p: g / 0.0)
    return optax.chain(
      make(config),
      optax.conditionally_transform(breaks, lambda step: step == 119),
    )

  monkeypatch.setattr(run, 'make_optimizer', breaking)
  with pytest.raises(FloatingPointError, match='step 120: the update left'):
    _fit(tmp_path)
  assert '120' not in {p.name for p in (tmp_path / 'checkpoints').iterdir()}
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  assert lines and not any('NaN' in line for line in lines)
