"""A draft model learns from what its target writes."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
import small

from specsamp.checkpoints import model_dir
from specsamp.errors import UserError
from specsamp.sharding import mesh as meshes
from specsamp.training import continuations, pretrain


@pytest.fixture(scope='module', autouse=True)
def _promotion():
  """Optax's Adam mixes ints and floats; test_losses.py stays strict."""
  with jax.numpy_dtype_promotion('standard'):
    yield


@pytest.fixture(scope='module')
def config(corpus, tmp_path_factory):
  """Of a draft model whose teacher has been trained a little."""
  own = small.config(corpus)
  workdir = tmp_path_factory.mktemp('teacher')
  pretrain.pretrain(own, workdir)
  return dataclasses.replace(own, teacher=str(workdir / 'model'), length=15)


@pytest.fixture(scope='module')
def teacher(config):
  return model_dir.load(config.teacher)


@pytest.fixture(scope='module')
def folder(teacher, tmp_path_factory):
  """Sequences of 16 tokens that the teacher wrote, as distillation has it."""
  folder = tmp_path_factory.mktemp('written')
  tokens = np.arange(400, dtype=np.int32) % 300
  for temperature in (0.0, 1.0):
    for seed, (name, count) in enumerate((('train', 16), ('held_out', 8))):
      continuations.continuations(
        teacher,
        tokens,
        folder / f't{temperature:g}' / name,
        count=count,
        prompt_length=6,
        length=16,
        temperature=temperature,
        batch_size=8,
        seed=seed,
      )
  return folder


@pytest.mark.integration
def test_on_what_the_teacher_wrote(config, teacher, folder, tmp_path):
  """Sequences of both temperatures, as they are; the corpus is not read."""
  changed = dataclasses.replace(
    config,
    corpus='/nowhere',
    continuations=str(folder),
    distillation_weight=1.0,
    steps=24,
    eval_every=8,
  )
  pretrain.pretrain(changed, tmp_path)
  kl = [line['kl'] for line in small.metrics(tmp_path) if 'kl' in line]
  assert kl[-1] < kl[0]
  train, held_out = pretrain._sequences(changed, teacher)
  epoch = np.concatenate([train.batch(step)['tokens'] for step in range(8)])
  wrote = [
    np.load(path)
    for each in ('t0', 't1')
    for path in sorted((folder / each / 'train').glob('*.npy'))
  ]
  as_set = lambda rows: sorted(map(tuple, rows.tolist()))
  assert as_set(epoch) == as_set(np.concatenate(wrote))
  assert not np.array_equal(epoch, train.rows.tokens)  # shuffled
  greedy, drawn = np.concatenate(wrote).reshape(2, -1, 16)
  np.testing.assert_array_equal(train.rows.tokens[::2], greedy)
  np.testing.assert_array_equal(train.rows.tokens[1::2], drawn)
  assert len([*held_out.in_order(9)]) == 4  # of 4 rows each


@pytest.mark.integration
def test_features_stand_for_the_teachers_pass(
  config, teacher, folder, tmp_path
):
  """And are those that its drafters learn from."""
  changed = dataclasses.replace(
    config,
    continuations=str(folder),
    features=str(tmp_path / 'features'),
    steps=3,
  )
  pretrain.pretrain(changed, tmp_path / 'run', meshes.make(data=4, model=2))
  train, _ = pretrain._sequences(changed, teacher)
  assert train.features._done.sum() == 3 * config.batch_size
  loss = pretrain.make_loss(teacher.transformer, teacher, 1.0)
  batch = train.batch(0)
  for weights in (
    teacher.params,
    jax.tree.map(lambda x: x * 0.5, teacher.params),
  ):
    read, passed = (
      loss(weights, teacher.params, given)[1]['kl']
      for given in (batch, {'tokens': batch['tokens']})
    )
    np.testing.assert_allclose(read, passed, rtol=1e-2, atol=1e-4)
  assert passed > 0.01


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (
      dict(folder='/nowhere'),
      r'.*got no t\*/train/tokens-00000.npy, expected .*',
    ),
    (dict(length=12), r'\S*/t0/train: length: got 16, expected 12'),
    (
      dict(fingerprint='other'),
      r'\S*/t0/train: target: got .*, expected other',
    ),
  ],
)
@pytest.mark.integration
def test_what_was_written_for_another(folder, change, message):
  class Target:
    fingerprint = change.get('fingerprint', _written_for(folder))

  where, length = change.get('folder', folder), change.get('length', 16)
  with pytest.raises(UserError, match=f'^continuations {message}$'):
    continuations.written(where, 'train', Target, length)


@pytest.mark.parametrize('name', ['continuations.json', 'tokens-00001.npy'])
@pytest.mark.integration
def test_what_was_written_is_broken(folder, tmp_path, name):
  broken = shutil.copytree(folder, tmp_path / 'broken')
  (broken / 't1' / 'train' / name).write_bytes(b'{')

  class Target:
    fingerprint = _written_for(folder)

  with pytest.raises(UserError, match=r'^continuations .*broken: .+') as error:
    continuations.written(broken, 'train', Target, 16)
  assert '\n' not in str(error.value)


def _written_for(folder):
  path = folder / 't0' / 'train' / 'continuations.json'
  return json.loads(path.read_text())['target']
