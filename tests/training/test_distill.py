"""Drafters learn from a target that stays as it is, and go on where cut off."""

import dataclasses
import functools
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy
from flax import traverse_util
from testing import tiny

import specsamp
from specsamp import file_order
from specsamp.checkpoints import drafter_dir, model_dir
from specsamp.data.packing import Rows
from specsamp.drafting.trained import kind_of, make, trained_drafter
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, param_shapes
from specsamp.sharding import devices
from specsamp.sharding import mesh as meshes
from specsamp.training import distill
from specsamp.training.distill_config import DistillConfig
from specsamp.training.feature_cache import FeatureCache


@pytest.fixture(scope='module', autouse=True)
def _promotion():
  """Optax's Adam mixes ints and floats; test_groups.py stays strict."""
  with jax.numpy_dtype_promotion('standard'):
    yield


def _save_target(folder, tokenizer, num_layers):
  """With heads for four shards."""
  made = tiny.model(512, 0, num_layers=num_layers, num_heads=4, num_kv_heads=2)
  model_dir.save(
    LanguageModel(made.transformer, made.params, tokenizer), folder
  )
  return folder


@pytest.fixture(scope='module')
def target(tmp_path_factory, tokenizer):
  """The folder of a target."""
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
def on_its_own_text(config, tmp_path_factory):
  """The config of training on what the target wrote, its features kept."""
  folder = tmp_path_factory.mktemp('shared')
  return dataclasses.replace(
    config,
    num_continuations=32,
    prompt_length=8,
    continuation_batch=8,
    continuations=str(folder / 'continuations'),
    features=str(folder / 'features'),
  )


@pytest.fixture(scope='module')
def for_eagle3(on_its_own_text, tmp_path_factory, tokenizer):
  """The config of a target whose layers it can tap, with few of its tokens."""
  folder = tmp_path_factory.mktemp('deep')
  return dataclasses.replace(
    on_its_own_text,
    kind='eagle3',
    target=str(_save_target(folder / 'target', tokenizer, 6)),
    draft_vocab=300,
    noise=0.0,
    learning_rate=1e-2,
    continuations=str(folder / 'continuations'),
    features=str(folder / 'features'),
  )


@pytest.fixture(scope='module')
def undisturbed(config, on_its_own_text, for_eagle3, tmp_path_factory):
  """(kind) -> config, workdir, what was trained, the target it was trained on.

  On one device. The hardest kind to repeat computes features in every step;
  the others share what the target wrote.
  """

  @functools.cache
  def run(kind):
    bases = {'eagle_parallel': config, 'eagle3': for_eagle3}
    base = bases.get(kind, on_its_own_text)
    job = dataclasses.replace(base, kind=kind)
    workdir = tmp_path_factory.mktemp(kind)
    loaded = []
    with pytest.MonkeyPatch.context() as patch:
      real = model_dir.load
      load = lambda *args: loaded.append(real(*args)) or loaded[-1]
      patch.setattr(model_dir, 'load', load)
      trained = distill.distill(job, workdir)
    return job, workdir, trained, loaded[0]

  return run


def _metrics(workdir):
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  lines = [json.loads(line) for line in lines]
  for line in lines:
    del line['seconds'], line['tokens_per_second']
  return lines


_trained = pytest.mark.parametrize(
  'kind',
  [
    'hydra',
    'eagle_parallel',
    'eagle3',
    # The same code as one of those above.
    pytest.param('eagle', marks=pytest.mark.slow),
    pytest.param('medusa', marks=pytest.mark.slow),
    pytest.param('medusa_parallel', marks=pytest.mark.slow),
    pytest.param('dflash', marks=pytest.mark.slow),
  ],
)


@pytest.mark.integration
@_trained
def test_losses_fall(undisturbed, kind):
  job, workdir, trained, _ = undisturbed(kind)
  lines = _metrics(workdir)
  steps = {
    name: [line['step'] for line in lines if line['kind'] == name]
    for name in ('train', 'validation')
  }
  assert steps == {'train': list(range(1, 31)), 'validation': [15, 30]}
  train = [line for line in lines if line['kind'] == 'train']
  depths = 1 if kind == 'eagle' else job.ahead
  for depth in range(1, depths + 1):
    losses = [line[f'loss_{depth}'] for line in train]
    assert np.mean(losses[-5:]) < 0.95 * np.mean(losses[:5]), depth
  read = drafter_dir.load(workdir / 'drafter')
  assert kind_of(read.module).name == kind
  goes_on = kind in ('eagle', 'eagle3')  # from what it drafted
  assert read.module.ahead == (None if goes_on else depths)
  assert (read.module, read.target) == (trained.module, trained.target)
  jax.tree.map(np.testing.assert_array_equal, read.params, trained.params)


