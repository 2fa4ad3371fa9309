"""Drafters learn from a fixed target, and their runs resume."""

import dataclasses
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from testing import small, tiny

from specsamp.checkpoints import drafter_dir, model_dir
from specsamp.data.packing import Rows
from specsamp.decoding import trial
from specsamp.drafting.trained import make
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer
from specsamp.sharding import mesh as meshes
from specsamp.training import distill
from specsamp.training.distill_config import DistillConfig
from specsamp.training.feature_cache import FeatureCache, Sequences

pytestmark = pytest.mark.usefixtures('standard_promotion')


def _save_target(folder, tokenizer, num_layers):
  """Saves a target with heads for four shards."""
  model = tiny.model(512, 0, num_layers=num_layers, num_heads=4, num_kv_heads=2)
  model = LanguageModel(model.transformer, model.params, tokenizer)
  model_dir.save(model, folder)
  return folder


@pytest.fixture(scope='module')
def target(tmp_path_factory, tokenizer):
  """Returns the folder of a target."""
  return _save_target(tmp_path_factory.mktemp('target'), tokenizer, 1)


@pytest.fixture(scope='module')
def config(corpus, target):
  return DistillConfig(
    kind='eagle_parallel',
    target=str(target),
    ahead=3,
    corpus=str(corpus),
    pattern='*.txt',
    groups=4,
    loss='lk_lambda',
    position_weights='expected_length',
    cross_entropy_weight=1.0,
    batch_size=8,
    length=16,
    steps=30,
    learning_rate=3e-2,
    warmup_steps=3,
    weight_decay=0.0,
    log_every=1,
    eval_every=15,
    eval_batches=2,
    checkpoint_every=6,
  )


@pytest.fixture(scope='module')
def job(config, tmp_path_factory, tokenizer):
  """Returns a config with continuations, features and a small vocabulary."""
  folder = tmp_path_factory.mktemp('job')
  return dataclasses.replace(
    config,
    kind='eagle3',
    target=str(_save_target(folder / 'target', tokenizer, 6)),
    draft_vocab=300,
    learning_rate=1e-2,
    num_continuations=32,
    prompt_length=8,
    continuation_batch=8,
    continuations=str(folder / 'continuations'),
    features=str(folder / 'features'),
  )


@pytest.fixture(scope='module')
def undisturbed(job, tmp_path_factory):
  """Returns the workdir, the drafter and the target of a run."""
  workdir = tmp_path_factory.mktemp('undisturbed')
  loaded = []
  with pytest.MonkeyPatch.context() as patch:
    real = model_dir.load
    load = lambda *args: loaded.append(real(*args)) or loaded[-1]
    patch.setattr(model_dir, 'load', load)
    return workdir, distill.distill(job, workdir), loaded[0]


@pytest.mark.integration
def test_only_the_drafter_is_trained_and_saved(job, undisturbed):
  """The losses of the other kinds are proved in test_objectives.py."""
  workdir, drafter, target = undisturbed
  lines = small.metrics(workdir)
  steps = {
    name: [line['step'] for line in lines if line['kind'] == name]
    for name in ('train', 'validation')
  }
  assert steps == {'train': list(range(1, 31)), 'validation': [15, 30]}
  train = [line for line in lines if line['kind'] == 'train']
  for depth in range(1, job.ahead + 1):
    losses = [line[f'loss_{depth}'] for line in train]
    assert np.mean(losses[-5:]) < 0.95 * np.mean(losses[:5]), depth
  read = drafter_dir.load(workdir / 'drafter')
  assert (read.module, read.target) == (drafter.module, drafter.target)
  tried = trial.run(read, target)
  assert read.acceptance == drafter.acceptance == tried.acceptance
  for got, wanted in (
    (read.params, drafter.params),
    (target.params, model_dir.load(job.target).params),
  ):
    jax.tree.map(np.testing.assert_array_equal, got, wanted)


@pytest.mark.integration
def test_eagle3_drafts_the_tokens_of_the_continuations(job, undisturbed):
  workdir, drafter, target = undisturbed
  rows = np.asarray(drafter.params['draft_rows'])
  shards = pathlib.Path(job.continuations).glob('t0/train/*.npy')
  written = np.concatenate([np.load(shard) for shard in shards])
  assert written.shape == (32, job.length + 1)
  counts = np.bincount(written[:, job.prompt_length :].ravel(), minlength=512)
  assert counts[rows < 300].min() >= counts[rows == 300].max()
  config = dataclasses.replace(job, init=str(workdir / 'drafter'))
  init = jax.jit(distill._init(config, drafter.module, target))
  params = init(jax.random.key(0))
  params |= distill._chosen(config, drafter.module, None, None, None)
  jax.tree.map(np.testing.assert_array_equal, params, drafter.params)


