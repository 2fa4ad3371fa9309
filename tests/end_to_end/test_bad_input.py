"""Mistakes of a user: one line that helps, exit code 2, nothing written."""

import contextlib
import os
import subprocess
import sys

import pytest
from testing.launching import run_here

_QUICK = 'configs/quickstart.py'
_FIGURE4 = '--config=configs/papers/mcsd/figure4.py:smoke'
_PRETRAIN = '--config=configs/pretrain_pycode.py:smoke'
_CHINCHILLA = '--config=configs/chinchilla.py:predict'
_PAIR = (
  '--config.target={root}/target',
  '--config.draft={root}/draft',
  '--config.max_prompt_tokens=40',
)
# Valid flags of each launcher, before those of a case.
_VALID = {
  'bench': ['--config=configs/accelerator.py:smoke', '--transformers=False'],
  'decode': [f'--config={_QUICK}:smoke', *_PAIR],
  'distill': [
    '--config=configs/distill_pycode.py:smoke',
    '--config.target={root}/target',
    '--config.corpus=tests',
    '--config.prompt_length=8',
  ],
  'dialogues': ['--config=configs/dialogues.py'],
  'evaluate': [_FIGURE4, *_PAIR],
  'import_weights': ['--source={root}/target', '--to={tmp}/run'],
  'plan': [_CHINCHILLA, '--topology=v4:2x2x4'],
  'pretrain': [_PRETRAIN],
}
_TREES = '--config.verifier=multi_candidate'
_TEMPLATE = '--config.chat_template_kwargs'
_CHAT = '--config.chat=true'
_NGRAM = '--config.drafter=ngram'
_METHOD = "({'name': 'x', 'branchin': (1, 1), 'temperature': 1.0},)"


