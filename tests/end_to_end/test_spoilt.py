"""Random bytes and random JSON in every file that a run resumes from."""

import dataclasses
import gc
import importlib.util
import json
import pathlib
import random
import shutil

import jax
import pytest

from specsamp.errors import UserError
from specsamp.evaluation import timing
from specsamp.experiments import compare, measured_trees
from specsamp.models import TransformerConfig
from specsamp.training import distill, pretrain
from specsamp.training.distill_config import DistillConfig

# Orbax leaves coroutines behind where it fails.
pytestmark = [
  pytest.mark.extended,
  pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning'),
]
_RUN = dict(
  pattern='*.txt',
  batch_size=4,
  length=16,
  steps=4,
  warmup_steps=1,
  log_every=1,
  eval_every=2,
  eval_batches=1,
  checkpoint_every=2,
)


@pytest.fixture(scope='module', autouse=True)
def _promotion():
  """Optax's Adam mixes ints and floats."""
  with jax.numpy_dtype_promotion('standard'):
    yield


def _pretrain(folders, corpus):
  model = TransformerConfig(
    vocab_size=300, width=16, num_layers=1, num_heads=2, num_kv_heads=1,
    head_dim=8, mlp_width=32, max_length=16,
  )  # fmt: skip
  config = pretrain.PretrainConfig(model=model, corpus=str(corpus), **_RUN)
  return lambda workdir: pretrain.pretrain(config, workdir)


def _distill(folders, corpus):
  config = DistillConfig(
    kind='hydra', target=str(folders / 'target'), corpus=str(corpus), ahead=2,
    num_continuations=4, continuation_batch=4, prompt_length=8, **_RUN,
  )  # fmt: skip
  return lambda workdir: distill.distill(
    dataclasses.replace(config, features=f'{workdir}/features'), workdir
  )


def _evaluate(folders, corpus):
  path = pathlib.Path('configs/papers/mcsd/best_tree.py')
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  values = module.get_config('smoke').to_dict() | dict(
    target=f'{folders}/target',
    draft=f'{folders}/draft',
    max_prompt_tokens=40,
    plot='by_budget',
    passes=False,
  )
  values['methods'] = [m for m in values['methods'] if m['temperature']][:1]
  job = compare.prepare(values)
  return job.run


def _noise(chance, text):
  """Returns a random change of a text."""
  value = lambda: chance.choice(
    [None, True, -1, 0, 10**30, 1.5, 'x', [], {}, [{}], {'id': 1}, '\0']
  )
  try:
    line = json.loads(text.splitlines()[0])
  except (ValueError, IndexError):
    line = {}
  if isinstance(line, dict) and line:
    line = line | {chance.choice(sorted(line)): value()}
  at = chance.randrange(len(text) + 1)
  return chance.choice(
    [
      lambda: chance.randbytes(chance.randrange(200)),
      lambda: json.dumps(value()).encode(),
      lambda: json.dumps(line).encode() + b'\n' + text,
      lambda: text + json.dumps(line).encode() + b'\n',
      lambda: text[:at],
      lambda: text[:at] + chance.randbytes(8) + text[at + 8 :],
      lambda: b'[' * 10**5 + b'\n' + text,
    ]
  )()


@pytest.mark.parametrize('prepare', [_pretrain, _distill, _evaluate])
@pytest.mark.parametrize(
  'tries', [4, pytest.param(100, marks=pytest.mark.slow)]
)
def test_it_resumes_or_says_why(
  prepare, tries, folders, corpus, tmp_path, monkeypatch
):
  """There is no traceback, and no valid line is lost."""
  monkeypatch.setattr(measured_trees, 'CANDIDATES', 2)
  monkeypatch.setattr(measured_trees, 'SIZES', (1, 3))
  monkeypatch.setattr(timing, 'pass_times', lambda *_: {1: 1.0, 3: 1.5})
  monkeypatch.setattr(timing, 'level_time', lambda *_: 0.1)
  run, workdir = prepare(folders, corpus), tmp_path / 'run'
  workdir.mkdir()
  run(workdir)
  shutil.copytree(workdir, tmp_path / 'whole')
  paths = sorted(
    path.relative_to(workdir)
    for path in workdir.rglob('*')
    if path.is_file()
    and path.suffix not in ('.npy', '.png', '.svg', '.md')
    and path.relative_to(workdir).parts[0] not in ('model', 'drafter')
    and path.name != 'summary.json'  # which nothing reads
  )
  chance = random.Random(tries)
  chance.shuffle(paths)
  resumed = 0
  for i in range(tries):
    path = workdir / paths[i % len(paths)]
    text = path.read_bytes()
    spoilt = _noise(chance, text)
    path.write_bytes(spoilt)
    try:
      run(workdir)
    except UserError as error:
      assert '\n' not in str(error)
    else:
      resumed += 1
      if path.suffix == '.jsonl':
        whole = set(text.splitlines()) & set(spoilt.splitlines())
        # A line of the noise may be valid and replace another one.
        aside = path.with_name(f'{path.name}.set-aside')
        kept = [file.read_bytes() for file in (path, aside) if file.exists()]
        assert whole <= set(b'\n'.join(kept).splitlines())
    shutil.rmtree(workdir)
    shutil.copytree(tmp_path / 'whole', workdir)
  assert resumed >= tries // 4
  gc.collect()