@pytest.mark.integration
def test_an_interrupted_run_resumes(job, undisturbed, tmp_path, monkeypatch):
  """Noise and groups of every step are drawn from its number."""
  workdir, _, _ = undisturbed
  resumed = tmp_path / 'run'
  shutil.copytree(workdir, resumed)
  shutil.rmtree(resumed / 'drafter')
  shutil.rmtree(resumed / 'checkpoints' / '30')  # leaves that of step 24
  real, steps = Rows.batch, []
  monkeypatch.setattr(
    Rows, 'batch', lambda self, step: steps.append(step) or real(self, step)
  )
  distill.distill(job, resumed)
  assert steps == list(range(24, 30))
  assert small.metrics(resumed) == small.metrics(workdir)
  files = [w / 'drafter' / model_dir.WEIGHTS for w in (resumed, workdir)]
  assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.extended
def test_losses_on_a_mesh_are_those_of_one_device(
  job, undisturbed, tmp_path, monkeypatch
):
  real = Rows.batch

  def batch(self, step):
    if step == 8:  # enough
      raise KeyboardInterrupt
    return real(self, step)

  monkeypatch.setattr(Rows, 'batch', batch)
  with pytest.raises(KeyboardInterrupt):
    distill.distill(job, tmp_path, meshes.make(2, 4))
  lines = small.metrics(tmp_path)
  assert len(lines) == 8
  for got, line in zip(lines, small.metrics(undisturbed[0])[:8], strict=True):
    expected = {k: v for k, v in line.items() if k.startswith(('loss', 'step'))}
    assert {k: got[k] for k in expected} == pytest.approx(expected, abs=1e-4)


def test_positions_that_are_trained(config):
  """They are all positions of a text, and none in a prompt."""
  starts = lambda counts=None, **changes: distill._starts(
    dataclasses.replace(config, **changes), 16, jax.random.key(0), counts
  ).tolist()
  assert len(set(starts())) == 4
  assert starts(groups=0) == list(range(16))
  continued = dict(num_continuations=64, prompt_length=11)
  assert starts(groups=0, **continued) == list(range(10, 16))
  few = starts(groups=5, **continued)
  assert len(few) == 5 and set(few) < set(range(10, 16))
  # Shuffled, so that the last masks are not those of the text's beginning.
  shuffled = starts(groups=0, retention=0.5)
  assert sorted(shuffled) == list(range(16)) != shuffled
  # Those before a token of an answer come first.
  counts = np.isin(np.arange(16), [2, 3, 9])
  assert set(starts(counts)) > {2, 3, 9}
  assert starts(counts, groups=3) != starts(counts[::-1], groups=3)


def test_kept_features_give_the_same_losses(config, tmp_path):
  target = model_dir.load(config.target)
  rows = np.random.default_rng(0).integers(512, size=(12, 17), dtype=np.int32)
  cache = FeatureCache(tmp_path, target, rows)
  config = dataclasses.replace(config, kind='hydra')
  module = make('hydra', target.config, config.ahead)
  params = tiny.trained(target, 'hydra', config.ahead).params
  loss = jax.jit(distill.make_loss(config, module, target))
  losses = []
  for features in (cache, None):
    batch = Sequences(Rows(rows, 4), features, noise=config.noise).batch(5)
    assert ('features' in batch) == (features is not None)
    metrics = loss(params, (target.params, {}), batch)[1]
    losses.append({name: float(value) for name, value in metrics.items()})
  # A feature has 10 bits.
  assert losses[0] == pytest.approx(losses[1], rel=2.0**-9)
  # Another step has other noise and other groups.
  batches = Sequences(Rows(rows, 12), None, noise=config.noise)
  assert batches.batch(0)['seed'].tolist() == list(range(12))
  assert batches.batch(3)['seed'].tolist() == list(range(36, 48))
  (in_order,) = batches.in_order(5)
  assert not in_order['noise'].any() and batches.batch(0)['noise'].all()