# Words of the error: launcher and flags that provoke it.
@pytest.mark.parametrize(
  ('words', 'name', 'flags'),
  [
    # Flags.
    ("unexpected arguments ['def f():']", 'decode', ['def f():']),
    ('Did you mean: prompt', 'decode', ['--promt=x']),
    ('graphs=maybe', 'bench', ['--graphs=maybe']),
    ("got 'h10:8', expected one of", 'plan', ['--topology=h10:8']),
    ("workdir: got ''", 'decode', ['--workdir=']),
    # A config that does not exist or is for another launcher.
    (f'did you mean {_QUICK}?', 'decode', ['--config=quickstart']),
    ('got two of them', 'decode', [f'--config={_QUICK}', f'--config={_QUICK}']),
    ('is a config of pretrain', 'decode', [_PRETRAIN]),
    ('SyntaxError', 'decode', ['--config=README.md']),
    ('RuntimeError: of two lines', 'decode', ['--config={root}/raises.py']),
    ("'dict' object has no", 'decode', ['--config={root}/dict.py']),
    ("config: key: got 'nope'", 'decode', ['--config={root}/key.py']),
    # An argument that a config does not take.
    ('did you mean smoke?', 'decode', [f'--config={_QUICK}:smok']),
    # A key that a config does not have, or a value of another type.
    ('did you mean draft_len?', 'decode', ['--config.draft_length=4']),
    ('--config.draft_len: has no keys', 'decode', ['--config.draft_len.x=3']),
    ('did you mean chat?', 'decode', ['--noconfig.chats']),
    ('did you mean branching?', 'evaluate', [f'--config.methods={_METHOD}']),
    ('needs --config.chat=true', 'decode', [f'{_TEMPLATE}.x=1']),
    ('needs --config.chat=true', 'evaluate', [f'{_TEMPLATE}.x=1']),
    ("'tools' is a reserved", 'evaluate', [f'{_TEMPLATE}.tools=1', _CHAT]),
    ("'x'", 'decode', [f'{_TEMPLATE}.x.y=1', _CHAT]),
    (f'{_TEMPLATE}=3', 'decode', [f'{_TEMPLATE}=3', _CHAT]),
    ('--config.draft_len=four', 'decode', ['--config.draft_len=four']),
    # A value out of its range.
    ('num_prompts: got 0', 'decode', ['--config.num_prompts=0']),
    ('seed: got 2147483647', 'decode', ['--config.seed=2147483647']),
    ('temperature: got -1.0', 'decode', ['--config.temperatures=(-1.0,)']),
    ('the 64 positions', 'decode', ['--config.max_new_tokens=2147483647']),
    ('got 100000001 nodes', 'decode', ['--config.draft_len=100000000']),
    ('max_length', 'pretrain', ['--config.length=65']),
    # Names that do not exist.
    ('did you mean token', 'decode', ['--config.verifier=tokn']),
    ('synthetic:LENGTH', 'decode', ['--config.verifier=synthetic']),
    ('length: got nan', 'decode', ['--config.verifier=synthetic:nan']),
    ("no module 'no_such'", 'decode', ['--config.drafter=no_such:draft']),
    ('my.module:', 'decode', ['--config.drafter=ngrm']),
    ('did you mean by_budget', 'evaluate', ['--config.plot=by_budgt']),
    # Trees, drafters and verifiers that do not fit each other.
    ('at least 1, got (2, 0)', 'decode', ['--config.branching=(2, 0)', _TREES]),
    ('(nodes, depth, children)', 'decode', ['--config.dynamic_tree=(8, 3)']),
    (
      'dynamic_tree: cannot',
      'decode',
      ['--config.dynamic_tree=(8, 3, 3)', '--config.branching=(2, 2)'],
    ),
    ('how much it drafts', 'decode', [_NGRAM, '--config.adaptive=true']),
    (
      'TokenVerifier verifies chains',
      'decode',
      ['--config.branching=(2, 2)', '--config.verifier=token'],
    ),
    ('expected at least 5', 'decode', ['--config.verifier=synthetic:5.5']),
    (
      "law 'deterministic', expected 'iid' or 'top_plus_one' or 'without_",
      'decode',
      ['--config.law=deterministic', '--config.verifier=traversal'],
    ),
    ("got law 'iid'", 'decode', [_NGRAM, '--config.law=iid']),
    ('cannot correct', 'decode', [_NGRAM, '--config.verifier=token']),
    ('n_max 3 and n_min 5', 'decode', [_NGRAM, '--config.lookup.n_min=5']),
    (
      'drafter none: cannot',
      'decode',
      ['--config.drafter=none', '--config.branching=(2,)'],
    ),
    # Prompts, tasks and corpora.
    (
      '/no/such/file: No such file',
      'decode',
      [_NGRAM, '--config.lookup.datastore=/no/such/file'],
    ),
    ('/no/such.json: No such', 'decode', ['--config.prompts=/no/such.json']),
    ('/no/such/file', 'decode', ['--prompts_file=/no/such/file']),
    ('as --config.prompts=a.jsonl', 'decode', ['--prompts_file=a.jsonl']),
    ('not both', 'decode', ['--prompt=x', '--prompts_file=y']),
    ("got '', expected a text", 'decode', ['--prompt=']),
    ('64 positions', 'decode', ['--prompt=' + 'x = 1\n' * 400]),
    ('expected one of code', 'evaluate', ['--config.tasks=("README.md",)']),
    (
      'specsamp fetch humaneval --to=tests fetches',
      'evaluate',
      ['--config.tasks=("humaneval",)', '--config.data=tests'],
    ),
    ('no task twice', 'evaluate', ['--config.tasks=("code", "code")']),
    ('no chat template', 'evaluate', [_CHAT]),
    ('/no/such/folder', 'pretrain', ['--config.corpus=/no/such/folder']),
    ('continuation_batch=32', 'distill', ['--config.num_continuations=33']),
    (
      'must not be set with corpus',
      'distill',
      ['--config.conversations=/no/file'],
    ),
    (
      'conversations /no/file: No such file',
      'distill',
      ['--config.conversations=/no/file', '--config.corpus='],
    ),
    ('no chat template', 'dialogues', ['--config.target={root}/target']),
    ('top_p: got 2.0', 'dialogues', ['--config.top_p=2.0']),
    # Models and folders.
    ('share 0.0%', 'decode', ['--config.draft={root}/words']),
    ('cut/model.safetensors', 'decode', ['--config.target={root}/cut']),
    ('nowhere', 'decode', ['--config.target={root}/nowhere']),
    ('config.json', 'decode', ['--config.target={root}']),
    ('a run of another config', 'decode', ['--workdir={root}/target']),
    ('folder', 'import_weights', ['--to=..']),
  ],
)
def test_one_line(refused, folders, tmp_path, words, name, flags):
  valid = _VALID[name]
  if any(flag.partition('=')[0].endswith('-config') for flag in flags):
    valid = [flag for flag in valid if not flag.startswith('--config')]
  if name != 'import_weights':
    valid = [*valid, '--workdir={tmp}/run']
  places = {'root': str(folders), 'tmp': str(tmp_path)}
  flags = [
    flag.replace('{root}', places['root']).replace('{tmp}', places['tmp'])
    for flag in (*valid, *flags)
  ]
  assert words in refused(name, *flags)
  assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
  ('words', 'name', 'flags'),
  [
    ('--workdir must', 'bench', []),
    ('--config: must be given, expected one of configs/d', 'distill', []),
    ('--source must', 'import_weights', []),
    ('--topology must', 'plan', [_CHINCHILLA]),
    ('prompt', 'decode', ['--prompt']),
  ],
)
def test_a_missing_flag(refused, tmp_path, words, name, flags):
  with contextlib.chdir(tmp_path):
    assert words in refused(name, *flags)
  assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
  ('name', 'mesh', 'line'),
  [
    ('decode', '3x3', 'mesh 3x3 takes 9 devices, got 8'),
    ('pretrain', '2x', "mesh: got '2x', expected DATAxMODEL such as 2x4"),
    ('evaluate', '1x8', 'mlp: 20 do not divide into 8 shards'),
  ],
)
def test_a_mesh_that_does_not_fit(refused, folders, tmp_path, name, mesh, line):
  flags = [flag.replace('{root}', str(folders)) for flag in _VALID[name]]
  workdir = tmp_path / 'run'
  message = refused(name, *flags, f'--mesh={mesh}', f'--workdir={workdir}')
  assert message.startswith(f'{name}.py: {line}')
  assert not (workdir / 'metrics.jsonl').exists()


