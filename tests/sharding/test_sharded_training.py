"""Training on a mesh is training on one device, and resumes on any mesh."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from testing import small

from specsamp.checkpoints import model_dir
from specsamp.data.packing import Packed
from specsamp.sharding import mesh as meshes
from specsamp.training import pretrain, run

pytestmark = pytest.mark.extended

# Two kv heads are fewer than most meshes' shards; 300 pieces divide into four.
_MODEL = dataclasses.replace(
  small.MODEL, num_heads=8, num_kv_heads=2, head_dim=4
)


@pytest.fixture(scope='module', autouse=True)
def _promotion():
  """Optax's Adam mixes ints and floats."""
  with jax.numpy_dtype_promotion('standard'):
    yield


@pytest.fixture(scope='module')
def config(corpus):
  return dataclasses.replace(
    small.config(corpus),
    model=_MODEL,
    batch_size=8,
    steps=12,
    warmup_steps=3,
    log_every=1,
    eval_every=6,
    checkpoint_every=4,
  )


@pytest.fixture(scope='module')
def one_device(config, tmp_path_factory):
  """Trains on one device without an interruption; returns the folder."""
  workdir = tmp_path_factory.mktemp('one_device')
  pretrain.pretrain(config, workdir)
  return workdir


def _metrics(workdir, *names):
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [[json.loads(line)[name] for name in names] for line in lines]


def _assert_same(*workdirs):
  """Compares losses and final weights."""
  steps = [_metrics(path, 'kind', 'step') for path in workdirs]
  assert steps[0] == steps[1]
  losses = [_metrics(path, 'loss') for path in workdirs]
  np.testing.assert_allclose(*losses, atol=1e-4, rtol=0)
  assert losses[0][0][0] > losses[0][-1][0] + 1  # it does learn
  params = [model_dir.load(path / 'model').params for path in workdirs]
  close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=0)
  jax.tree.map(close, *params)


def _interrupted(monkeypatch, config, workdir, mesh, step):
  """Trains until it requests the data of `step`."""
  real = Packed.batch

  def batch(self, index):
    if index == step:
      raise KeyboardInterrupt
    return real(self, index)

  with monkeypatch.context() as patch:
    patch.setattr(Packed, 'batch', batch)
    with pytest.raises(KeyboardInterrupt):
      pretrain.pretrain(config, workdir, mesh)


def test_a_run_resumes_on_other_meshes(
  config, one_device, tmp_path, monkeypatch
):
  """It runs on 8 devices, on 4 in another shape, then on one.

  The losses and weights are those of one device without an interruption.
  """
  restored = []
  restore = run.restore

  def spy(*args):
    state = restore(*args)
    restored.append((int(state.step), state))
    return state

  monkeypatch.setattr(run, 'restore', spy)
  _interrupted(monkeypatch, config, tmp_path, meshes.make(1, 8), 5)
  four = meshes.make(2, 2, jax.devices()[:4])
  # Interrupted before a step donates the state's buffers.
  _interrupted(monkeypatch, config, tmp_path, four, 4)
  (step, state), *_ = restored
  assert step == 4
  for params in (state.params, state.optimizer[1][0].mu):
    q = params['layers_0']['attention']['q']
    assert q.addressable_shards[0].data.shape == (4, 4, 16)  # half of the heads
  _interrupted(monkeypatch, config, tmp_path, four, 9)
  pretrain.pretrain(config, tmp_path)
  assert [step for step, _ in restored] == [4, 4, 8]
  assert len(restored[-1][1].step.sharding.device_set) == 1
  _assert_same(tmp_path, one_device)


def test_distillation_on_a_mesh(config, one_device, tmp_path):
  config = dataclasses.replace(
    config,
    teacher=str(one_device / 'model'),
    steps=4,
    eval_every=4,
    model=dataclasses.replace(_MODEL, width=8),
  )
  curves = []
  for mesh in (None, meshes.make(2, 4)):
    workdir = tmp_path / str(mesh is None)
    pretrain.pretrain(config, workdir, mesh)
    curves.append(_metrics(workdir, 'loss', 'kl', 'agreement'))
  np.testing.assert_allclose(*curves, atol=1e-4, rtol=0)
  assert len(curves[0]) == 5
