"""Training learns, distils, and goes on from wherever it was killed."""

import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
import small

from specsamp.checkpoints import model_dir
from specsamp.data.packing import Packed
from specsamp.errors import UserError
from specsamp.training import pretrain

# A config on standard input; for a run that is going to be killed.
_DRIVER = """
import json, sys
from specsamp.training import pretrain
values, workdir = json.load(sys.stdin)
pretrain.pretrain(pretrain.from_dict(values), workdir)
"""


@pytest.fixture(scope='module', autouse=True)
def _promotion():
  """Optax's Adam mixes ints and floats; test_losses.py stays strict."""
  with jax.numpy_dtype_promotion('standard'):
    yield


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


def _interrupted(monkeypatch, config, workdir, step):
  """Runs until the data of `step` is asked for."""
  real = Packed.batch

  def batch(self, index):
    if index == step:
      raise KeyboardInterrupt
    return real(self, index)

  with monkeypatch.context() as patch:
    patch.setattr(Packed, 'batch', batch)
    with pytest.raises(KeyboardInterrupt):
      pretrain.pretrain(config, workdir)


@pytest.mark.integration
def test_resumed_from_the_last_checkpoint(
  config, undisturbed, tmp_path, monkeypatch
):
  """Also past a line cut off while written, and a checkpoint half saved."""
  _interrupted(monkeypatch, config, tmp_path, 33)
  assert small.metrics(tmp_path)[-1]['step'] == 33  # later than the checkpoint
  with (tmp_path / 'metrics.jsonl').open('a') as file:
    file.write('{"kind": "train", "st')
  checkpoints = tmp_path / 'checkpoints'
  done = max(int(p.name) for p in checkpoints.iterdir() if p.name.isdigit())
  assert done == 30
  half = checkpoints / '36.orbax-checkpoint-tmp'
  (half / 'default').mkdir(parents=True)
  (half / 'default' / 'manifest').write_text('half')
  asked = []
  real = Packed.batch
  with monkeypatch.context() as patch:
    patch.setattr(
      Packed, 'batch', lambda self, i: asked.append(i) or real(self, i)
    )
    pretrain.pretrain(config, tmp_path)
  assert asked == list(range(30, 60))
  _assert_same(tmp_path, undisturbed)


@pytest.mark.integration
def test_a_finished_run_is_left_as_it_is(config, undisturbed, monkeypatch):
  """Killed after the last checkpoint, it only lacks the model's folder."""
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


@pytest.mark.integration
def test_killed_at_a_random_moment(config, undisturbed, tmp_path):
  """SIGKILL, no clean-up; then the same command again."""
  values = dataclasses.asdict(config)
  command = [sys.executable, '-c', _DRIVER]
  root = pathlib.Path(__file__).parents[2]
  env = os.environ | {'PYTHONPATH': str(root)}
  workdir = tmp_path / 'run'

  def start():
    process = subprocess.Popen(
      command,
      stdin=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      env=env,
    )
    process.stdin.write(json.dumps([values, str(workdir)]))
    process.stdin.close()
    process.stdin = None
    return process

  process = start()
  checkpoints = workdir / 'checkpoints'
  deadline = time.monotonic() + 120
  while process.poll() is None and time.monotonic() < deadline:
    if any(p.name.isdigit() for p in checkpoints.glob('*')):
      break
    time.sleep(0.002)
  delay = random.uniform(0, 0.2)
  time.sleep(delay)
  process.kill()
  _, errors = process.communicate()
  assert process.returncode == -signal.SIGKILL, (delay, errors[-2000:])
  left = sorted(p.name for p in checkpoints.iterdir())
  process = start()
  _, errors = process.communicate(timeout=120)
  assert process.returncode == 0, (delay, left, errors[-2000:])
  _assert_same(workdir, undisturbed)


@pytest.mark.integration
def test_distillation(config, undisturbed, tmp_path):
  config = dataclasses.replace(
    config,
    teacher=str(undisturbed / 'model'),
    distillation_weight=0.8,
    steps=20,
    model=dataclasses.replace(small.MODEL, width=8, num_heads=1),
  )
  model = pretrain.pretrain(config, tmp_path)
  assert model.config.width == 8
  assert model.tokenizer == model_dir.load(undisturbed / 'model').tokenizer
  first, *_, last = (x for x in small.metrics(tmp_path) if x['kind'] == 'train')
  assert 0 < first['agreement'] < last['agreement'] < 1
  assert 0 < last['kl'] < first['kl']
  validation = small.metrics(tmp_path)[-1]
  assert validation['kind'] == 'validation'
  assert 0 < validation['agreement'] < 1