@pytest.mark.parametrize(
  ('changes', 'line'),
  [
    ({'JAX_NUM_PROCESSES': ''}, 'go together, got only'),
    ({'JAX_PROCESS_ID': '2'}, 'JAX_PROCESS_ID is 2, expected below'),
    ({'JAX_COORDINATOR_ADDRESS': 'here'}, "got 'here', expected HOST:PORT"),
  ],
)
def test_variables_that_make_no_run(launch, tmp_path, changes, line):
  variables = {
    'JAX_COORDINATOR_ADDRESS': 'localhost:1',
    'JAX_NUM_PROCESSES': '2',
    'JAX_PROCESS_ID': '0',
  }
  workdir = f'--workdir={tmp_path}/run'
  ended = launch('pretrain', _PRETRAIN, workdir, variables=variables | changes)
  assert ended.code == 2 and ended.out == ''
  assert line in ended.err and ended.err.count('\n') == 1


def test_nothing_of_another_run_is_overwritten(refused, tmp_path):
  (tmp_path / 'summary.json').write_text('precious')
  line = refused('pretrain', _PRETRAIN, f'--workdir={tmp_path}')
  assert 'something else' in line
  (file,) = tmp_path.iterdir()
  assert file.read_text() == 'precious'


def test_weights_that_are_not_numbers(folders, tmp_path):
  """A pass reports them, after the prompt is printed."""
  ended = run_here(
    'decode',
    f'--config={_QUICK}:smoke',
    f'--workdir={tmp_path}/run',
    f'--config.target={folders}/nan',
    f'--config.draft={folders}/draft',
    '--prompt=x',
    '--config.max_new_tokens=2',
  )
  assert ended.code == 2
  # Bars of compiled programs precede it.
  assert ended.err.endswith(
    'decode.py: the target gave NaN logits in rows [0]\n'
  )


def test_a_separate_process_ends_with_code_2():
  """The launchers above share this process or a fork of it."""
  ended = subprocess.run(
    [sys.executable, 'launch/decode.py', '--config.nope=1'],
    capture_output=True,
    text=True,
    check=False,
  )
  assert ended.returncode == 2
  assert ended.stderr.count('\n') == 1 and 'nope' in ended.stderr


@pytest.mark.extended
def test_an_output_that_cannot_be_written(folders, tmp_path):
  command = [
    sys.executable, 'launch/decode.py', f'--config={_QUICK}:smoke',
    f'--workdir={tmp_path}/run', f'--config.target={folders}/target',
    f'--config.draft={folders}/draft', "--prompt='é'",
    '--config.max_new_tokens=2', '> /dev/full',
  ]  # fmt: skip
  ended = subprocess.run(
    ' '.join(command),
    shell=True,
    capture_output=True,
    text=True,
    check=False,
    env=os.environ | {'PYTHONIOENCODING': 'ascii'},
  )
  assert ended.stderr == 'decode.py: output: No space left on device\n'
