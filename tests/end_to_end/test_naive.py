"""What somebody types who has read nothing: one helpful line each."""

import contextlib
import pathlib
from typing import get_args

import pytest
from testing.launching import run_here

from specsamp import verification
from specsamp.cli import config_files
from specsamp.drafting.draft import Law
from specsamp.utils import home

_QUICK = 'configs/quickstart.py'
_PLAN = ('--config=configs/chinchilla.py:predict', '--topology=v4:2x2x4')
_IMPORT = ('--source={tmp}/source', '--to={tmp}/to')
_DISTILL = '--config=configs/distill_pycode.py'
_HUMANEVAL = '--config=configs/humaneval.py'
_PRETRAIN = '--config=configs/pretrain_pycode.py'
_WORKDIR = '--workdir={tmp}/run'
_TABLE2 = ('--config=configs/papers/mcsd/table2.py:smoke', _WORKDIR)
_BENCH = ('--config=configs/accelerator.py:smoke', _WORKDIR)
_METHOD = "({'name': 'x', 'branchin': (1, 1)},)"
_LAUNCHERS = sorted(
  path.stem for path in (home.folder() / 'launch').glob('*.py')
)


@pytest.mark.parametrize(
  ('name', 'flags', 'words'),
  [
    # Nothing at all.
    ('bench', [], '--workdir: got none'),
    ('distill', [], 'expected one of configs/distill_llama.py, conf'),
    ('evaluate', [], 'configs/papers/mcsd/table2.py'),
    ('import_weights', [], '--source: got none: Folder'),
    ('plan', [], 'expected one of configs/chinchilla.py, configs/plan_pairs'),
    ('pretrain', [], '--config: got none'),
    # Half of it.
    ('distill', [_DISTILL], '--workdir: got none'),
    ('distill', [_WORKDIR], '--config: got none'),
    ('import_weights', _IMPORT[:1], '--to: got none'),
    ('plan', _PLAN[:1], '--topology: got none: Chips'),
    ('pretrain', [_PRETRAIN], '--workdir: got none'),
    ('decode', ['--config'], '--config: got none'),
    ('decode', ['--prompt'], 'prompt'),
    # A flag that there is not.
    ('bench', ['--graph', _WORKDIR], 'Did you mean: graphs'),
    ('decode', ['--promt=x'], 'Did you mean: prompt'),
    ('decode', ['--verifier=block'], "'verifier'"),
    ('decode', ['--gamma=4'], "'gamma'"),
    ('evaluate', [_HUMANEVAL, '--allow_code_exection'], 'allow_code_execution'),
    ('import_weights', ['--src=x', *_IMPORT], "'src'"),
    ('import_weights', ['--dtypes=x', *_IMPORT], 'Did you mean: dtype'),
    ('plan', ['--topologies=v4', *_PLAN], 'Did you mean: topology'),
    ('serve', ['--prot=1'], 'Did you mean: port'),
    ('serve', [_WORKDIR], "'workdir'"),
    ('pretrain', [_PRETRAIN, '--work_dir=x'], 'Did you mean: workdir'),
    ('pretrain', [_PRETRAIN, '--meshs=1x1'], 'Did you mean: mesh'),
    # A value that a flag does not take.
    ('bench', ['--graphs=maybe', _WORKDIR], 'graphs=maybe'),
    ('decode', ['--config.top_p=no'], "top_p: got 'no', expected a number"),
    ('decode', ['--config.chat=no'], "got 'no', expected true or false"),
    ('import_weights', ['--dtype=int8', *_IMPORT], 'dtype=int8'),
    ('import_weights', ['--format=gguf', *_IMPORT], 'format=gguf'),
    # Words where flags belong.
    ('decode', ['def f():'], "unexpected arguments ['def f():']"),
    ('decode', [_QUICK], f"unexpected arguments ['{_QUICK}']"),
    ('plan', [*_PLAN, 'v5e-16'], "unexpected arguments ['v5e-16']"),
    # A config that there is not, or of another launcher.
    ('decode', ['--config=quickstart'], f'did you mean {_QUICK}?'),
    ('decode', ['--config=quickstart.py'], f'did you mean {_QUICK}?'),
    ('decode', ['--config', 'configs/quikstart.py'], f'did you mean {_QUICK}?'),
    ('decode', ['-config=Configs/Quickstart.py'], f'did you mean {_QUICK}?'),
    ('decode', ['--config='], "--config: got '', expected one of"),
    ('decode', ['--config=/no/such/file.py'], '/no/such/file.py'),
    ('decode', ['--config=..'], "got '..'"),
    ('decode', [_HUMANEVAL], 'a config of evaluate'),
    ('decode', ['--config=configs/chinchilla.py'], 'a config of plan'),
    ('evaluate', [f'--config={_QUICK}', _WORKDIR], 'a config of decode'),
    ('serve', [f'--config={_QUICK}'], 'a config of decode'),
    ('pretrain', [_DISTILL], 'a config of distill'),
    ('plan', [f'--config={_QUICK}', *_PLAN[1:]], 'a config of decode'),
    # An argument that a config does not take.
    ('decode', [f'--config={_QUICK}:smok'], 'did you mean smoke?'),
    ('decode', [f'--config={_QUICK}:'], "argument: got '', expected"),
    ('decode', ['--config=configs/pairs.py'], 'got None, expected one'),
    (
      'decode',
      ['--config=configs/pairs.py:llama-2-7b-chat+llama-86m'],
      'did you mean llama-2-7b-chat+llama-68m?',
    ),
    (
      'distill',
      ['--config=configs/distill_pycode.py:eagel3', _WORKDIR],
      'did you mean eagle3?',
    ),
    (
      'distill',
      ['--config=configs/distill_llama.py:medusa', _WORKDIR],
      'did you mean medusa_parallel?',
    ),
    (
      'evaluate',
      ['--config=configs/papers/mcsd/table2.py:smoke,', _WORKDIR],
      "got 'smoke,'",
    ),
    (
      'pretrain',
      ['--config=configs/pretrain_pycode.py:drafts', _WORKDIR],
      'configs/pretrain_pycode.py:drafts: argument: got',
    ),
    ('plan', ['--config=configs/plan_pairs.py', *_PLAN[1:]], 'got None'),
    ('plan', [f'{_PLAN[0]}s', _PLAN[1]], 'did you mean predict?'),
    # A key that a config has not.
    ('decode', ['--config.gamma=4'], "got 'gamma', expected one of adaptive"),
    ('decode', ['--config.draft_length=4'], 'did you mean draft_len?'),
    ('decode', ['--config.temperature=0'], 'did you mean temperatures?'),
    ('serve', ['--config.slot=3'], 'did you mean slots?'),
    ('decode', ['--config.lookup.n=3'], 'key of --config.lookup: got'),
    ('decode', ['--config.lookup.nmax=3'], 'did you mean n_max?'),
    ('decode', ['--config.draft_len.x=3'], '--config.draft_len: has no keys'),
    ('decode', ['--config.=3'], "got ''"),
    ('decode', ['--noconfig.chats'], 'did you mean chat?'),
    (
      'pretrain',
      [
        '--config=configs/pretrain_pycode.py:smoke',
        '--config.model.widht=3',
        _WORKDIR,
      ],
      'key of --config.model: got',
    ),
    ('plan', [*_PLAN, '--config.gama=3'], 'did you mean gamma?'),
    ('plan', [*_PLAN, '--config.prices.node=(1,)'], 'did you mean nodes?'),
    # A value that a key does not take.
    ('decode', ['--config.draft_len=four'], "got 'four', expected an integer"),
    ('decode', ['--config.draft_len='], "draft_len: got '', expected an"),
    ('decode', ['--config.chat=perhaps'], 'perhaps'),
    ('decode', ['--config.lookup=3'], 'not a dict'),
    ('decode', ['--config.temperatures=hot'], 'temperatures'),
    ('evaluate', [*_TABLE2, '--config.methods=hi'], "method: got 'hi'"),
    ('evaluate', [*_TABLE2, f'--config.methods={_METHOD}'], 'mean branching?'),
    ('bench', [*_BENCH, '--config.shapes=hi'], "shape: got 'hi'"),
    # Chips that there are not.
    ('plan', [*_PLAN[:1], '--topology=h10:8'], 'did you mean h100?'),
    ('plan', [*_PLAN[:1], '--topology=H100:8'], 'did you mean h100?'),
    ('plan', [*_PLAN[:1], '--topology=v4-7'], 'expected for v4 one of 8, 16'),
    ('plan', [*_PLAN[:1], '--topology=v4:2x2x4,'], "got ''"),
    ('plan', [*_PLAN[:1], '--topology='], "got ''"),
  ],
)
def test_one_line(refused, tmp_path, name, flags, words):
  flags = [flag.replace('{tmp}', str(tmp_path)) for flag in flags]
  with contextlib.chdir(tmp_path):
    assert words in refused(name, *flags)
  assert not any(tmp_path.iterdir())