@pytest.mark.integration
@_trained
def test_nothing_of_the_target_is_trained_or_saved(undisturbed, kind):
  job, workdir, trained, target = undisturbed(kind)
  assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(target.params))
  jax.tree.map(
    np.testing.assert_array_equal,
    target.params,
    model_dir.load(job.target).params,
  )
  wanted = distill.module_for(job, target.config)
  shapes = param_shapes(wanted)
  own = traverse_util.flatten_dict(trained.params, sep='.')
  saved = safetensors.numpy.load_file(workdir / 'drafter' / model_dir.WEIGHTS)
  for found, tree in ((own, shapes), (saved, file_order.shapes(shapes))):
    assert {k: v.shape for k, v in found.items()} == {
      k: v.shape for k, v in traverse_util.flatten_dict(tree, sep='.').items()
    }
  last_parts = {name.rpartition('.')[2] for name in saved}
  its_own = {'head'} if kind == 'eagle3' else set()
  assert last_parts & {'embedding', 'position_embedding', 'head'} == its_own


@pytest.mark.integration
def test_eagle3_drafts_what_the_target_wrote(undisturbed):
  """The tokens that are its own are kept from its first step on."""
  job, workdir, trained, target = undisturbed('eagle3')
  rows = np.asarray(trained.params['draft_rows'])
  shards = pathlib.Path(job.continuations).glob('t0/train/*.npy')
  written = np.concatenate([np.load(shard) for shard in shards])
  assert written.shape == (32, job.length + 1)
  counts = np.bincount(written[:, job.prompt_length :].ravel(), minlength=512)
  assert counts[rows < 300].min() >= counts[rows == 300].max()
  config = dataclasses.replace(job, init=str(workdir / 'drafter'))
  begun = distill._init(config, trained.module, target)(jax.random.key(0))
  begun |= distill._chosen(config, trained.module, None, None, None)
  jax.tree.map(np.testing.assert_array_equal, begun, trained.params)
  drafter = trained_drafter(trained, target, 3)
  out = specsamp.generate(target, [[3, 1]], drafter=drafter, max_new_tokens=8)
  assert len(out.tokens[0]) == 8


@pytest.mark.integration
@pytest.mark.parametrize('kind', ['eagle_parallel', 'eagle3'])
def test_cut_off_and_resumed(undisturbed, tmp_path, monkeypatch, kind):
  """With noise and groups drawn anew in every step."""
  job, workdir, _, _ = undisturbed(kind)
  resumed = tmp_path / 'run'
  shutil.copytree(workdir, resumed)
  shutil.rmtree(resumed / 'drafter')
  shutil.rmtree(resumed / 'checkpoints' / '30')  # leaves that of step 24
  real, asked = Rows.batch, []
  monkeypatch.setattr(
    Rows, 'batch', lambda self, step: asked.append(step) or real(self, step)
  )
  distill.distill(job, resumed)
  assert asked == list(range(24, 30))
  assert _metrics(resumed) == _metrics(workdir)
  files = [w / 'drafter' / model_dir.WEIGHTS for w in (resumed, workdir)]
  assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.extended
@pytest.mark.parametrize(
  'kind',
  [
    'eagle3',
    *(
      pytest.param(kind, marks=pytest.mark.slow)
      for kind in ('eagle_parallel', 'hydra', 'dflash')
    ),
  ],
)
def test_losses_on_a_mesh_are_those_of_one_device(
  undisturbed, tmp_path, monkeypatch, kind
):
  job, workdir, _, _ = undisturbed(kind)
  real = Rows.batch

  def batch(self, step):
    if step == 8:  # enough
      raise KeyboardInterrupt
    return real(self, step)

  monkeypatch.setattr(Rows, 'batch', batch)
  with pytest.raises(KeyboardInterrupt):
    distill.distill(job, tmp_path, meshes.make(2, 4))
  lines = _metrics(tmp_path)
  assert len(lines) == 8
  for got, wanted in zip(lines, _metrics(workdir)[:8], strict=True):
    wanted = {k: v for k, v in wanted.items() if k.startswith(('loss', 'step'))}
    assert {k: got[k] for k in wanted} == pytest.approx(wanted, abs=1e-4)


def test_what_is_trained_of_a_sequence(config):
  """All of a text, and of what the target wrote no place in its prompt."""
  starts = lambda config: distill._starts(jax.random.key(0), config, 16)
  few = starts(config)
  assert len(few) == len(set(few.tolist())) == 4
  config = dataclasses.replace(config, groups=0)
  assert starts(config).tolist() == list(range(16))
  config = dataclasses.replace(config, num_continuations=64, prompt_length=11)
  assert starts(config).tolist() == list(range(10, 16))
  some = starts(dataclasses.replace(config, groups=5)).tolist()
  assert len(some) == 5
  assert set(some) < set(range(10, 16))


