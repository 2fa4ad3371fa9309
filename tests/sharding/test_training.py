"""Training on any mesh is the same training, and goes on on any other."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from flax import traverse_util

from specsamp.checkpoints import model_dir
from specsamp.data import tokenizers
from specsamp.data.packing import Packed
from specsamp.errors import UserError
from specsamp.models import TransformerConfig
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules
from specsamp.training import pretrain, run
from specsamp.training.pretrain import PretrainConfig

pytestmark = pytest.mark.extended

# Two kv heads are fewer than most meshes' shards; 300 pieces divide into four.
_MODEL = TransformerConfig(
  vocab_size=300,
  width=16,
  num_layers=1,
  num_heads=8,
  num_kv_heads=2,
  head_dim=4,
  mlp_width=32,
  max_length=16,
)


@pytest.fixture(scope='module', autouse=True)
def _promotion():
  """Optax's Adam mixes ints and floats."""
  with jax.numpy_dtype_promotion('standard'):
    yield


@pytest.fixture(scope='module')
def config(corpus):
  return PretrainConfig(
    model=_MODEL,
    corpus=str(corpus),
    pattern='*.txt',
    batch_size=8,
    length=16,
    steps=12,
    learning_rate=1e-2,
    warmup_steps=3,
    log_every=1,
    eval_every=6,
    eval_batches=2,
    checkpoint_every=4,
  )


@pytest.fixture(scope='module')
def undisturbed(config, tmp_path_factory):
  """On one device."""
  workdir = tmp_path_factory.mktemp('undisturbed')
  pretrain.pretrain(config, workdir)
  return workdir


def _metrics(workdir):
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  lines = [json.loads(line) for line in lines]
  return [(line['kind'], line['step'], line['loss']) for line in lines]


def _flat(model):
  return traverse_util.flatten_dict(model.params, sep='.')


def _assert_same_curve(workdir, undisturbed):
  got, expected = _metrics(workdir), _metrics(undisturbed)
  assert [line[:2] for line in got] == [line[:2] for line in expected]
  np.testing.assert_allclose(
    [line[2] for line in got], [line[2] for line in expected], atol=1e-4, rtol=0
  )
  assert got[0][2] > got[-1][2] + 1  # it does learn


def _assert_same_weights(workdir, undisturbed):
  models = [_flat(model_dir.load(w / 'model')) for w in (workdir, undisturbed)]
  for name, value in models[0].items():
    np.testing.assert_allclose(
      value, models[1][name], atol=1e-4, rtol=0, err_msg=name
    )


def _assert_laid(params, mesh):
  """Each parameter as the rules say, no more of it on a device than that."""
  wanted = rules.param_shardings(params, mesh)
  for x, sharding in zip(
    jax.tree.leaves(params), jax.tree.leaves(wanted), strict=True
  ):
    assert x.sharding.is_equivalent_to(sharding, x.ndim)
  q = params['layers_0']['attention']['q']
  shards = mesh.shape[rules.MODEL]
  assert q.addressable_shards[0].data.shape == (8 // shards, 4, 16)


def _interrupted(monkeypatch, config, workdir, mesh, step):
  """Runs until the data of `step` is asked for."""
  real = Packed.batch

  def batch(self, index):
    if index == step:
      raise KeyboardInterrupt
    return real(self, index)

  with monkeypatch.context() as patch:
    patch.setattr(Packed, 'batch', batch)
    with pytest.raises(KeyboardInterrupt):
      pretrain.pretrain(config, workdir, mesh)


@pytest.mark.parametrize(
  'shape',
  [
    # The run below is laid on some of each.
    pytest.param((1, 8), marks=pytest.mark.slow),
    (2, 4),
    pytest.param((8, 1), marks=pytest.mark.slow),
  ],
  ids=str,
)
def test_the_losses_are_the_unsharded_ones(
  config, undisturbed, tmp_path, shape
):
  mesh = meshes.make(*shape)
  model = pretrain.pretrain(config, tmp_path, mesh)
  _assert_same_curve(tmp_path, undisturbed)
  _assert_same_weights(tmp_path, undisturbed)
  _assert_laid(model.params, mesh)


def test_a_run_goes_on_on_other_meshes(
  config, undisturbed, tmp_path, monkeypatch
):
  """8 devices, then 4 of another shape, then one."""
  restored = []
  restore = run.restore

  def spy(*args):
    state = restore(*args)
    restored.append((int(state.step), state))
    return state

  monkeypatch.setattr(run, 'restore', spy)
  _interrupted(monkeypatch, config, tmp_path, meshes.make(1, 8), 5)
  four = meshes.make(2, 2, jax.devices()[:4])
  # Looked at before a step takes the state's buffers.
  _interrupted(monkeypatch, config, tmp_path, four, 4)
  (step, state), *_ = restored
  assert step == 4
  _assert_laid(state.params, four)
  moments = state.optimizer[1][0].mu
  _assert_laid(moments, four)
  _interrupted(monkeypatch, config, tmp_path, four, 9)
  pretrain.pretrain(config, tmp_path)
  assert [step for step, _ in restored] == [4, 4, 8]
  assert len(restored[-1][1].step.sharding.device_set) == 1
  _assert_same_curve(tmp_path, undisturbed)
  _assert_same_weights(tmp_path, undisturbed)


def test_distillation_on_a_mesh(config, undisturbed, tmp_path, monkeypatch):
  teachers = []
  real = model_dir.load

  def load(*args):
    teachers.append(real(*args))
    return teachers[-1]

  monkeypatch.setattr(model_dir, 'load', load)
  config = dataclasses.replace(
    config,
    teacher=str(undisturbed / 'model'),
    steps=4,
    eval_every=4,
    model=dataclasses.replace(_MODEL, width=8),
  )
  curves = []
  for mesh in (None, meshes.make(2, 4)):
    workdir = tmp_path / str(mesh is None)
    pretrain.pretrain(config, workdir, mesh)
    assert teachers[-1].mesh == mesh
    lines = (workdir / 'metrics.jsonl').read_text().splitlines()
    lines = [json.loads(line) for line in lines]
    curves.append([[x['loss'], x['kl'], x['agreement']] for x in lines])
  np.testing.assert_allclose(*curves, atol=1e-4, rtol=0)
  assert len(curves[0]) == 5


@pytest.mark.parametrize(
  ('changes', 'shape', 'message'),
  [
    (
      dict(batch_size=6),
      (8, 1),
      'batch_size 6 does not divide into 8 shards, the size of the mesh axis '
      "'data'",
    ),
    (
      dict(model=dataclasses.replace(_MODEL, num_heads=6)),
      (2, 4),
      "heads: 6 do not divide into 4 shards, the size of the mesh axis 'model'",
    ),
  ],
)
def test_what_does_not_divide_is_one_line(
  config, undisturbed, tmp_path, changes, shape, message
):
  tokenizer = str(undisturbed / tokenizers.FILE)
  config = dataclasses.replace(config, tokenizer=tokenizer, **changes)
  with pytest.raises(UserError) as error:
    pretrain.pretrain(config, tmp_path, meshes.make(*shape))
  assert str(error.value) == message
  assert not (tmp_path / 'metrics.jsonl').exists()