def test_more_text_than_the_corpus(config, undisturbed, tmp_path, monkeypatch):
  """It is read once an epoch, and nothing of it is held out."""
  (tmp_path / 'more').mkdir()
  (tmp_path / 'more/of.txt').write_text('some more of it, ' * 1000)
  seen = {}

  class Seen(Packed):
    def __init__(self, tokens, *args):
      super().__init__(tokens, *args)
      seen.setdefault('tokens', []).append(tokens)

  monkeypatch.setattr(pretrain.packing, 'Packed', Seen)
  tokenizer = str(undisturbed / 'tokenizer.model')
  changes = dict(tokenizer=tokenizer, steps=1, warmup_steps=0)
  for extra in ({}, dict(repeats=3, extra_corpus=str(tmp_path / 'more'))):
    changed = dataclasses.replace(config, **changes, **extra)
    pretrain.pretrain(changed, tmp_path / f'run{len(extra)}')
  alone, held_out, whole, same = seen['tokens']
  once = (len(whole) - 3 * len(alone)) / len(alone)
  assert once > 0 and (whole[: 3 * len(alone)] == np.tile(alone, 3)).all()
  assert np.array_equal(held_out, same)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(steps=0), 'steps: got 0, expected at least 1'),
    (dict(batch_size=-1), 'batch_size: got -1, expected at least 1'),
    (dict(decay_share=1.5), r'decay_share: got 1\.5, expected at most 1'),
    (dict(repeats=0), 'repeats: got 0, expected at least 1'),
    (dict(eval_every=0), 'eval_every: got 0, expected at least 1'),
    (
      dict(distillation_weight=1.5),
      r'distillation_weight: got 1\.5, expected at most 1',
    ),
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
    (dict(colour='red'), '.*colour.*'),
    (dict(steps='many'), "steps: got 'many', expected an integer"),
    (dict(model={}), 'model config: .* missing .*vocab_size.*'),
    (dict(model=None), '.+'),
    (dict(model=...), "missing key 'model'"),
  ],
)
def test_bad_configs(config, changes, message):
  values = dataclasses.asdict(config) | changes
  values = {k: v for k, v in values.items() if v is not ...}
  with pytest.raises(UserError, match=f'^config: {message}$') as error:
    pretrain.from_dict(values)
  assert '\n' not in str(error.value)


def test_configs_round_trip(config):
  values = json.loads(json.dumps(dataclasses.asdict(config)))
  assert pretrain.from_dict(values) == config


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(corpus='/nowhere'), 'corpus: /nowhere is not a folder'),
    (dict(extra_corpus='/nowhere'), 'corpus: /nowhere is not a folder'),
    (dict(batch_size=640), 'corpus: .* tokens, but a batch takes 640 x 16'),
    (dict(tokenizer='/nowhere.model'), 'tokenizer /nowhere.model: No such'),
    (dict(teacher='/nowhere'), 'model /nowhere: no such folder'),
    (
      dict(model=dataclasses.replace(small.MODEL, vocab_size=5000)),
      'tokenizer: .* too high',
    ),
  ],
)
def test_inputs_that_do_not_fit(config, tmp_path, changes, message):
  with pytest.raises(UserError, match=f'^{message}') as error:
    pretrain.pretrain(dataclasses.replace(config, **changes), tmp_path / 'new')
  assert '\n' not in str(error.value)


@pytest.mark.integration
def test_a_teacher_of_another_vocabulary(config, undisturbed, tmp_path):
  config = dataclasses.replace(
    config,
    teacher=str(undisturbed / 'model'),
    model=dataclasses.replace(small.MODEL, vocab_size=301),
  )
  with pytest.raises(UserError, match='vocab_size is 301, .* has 300 pieces'):
    pretrain.pretrain(config, tmp_path)


@pytest.mark.integration
def test_begins_with_a_model(config, undisturbed, tmp_path):
  """Which a rate of nothing leaves as it is."""
  changed = dataclasses.replace(
    config, init=str(undisturbed / 'model'), steps=1, learning_rate=1e-12
  )
  model = pretrain.pretrain(changed, tmp_path)
  begun = model_dir.load(undisturbed / 'model')
  assert model.tokenizer == begun.tokenizer
  jax.tree.map(
    lambda got, wanted: np.testing.assert_allclose(got, wanted, atol=1e-9),
    model.params,
    begun.params,
  )


@pytest.mark.integration
def test_begins_with_no_model_of_another_shape(config, undisturbed, tmp_path):
  other = dataclasses.replace(small.MODEL, mlp_width=64)
  changed = dataclasses.replace(
    config, init=str(undisturbed / 'model'), model=other
  )
  message = r'init .*/model: mlp_width: got 32, expected 64'
  with pytest.raises(UserError, match=f'^{message}$'):
    pretrain.pretrain(changed, tmp_path)