# The target's features, kept.


def test_kept_features_give_the_same_losses(config, tmp_path):
  target = model_dir.load(config.target)
  rows = np.random.default_rng(0).integers(512, size=(12, 17), dtype=np.int32)
  kept = FeatureCache(tmp_path, target, rows)
  config = dataclasses.replace(config, kind='hydra')
  module = make('hydra', target.config, config.ahead)
  params = tiny.trained(target, 'hydra', config.ahead).params
  loss = jax.jit(distill.make_loss(config, module, target))
  losses = []
  for features in (kept, None):
    batch = distill.Batches(Rows(rows, 4), features, config.noise).batch(5)
    assert ('features' in batch) == (features is not None)
    found = loss(params, distill.Frozen(target.params, {}), batch)[1]
    losses.append({name: float(value) for name, value in found.items()})
  # 10 bits of a feature.
  assert losses[0] == pytest.approx(losses[1], rel=2.0**-9)
  # Another step: other noise, other groups.
  again = distill.Batches(Rows(rows, 12), None, config.noise)
  assert again.batch(0)['seed'].tolist() == list(range(12))
  assert again.batch(3)['seed'].tolist() == list(range(36, 48))
  (in_order,) = again.in_order(5)
  assert not in_order['noise'].any() and again.batch(0)['noise'].all()


def test_features_are_of_one_process(config, tmp_path, monkeypatch):
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  config = dataclasses.replace(config, features=str(tmp_path / 'features'))
  with pytest.raises(UserError, match='2 processes, expected one'):
    distill.distill(config, tmp_path)


def test_fewer_places_are_drawn_of_all():
  """Else the farthest masks were those of the text's beginning."""
  config = DistillConfig(kind='eagle_parallel', length=16, retention=0.5)
  starts = distill._starts(jax.random.key(0), config, 16)
  assert sorted(starts.tolist()) == list(range(16)) != starts.tolist()


def test_targets_write_at_several_temperatures(config, tmp_path):
  """By turns, in folders of their own, which fewer sequences later share."""
  config = dataclasses.replace(
    config,
    num_continuations=32,
    prompt_length=8,
    continuation_batch=8,
    continuations=str(tmp_path),
    temperatures=(0, 1),
  )
  target = model_dir.load(config.target)
  module = distill.module_for(config, target.config)
  rows = {
    name: batches.rows.tokens
    for name, batches in zip(
      ('train', 'held_out'),
      distill._data(config, module, target, None),
      strict=True,
    )
  }
  assert {name: len(found) for name, found in rows.items()} == {
    'train': 32,
    'held_out': 16,
  }
  for name, found in rows.items():
    for i in range(2):
      path = tmp_path / f't{i}' / name / 'tokens-00000.npy'
      np.testing.assert_array_equal(found[i:16:2], np.load(path))
    greedy, drawn = found[::2], found[1::2]
    np.testing.assert_array_equal(greedy[:, :8], drawn[:, :8])
    assert (greedy != drawn).any(axis=1).all()
  config = dataclasses.replace(config, num_continuations=8, temperatures=(1.0,))
  written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*.npy')}
  train, _ = distill._data(config, module, target, None)
  np.testing.assert_array_equal(train.rows.tokens, rows['train'][1:16:2])
  again = {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*.npy')}
  assert again == written


# What a run refuses.


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(corpus='/nowhere'), 'corpus: /nowhere is not a folder'),
    (dict(target='/nowhere'), 'model /nowhere: no such folder'),
    (dict(length=65), 'length 65 exceeds the 64 positions of the target'),
    (
      dict(kind='medusa_parallel', ahead=1),
      'ahead: got 1, expected at least 2',
    ),
    (dict(batch_size=6400), 'corpus: .* sequences, but a batch takes 6400'),
  ],
)
def test_inputs_that_do_not_fit(config, tmp_path, changes, message):
  with pytest.raises(UserError, match=f'^{message}') as error:
    distill.distill(dataclasses.replace(config, **changes), tmp_path / 'new')
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  ('stored', 'got'), [('bfloat16', 'float32'), ('float16', None)]
)
def test_targets_are_not_in_float16(config, tmp_path, monkeypatch, stored, got):
  """Not where there is no bfloat16, and not where a folder has it so."""
  target = model_dir.load(config.target)
  transformer = Transformer(dataclasses.replace(target.config, dtype=stored))
  target = dataclasses.replace(target, transformer=transformer)
  model_dir.save(target, tmp_path / 'target')
  config = dataclasses.replace(config, target=str(tmp_path / 'target'))
  if got is None:
    with pytest.raises(UserError, match='expected float32 or bfloat16'):
      distill._target(config, None)
    return
  monkeypatch.setattr(devices, 'has_bfloat16', lambda device: False)
  assert distill._target(config, None).config.dtype == got