@pytest.mark.parametrize('name', _LAUNCHERS)
@pytest.mark.parametrize('asked', ['--help', '-h'])
def test_help_lists_flags_and_keys(name, asked):
  """Nothing need be given, and what is given need not be right."""
  ended = run_here(name, asked, '--nope')
  assert (ended.code, ended.err) == (0, '')
  source = (home.folder() / 'launch' / f'{name}.py').read_text()
  assert source.split('"""')[1].splitlines()[0] in ended.out
  if 'define_flags(' in source:
    assert '\n  --config=..' in ended.out
    assert '\n  --workdir=..' in ended.out
    assert '\n  --config.' in ended.out
  if 'define_mesh(' in source:
    assert '\n  --mesh=..' in ended.out


def test_help_of_another_config():
  given = '--config=configs/plan_pairs.py:llama-13b+llama-68m'
  ended = run_here('plan', given, '--help')
  lines = ended.out.splitlines()
  gamma = (
    '  --config.gamma=4            drafted tokens of the compiled programs'
  )
  assert gamma in lines
  assert '  --config.prices             What a pass over N nodes' in ended.out
  assert any(line.startswith('  --config.prices.nodes=') for line in lines)


@pytest.mark.parametrize('name', ['decode', 'serve'])
def test_help_has_the_names_of_verifiers_and_laws(name):
  out = ' '.join(run_here(name, '--help').out.split())
  rules = ', '.join(verification.VERIFIERS)
  assert f': {rules}, my.module:Name --config.' in out
  assert f': {", ".join(get_args(Law))} ' in out


def test_keys_of_a_preset_stand_in_a_row_and_in_order():
  ended = run_here('pretrain', '--config=configs/pretrain_pycode.py', '--help')
  lines = ended.out.splitlines()
  keys = [line for line in lines if line.startswith('  --config.model')]
  assert len(keys) > 10
  first = lines.index('  --config.model')
  assert lines[first : first + len(keys)] == keys == sorted(keys)


def test_help_of_a_config_that_wants_an_argument():
  ended = run_here('plan', '--config=configs/plan_pairs.py', '--help')
  assert ended.code == 0
  assert 'argument: got None, expected one of llama-13b' in ended.out


def test_comments_stand_above_and_behind():
  source = pathlib.Path(home.folder() / _QUICK).read_text()
  found = config_files.comments(source)
  assert found['repeats'] == "of each timing of a round's parts"
  assert found['data'] == 'folder with the published sets of prompts'
  assert found['law'].startswith('how candidates are chosen;')
  assert found['lookup'].startswith('Lengths of the n-grams')
  assert found['lookup.n_max'] == found['draft'] == ''