def test_only_tokens_of_answers_count(config, tmp_path):
  """Tokens 1 and 3 are of users, 2 of answers; 0 ends an answer."""

  class Tokenizer:
    eos_id, stop_ids = 0, (0,)
    chat = staticmethod(lambda messages: messages[0]['content'])
    encode = staticmethod(lambda text, bos: [int(c) for c in text])

  turns = lambda i: [
    {'role': 'user', 'content': f'{i % 64:b}'.replace('0', '3')},
    {'role': 'assistant', 'content': '2' * (3 + i % 5)},
  ]
  file = tmp_path / 'conversations.jsonl'
  lines = [json.dumps({'messages': turns(i)}) for i in range(400)]
  file.write_text('\n'.join(lines))
  config = dataclasses.replace(
    config, corpus='', conversations=str(file), batch_size=4, kind='medusa'
  )
  target = model_dir.load(config.target)
  model = dataclasses.replace(target, tokenizer=Tokenizer())
  module = make('medusa', target.config, config.ahead)
  data = distill._data(config, module, model, tmp_path)
  rows, batch = data[0].rows.tokens, data[0].batch(0)
  np.testing.assert_array_equal(
    batch['counts'], batch['tokens'][:, 1:] % 2 == 0
  )
  assert set(distill._labels(config, data[0])) == {0, 2}
  assert f'{len(rows):,} sequences of 16 tokens, ' in distill._outline(
    config, data[0]
  )
  # Another label that does not count changes no loss.
  loss = jax.jit(distill.make_loss(config, module, target))
  params = tiny.trained(target, 'medusa', config.ahead).params
  # Only as the label of the last position is a token not read too.
  batch['counts'][:, -1] = False
  losses = []
  for label in (5, 6):
    batch['tokens'][:, -1] = label
    losses.append(float(loss(params, (target.params, {}), batch)[0]))
  assert losses[0] == losses[1]
  batch['counts'][:, -1] = True
  assert float(loss(params, (target.params, {}), batch)[0]) != losses[1]


def test_a_finished_drafter_has_its_factors(config, tmp_path, monkeypatch):
  config = dataclasses.replace(config, kind='eagle', learning_rate=0.0)
  monkeypatch.setattr(distill, '_factors', lambda *_: {'fuse': 3.0})
  trained = distill.distill(config, tmp_path)
  width = trained.module.config.width
  np.testing.assert_allclose(
    trained.params['fuse'][:, :width], 3 * np.eye(width), rtol=1e-5
  )


def test_features_need_one_process(config, tmp_path, monkeypatch):
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  config = dataclasses.replace(config, features=str(tmp_path / 'features'))
  with pytest.raises(UserError, match='2 processes, expected one'):
    distill.distill(config, tmp_path)


def test_continuations_at_several_temperatures(config, tmp_path):
  """They are interleaved, and a later run with fewer reads the same files."""
  config = dataclasses.replace(
    config,
    num_continuations=32,
    prompt_length=8,
    continuation_batch=8,
    temperatures=(0, 1),
  )
  target = model_dir.load(config.target)
  module = make(config.kind, target.config, config.ahead)
  data = distill._data(config, module, target, tmp_path)
  train, held_out = (batches.rows.tokens for batches in data)
  assert (len(train), len(held_out)) == (32, 16)
  for name, rows in (('train', train), ('held_out', held_out)):
    for i in range(2):
      path = tmp_path / f't{i}' / name / 'tokens-00000.npy'
      np.testing.assert_array_equal(rows[i:16:2], np.load(path))
    greedy, drawn = rows[::2], rows[1::2]
    np.testing.assert_array_equal(greedy[:, :8], drawn[:, :8])
    assert (greedy != drawn).any(axis=1).all()
  times = lambda: {p: p.stat().st_mtime_ns for p in tmp_path.rglob('*.npy')}
  before = times()
  config = dataclasses.replace(config, num_continuations=8, temperatures=(1.0,))
  few, _ = distill._data(config, module, target, tmp_path)
  np.testing.assert_array_equal(few.rows.tokens, train[1:16:2])
  assert times() == before


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(corpus='/nowhere'), 'corpus: /nowhere is not a folder'),
    (dict(target='/nowhere'), 'model /nowhere: no such folder'),
    (dict(length=65), 'length: got 65, expected at most 64'),
    (
      dict(length=64, prompt_length=8, num_continuations=32),
      'length: got 64, expected at most 63',
    ),
    (
      dict(kind='medusa_parallel', ahead=1),
      'ahead: got 1, expected at least 2',
    ),
    (dict(batch_size=6400), 'data: .* sequences, but a batch takes 6400'),
  ],
)
def test_inputs_that_do_not_fit(config, tmp_path, changes, message):
  with pytest.raises(UserError, match=f'^{message}') as error:
    distill.distill(dataclasses.replace(config, **changes), tmp_path / 'new')
  assert '\n' not in str(error.value)


def test_a_target_in_float16_is_trained_on_in_float32(config, tmp_path):
  target = model_dir.load(config.target)
  transformer = Transformer(dataclasses.replace(target.config, dtype='float16'))
  target = dataclasses.replace(target, transformer=transformer)
  model_dir.save(target, tmp_path / 'target')
  config = dataclasses.replace(config, target=str(tmp_path / 'target'))
  assert distill._target(config, None).config.dtype == 'float32'
