"""Training learns, distils, and resumes after an interruption."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest
from testing import small

from specsamp.checkpoints import model_dir
from specsamp.data.packing import Packed
from specsamp.errors import UserError
from specsamp.training import pretrain, run
from specsamp.training.pretrain import PretrainConfig
from specsamp.utils import schema

pytestmark = pytest.mark.usefixtures('standard_promotion')


@pytest.fixture(scope='module')
def config(corpus):
  return small.config(corpus)


@pytest.fixture(scope='module')
def undisturbed(config, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('undisturbed')
  pretrain.pretrain(config, workdir)
  return workdir


def _assert_same(workdir, undisturbed):
  weights = [
    (w / 'model' / model_dir.WEIGHTS).read_bytes()
    for w in (workdir, undisturbed)
  ]
  assert weights[0] == weights[1]
  assert small.metrics(workdir) == small.metrics(undisturbed)


@pytest.mark.integration
def test_loss_falls_and_everything_is_written(config, undisturbed):
  lines = small.metrics(undisturbed)
  steps = {
    kind: [line['step'] for line in lines if line['kind'] == kind]
    for kind in ('train', 'validation')
  }
  assert steps == {
    'train': list(range(3, 61, 3)),
    'validation': list(range(20, 61, 20)),
  }
  losses = [line['loss'] for line in lines if line['kind'] == 'validation']
  assert lines[0]['loss'] > 4  # about the log of 300
  assert losses[-1] < losses[0] < lines[0]['loss'] - 0.5
  model = model_dir.load(undisturbed / 'model')
  assert model.config == config.model
  assert model.tokenizer.vocab_size == 300


@pytest.mark.integration
def test_resumed_from_the_last_checkpoint(
  config, undisturbed, tmp_path, monkeypatch
):
  """Despite a truncated line of metrics and half a checkpoint."""
  real, steps = Packed.batch, []

  def batch(self, index):
    if index == 33 and len(steps) == 33:
      raise KeyboardInterrupt
    steps.append(index)
    return real(self, index)

  monkeypatch.setattr(Packed, 'batch', batch)
  with pytest.raises(KeyboardInterrupt):
    pretrain.pretrain(config, tmp_path)
  assert small.metrics(tmp_path)[-1]['step'] == 33  # after the checkpoint
  with (tmp_path / 'metrics.jsonl').open('a') as file:
    file.write('{"kind": "train", "st')
  half = tmp_path / 'checkpoints' / '36.orbax-checkpoint-tmp'
  (half / 'default').mkdir(parents=True)
  (half / 'default' / 'manifest').write_text('half')
  pretrain.pretrain(config, tmp_path)
  assert steps == [*range(33), *range(30, 60)]
  _assert_same(tmp_path, undisturbed)


@pytest.mark.integration
def test_a_finished_run_only_writes_the_model(config, undisturbed, monkeypatch):
  """It may have been killed after the last checkpoint."""
  before = small.metrics(undisturbed)
  weights = undisturbed / 'model' / model_dir.WEIGHTS
  bits = weights.read_bytes()
  weights.unlink()
  monkeypatch.setattr(Packed, 'batch', None)  # no step is taken
  pretrain.pretrain(config, undisturbed)
  assert weights.read_bytes() == bits
  assert small.metrics(undisturbed) == before


@pytest.mark.integration
def test_a_truncated_checkpoint_is_one_line(config, undisturbed, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(undisturbed, workdir)
  files = [
    path
    for path in (workdir / 'checkpoints').rglob('*')
    if path.is_file() and path.stat().st_size > 1000
  ]
  assert files
  for path in files:
    path.write_bytes(path.read_bytes()[:100])
  before = (workdir / 'metrics.jsonl').read_bytes()
  with pytest.raises(UserError, match='cannot be read') as caught:
    pretrain.pretrain(config, workdir)
  assert '\n' not in str(caught.value)
  assert (workdir / 'metrics.jsonl').read_bytes() == before


def test_the_extra_corpus(config, undisturbed, tmp_path, monkeypatch):
  """An epoch reads it once, and none of it is held out."""
  (tmp_path / 'more.txt').write_text('some more of it, ' * 1000)
  parts = []

  def fit(*_, data, **__):
    train, held_out, _ = data()
    parts.extend([train.tokens, held_out.tokens])
    raise KeyboardInterrupt

  monkeypatch.setattr(run, 'fit', fit)
  tokenizer = str(undisturbed / 'tokenizer.model')
  for extra in ({}, dict(repeats=3, extra_corpus=str(tmp_path))):
    changed = dataclasses.replace(config, tokenizer=tokenizer, **extra)
    with pytest.raises(KeyboardInterrupt):
      pretrain.pretrain(changed, tmp_path / 'run')
  alone, held_out, whole, same = parts
  assert len(whole) > 3 * len(alone)
  np.testing.assert_array_equal(whole[: 3 * len(alone)], np.tile(alone, 3))
  np.testing.assert_array_equal(held_out, same)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(decay_share=1.5), r'decay_share: got 1\.5, expected at most 1'),
    (dict(length=17), r'length 17 exceeds model\.max_length 16'),
    (
      dict(model=dataclasses.asdict(small.MODEL) | {'dtype': 'float16'}),
      r"model\.dtype: got 'float16', expected float32 or bfloat16: .*",
    ),
    (
      dict(features='RUNS/features'),
      'features: got RUNS/features and no continuations, expected .*',
    ),
    (
      dict(continuations='RUNS/written'),
      'continuations: got RUNS/written and no teacher, expected .*',
    ),
    (dict(model={}), "model: missing key 'vocab_size'"),
  ],
)
def test_bad_configs(config, changes, message):
  values = dataclasses.asdict(config) | changes
  with pytest.raises(UserError, match=f'^config: {message}$') as error:
    schema.read(PretrainConfig, values)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(corpus='/nowhere'), 'corpus: /nowhere is not a folder'),
    (dict(extra_corpus='/nowhere'), 'corpus: /nowhere is not a folder'),
    (dict(batch_size=640), 'corpus: .* tokens, but a batch takes 640 x 16'),
    (dict(tokenizer='/nowhere.model'), 'tokenizer /nowhere.model: No such'),
    (
      dict(teacher='MODEL', model=dict(vocab_size=301)),
      'model.vocab_size is 301, .* has 300 pieces',
    ),
    (
      dict(init='MODEL', model=dict(mlp_width=64)),
      'init .*/model: mlp_width: got 32, expected 64',
    ),
  ],
)
def test_inputs_that_do_not_fit(
  config, undisturbed, tmp_path, changes, message
):
  changes = {
    name: str(undisturbed / 'model') if value == 'MODEL' else value
    for name, value in changes.items()
  }
  model = dataclasses.replace(small.MODEL, **changes.pop('model', {}))
  config = dataclasses.replace(config, model=model, **changes)
  with pytest.raises(UserError, match=f'^{message}') as error:
    pretrain.pretrain(config, tmp_path / 'new')
  assert '\n' not in str(error.value)


@pytest.mark.integration
def test_training_starts_from_a_model(config, undisturbed, tmp_path):
  """It is its own teacher, and the learning rate is nearly zero."""
  path = str(undisturbed / 'model')
  changed = dataclasses.replace(
    config, init=path, teacher=path, steps=1, learning_rate=1e-12
  )
  model = pretrain.pretrain(changed, tmp_path)
  start = model_dir.load(path)
  assert model.tokenizer == start.tokenizer
  jax.tree.map(
    lambda got, expected: np.testing.assert_allclose(got, expected, atol=1e-9),
    model.params,
    start.params,
  )
  for line in small.metrics(tmp_path):
    assert line['kl'] == pytest.approx(0, abs=1e-6)
    assert line['agreement'] == pytest.approx(1, abs=1e-5)
    assert line['loss'] > 1
