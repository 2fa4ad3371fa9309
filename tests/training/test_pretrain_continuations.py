"""A draft model learns from the continuations of its target."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from testing import small, tiny

from specsamp.checkpoints import model_dir
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.training import continuations, pretrain

pytestmark = [
  pytest.mark.integration,
  pytest.mark.usefixtures('standard_promotion'),
]


@pytest.fixture(scope='module')
def teacher(tokenizer):
  model = tiny.model(512, 0, max_length=16, num_layers=1)
  return LanguageModel(model.transformer, model.params, tokenizer)


@pytest.fixture(scope='module')
def config(teacher, tmp_path_factory):
  """Returns the config of a draft model; there is no corpus to read."""
  path = tmp_path_factory.mktemp('teacher') / 'model'
  model_dir.save(teacher, path)
  model = dataclasses.replace(small.MODEL, vocab_size=512)
  return dataclasses.replace(
    small.config('/nowhere'), model=model, teacher=str(path), length=15
  )


@pytest.fixture(scope='module')
def folder(teacher, tmp_path_factory):
  """Returns a folder with 16-token continuations, laid out by distillation."""
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


def test_training_on_continuations(config, teacher, folder, tmp_path):
  """Both temperatures are used, and features replace the teacher's pass."""
  changed = dataclasses.replace(
    config,
    continuations=str(folder),
    features=str(tmp_path / 'features'),
    distillation_weight=1.0,
    steps=24,
    eval_every=8,
  )
  pretrain.pretrain(changed, tmp_path / 'run')
  kl = [line['kl'] for line in small.metrics(tmp_path / 'run')]
  assert kl[-1] < kl[0]
  train, held_out = pretrain._sequences(changed, teacher)
  assert train.features._done.all()
  epoch = np.concatenate([train.batch(step)['tokens'] for step in range(8)])
  as_set = lambda rows: sorted(map(tuple, rows.tolist()))
  assert as_set(epoch) == as_set(train.rows.tokens)
  assert not np.array_equal(epoch, train.rows.tokens)  # shuffled
  for i in range(2):
    paths = sorted((folder / f't{i}' / 'train').glob('*.npy'))
    written = np.concatenate([np.load(path) for path in paths])
    np.testing.assert_array_equal(train.rows.tokens[i::2], written)
  assert len([*held_out.in_order(9)]) == 4  # of 4 rows each
  loss = jax.jit(pretrain.make_loss(teacher.transformer, teacher, 1.0))
  batch = train.batch(0)
  params = jax.tree.map(lambda x: x * 0.5, teacher.params)
  cached, computed = (
    loss(params, teacher.params, inputs)[1]
    for inputs in (batch, {'tokens': batch['tokens']})
  )
  np.testing.assert_allclose(cached['kl'], computed['kl'], rtol=1e-2, atol=1e-4)
  assert computed['kl'] > 0.01 and 0 < computed['agreement'] < 1


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
def test_continuations_of_something_else(folder, change, message):
  settings = folder / 't0' / 'train' / 'continuations.json'
  written_by = json.loads(settings.read_text())['target']

  class Target:
    fingerprint = change.get('fingerprint', written_by)

  where, length = change.get('folder', folder), change.get('length', 16)
  with pytest.raises(UserError, match=f'^continuations {message}$'):
    continuations.read(where, 'train', Target, length)
