"""Mistakes of a user: one line that helps, exit code 2, nothing written."""

import contextlib
import os
import subprocess
import sys

import pytest

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
  'evaluate': [_FIGURE4, *_PAIR],
  'import_weights': ['--source={root}/target', '--to={tmp}/run'],
  'plan': [_CHINCHILLA, '--topology=v4:2x2x4'],
  'pretrain': [_PRETRAIN],
  'serve': [],
}
_TREES = '--config.verifier=multi_candidate'
_NGRAM = '--config.drafter=ngram'
_LOOKAHEAD = '--config.drafter=lookahead'
_TREE_8 = '--config.dynamic_tree=(8, 3, 3)'
_METHOD = "({'name': 'x', 'branchin': (1, 1), 'temperature': 1.0},)"


# Words of the error: launcher and flags that provoke it.
@pytest.mark.parametrize(
  ('words', 'name', 'flags'),
  [
    # A flag that does not exist, and words that are not flags.
    ("unexpected arguments ['def f():']", 'decode', ['def f():']),
    ('Did you mean: prompt', 'decode', ['--promt=x']),
    ("'gamma'", 'decode', ['--gamma=4']),
    ('Did you mean: topology', 'plan', ['--topologies=v4']),
    # A value that a flag does not take.
    ('graphs=maybe', 'bench', ['--graphs=maybe']),
    ('format=gguf', 'import_weights', ['--format=gguf']),
    ("got 'h10:8', expected one of", 'plan', ['--topology=h10:8']),
    ('expected for v4 one of 8, 16', 'plan', ['--topology=v4-7']),
    ("workdir: got ''", 'decode', ['--workdir=']),
    # A config that does not exist or is for another launcher.
    (f'did you mean {_QUICK}?', 'decode', ['--config=quickstart']),
    (f'did you mean {_QUICK}?', 'decode', ['--config', 'configs/quikstart.py']),
    (f'did you mean {_QUICK}?', 'decode', ['-config=Configs/Quickstart.py']),
    ("--config: got ''", 'decode', ['--config=']),
    ('got two of them', 'decode', [f'--config={_QUICK}', f'--config={_QUICK}']),
    ('is a config of pretrain', 'decode', [_PRETRAIN]),
    ('is a config of decode', 'serve', [f'--config={_QUICK}']),
    ('SyntaxError', 'decode', ['--config=README.md']),
    ('RuntimeError: of two lines', 'decode', ['--config={root}/raises.py']),
    ("'dict' object has no", 'decode', ['--config={root}/dict.py']),
    ("config: key: got 'nope'", 'decode', ['--config={root}/key.py']),
    # An argument that a config does not take.
    ('did you mean smoke?', 'decode', [f'--config={_QUICK}:smok']),
    ("argument: got ''", 'decode', [f'--config={_QUICK}:']),
    (
      'did you mean vicuna-7b+vicuna-68m?',
      'decode',
      ['--config=configs/pairs.py:vicuna-7b+vicuna-86m'],
    ),
    ("got 'smoke,'", 'evaluate', [f'{_FIGURE4},']),
    # A key that a config does not have.
    ('did you mean draft_len?', 'decode', ['--config.draft_length=4']),
    ("got 'gamma', expected one of adaptive", 'decode', ['--config.gamma=4']),
    ('did you mean n_max?', 'decode', ['--config.lookup.nmax=3']),
    ('--config.draft_len: has no keys', 'decode', ['--config.draft_len.x=3']),
    ("got ''", 'decode', ['--config.=3']),
    ('did you mean chat?', 'decode', ['--noconfig.chats']),
    ('key of --config.model: got', 'pretrain', ['--config.model.widht=3']),
    ('did you mean branching?', 'evaluate', [f'--config.methods={_METHOD}']),
    # A value of another type.
    ('--config.draft_len=four', 'decode', ['--config.draft_len=four']),
    ('--config.chat=no', 'decode', ['--config.chat=no']),
    ('not a dict', 'decode', ['--config.lookup=3']),
    ("temperatures: got 'hot'", 'decode', ['--config.temperatures=hot']),
    ("methods: got 'hi'", 'evaluate', ['--config.methods=hi']),
    ('draft_lens: got 2.5', 'decode', ['--config.draft_lens=(2.5,)']),
    ("law: got 'nope'", 'decode', ['--config.law=nope']),
    ("dtype: got 'float33'", 'decode', ['--config.dtype=float33']),
    # A value out of its range.
    ('num_prompts: got 0', 'decode', ['--config.num_prompts=0']),
    ('sweep_prompts: got 0', 'decode', ['--config.sweep_prompts=0']),
    ('seed: got 2147483647', 'decode', ['--config.seed=2147483647']),
    ('top_p: got 1.5', 'decode', ['--config.top_p=1.5']),
    ('temperature: got -1.0', 'decode', ['--config.temperatures=(-1.0,)']),
    ('none twice', 'decode', ['--config.draft_lens=(2, 2)']),
    ('got -1', 'decode', ['--config.draft_lens=(-1,)']),
    ('shown: got (-1, 0)', 'decode', ['--config.shown=(-1, 0)']),
    ('positions', 'decode', ['--config.max_new_tokens=2147483647']),
    ('at most the 64', 'decode', ['--config.max_prompt_tokens=1000000000']),
    ('got 100000001 nodes', 'decode', ['--config.draft_len=100000000']),
    ('samples: got 0', 'evaluate', ['--config.samples=0']),
    ('learning_rate: got nan', 'pretrain', ['--config.learning_rate=nan']),
    ('beta2: got 2.0', 'pretrain', ['--config.beta2=2.0']),
    ('seed: got 4294967296', 'pretrain', ['--config.seed=4294967296']),
    ('max_length', 'pretrain', ['--config.length=65']),
    ('noise: got nan', 'distill', ['--config.noise=nan']),
    ('length: got 65', 'distill', ['--config.length=65']),
    ('alphas: got', 'plan', ["--config.alphas=('a',)"]),
    ('paper_ms: got (', 'plan', ["--config.paper_ms=(('target', 'v4'),)"]),
    # Names that do not exist.
    ('did you mean token', 'decode', ['--config.verifier=tokn']),
    ("no module 'no' for", 'decode', ['--config.verifier=no.such:Rule']),
    ("no module 'no_such'", 'decode', ['--config.drafter=no_such:draft']),
    ('my.module:', 'decode', ['--config.drafter=ngrm']),
    ('did you mean by_budget', 'evaluate', ['--config.plot=by_budgt']),
    ("kind: got 'nope'", 'distill', ['--config.kind=nope']),
    ('optimizer: got', 'pretrain', ['--config.optimizer=sgd']),
    # Trees, drafters and verifiers that do not fit each other.
    ('at least 1, got (2, 0)', 'decode', ['--config.branching=(2, 0)', _TREES]),
    ('got 3 counts', 'decode', ['--config.branching=(2, (1, 1, 1))', _TREES]),
    ('9x9x9x9x9', 'decode', ['--config.branching=(9, 9, 9, 9, 9)', _TREES]),
    ('64 positions', 'decode', ['--config.branching=(63, 1)', _TREES]),
    (
      '600 candidates, more than the 512 tokens',
      'decode',
      ['--config.branching=(600,)', '--config.target={root}/long', _TREES],
    ),
    ('(nodes, depth, children)', 'decode', ['--config.dynamic_tree=(8, 3)']),
    ('at most 7', 'decode', ['--config.dynamic_tree=(9, 2, 2)']),
    ("expected 'deterministic'", 'decode', [_TREE_8, '--config.law=iid']),
    ('dynamic_tree: cannot', 'decode', [_TREE_8, '--config.adaptive=true']),
    (
      'a round has 201 tokens, the target 64 positions',
      'decode',
      ['--config.adaptive=true', '--config.draft_lens=(200,)'],
    ),
    ('how much it drafts', 'decode', [_NGRAM, '--config.adaptive=true']),
    (
      'TokenVerifier verifies chains',
      'decode',
      ['--config.branching=(2, 2)', '--config.verifier=token'],
    ),
    (
      "got law 'deterministic'",
      'decode',
      ['--config.law=deterministic', _TREES],
    ),
    ("got law 'iid'", 'decode', [_NGRAM, '--config.law=iid']),
    ('cannot correct', 'decode', [_NGRAM, '--config.verifier=token']),
    ('at the root only', 'decode', [_NGRAM, '--config.branching=(2, 2)']),
    ('n_max 3 and n_min 5', 'decode', [_NGRAM, '--config.lookup.n_min=5']),
    ('window: got 0', 'decode', [_LOOKAHEAD, '--config.lookup.window=0']),
    (
      "law must be 'iid'",
      'decode',
      [
        '--config.drafter=ngram_or_draft',
        '--config.law=without_replacement',
        _TREES,
      ],
    ),
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
    (
      'blank: empty',
      'decode',
      [_NGRAM, '--config.lookup.datastore={root}/blank'],
    ),
    ('/no/such.json: No such', 'decode', ['--config.prompts=/no/such.json']),
    ('/no/such/file', 'decode', ['--prompts_file=/no/such/file']),
    (
      '--config.prompts=a.jsonl reads it',
      'decode',
      ['--prompts_file=a.jsonl'],
    ),
    ('not both', 'decode', ['--prompt=x', '--prompts_file=y']),
    ("got '', expected a text", 'decode', ['--prompt=']),
    ('64 positions', 'decode', ['--prompt=' + 'x = 1\n' * 400]),
    (
      'seed: got [2147483645',
      'decode',
      ['--config.seed=2147483645', '--prompts_file={root}/five'],
    ),
    ('expected one of code', 'evaluate', ['--config.tasks=("README.md",)']),
    (
      'specsamp fetch humaneval --to=tests fetches',
      'evaluate',
      ['--config.tasks=("humaneval",)', '--config.data=tests'],
    ),
    ('no task twice', 'evaluate', ['--config.tasks=("code", "code")']),
    ('no chat template', 'evaluate', ['--config.chat=true']),
    ('/no/such/folder', 'pretrain', ['--config.corpus=/no/such/folder']),
    ('/no/such/file', 'pretrain', ['--config.tokenizer=/no/such/file']),
    (
      'continuation_batch=32',
      'distill',
      ['--config.num_continuations=33'],
    ),
    # Models and folders.
    ('the first is', 'decode', ['--config.draft={root}/small']),
    ('tokenizer', 'decode', ['--config.draft={root}/turned']),
    ('cut/model.safetensors', 'decode', ['--config.target={root}/cut']),
    ('nowhere', 'decode', ['--config.target={root}/nowhere']),
    ('config.json', 'decode', ['--config.target={root}']),
    ('nested too deep', 'decode', ['--config.target={root}/deep']),
    ('width must be at most', 'decode', ['--config.target={root}/huge']),
    ('norm', 'pretrain', ['--config.model.norm=nope']),
    ('400', 'pretrain', ['--config.teacher={root}/small']),
    ('blank: File exists', 'distill', ['--config.features={root}/blank']),
    (
      'config.json/run',
      'decode',
      ['--workdir={root}/target/config.json/run'],
    ),
    (
      'holds a run of another config',
      'decode',
      ['--workdir={root}/target'],
    ),
    ('folder', 'import_weights', ['--to=README.md']),
    ('folder', 'import_weights', ['--to=..']),
  ],
)
def test_one_line(refused, folders, tmp_path, words, name, flags):
  valid = _VALID[name]
  if any(flag.partition('=')[0].endswith('-config') for flag in flags):
    valid = [flag for flag in valid if not flag.startswith('--config')]
  if name not in ('serve', 'import_weights'):
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
    ('configs/papers/mcsd/table2.py', 'evaluate', []),
    ('--source must', 'import_weights', []),
    ('--topology must', 'plan', [_CHINCHILLA]),
    ('--workdir must', 'pretrain', [_PRETRAIN]),
    ("--config: got ''", 'decode', ['--config']),
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
    ('distill', '2x4', 'heads: 2 do not divide into 4 shards'),
    ('evaluate', '2x4', 'heads: 2 do not divide into 4 shards'),
  ],
)
def test_a_mesh_that_does_not_fit(refused, folders, tmp_path, name, mesh, line):
  workdir = tmp_path / 'run'
  message = refused(
    name,
    *(flag.replace('{root}', str(folders)) for flag in _VALID[name]),
    f'--mesh={mesh}',
    f'--workdir={workdir}',
    variables={'JAX_NUM_CPU_DEVICES': '8'},
  )
  assert message.startswith(f'{name}.py: {line}')
  assert not (workdir / 'metrics.jsonl').exists()


@pytest.mark.parametrize(
  ('changes', 'line'),
  [
    ({'JAX_NUM_PROCESSES': ''}, 'go together, got only'),
    ({'JAX_PROCESS_ID': '2'}, 'JAX_PROCESS_ID is 2, expected below'),
    ({'JAX_NUM_PROCESSES': 'two'}, "JAX_NUM_PROCESSES: got 'two'"),
    ({'JAX_COORDINATOR_ADDRESS': 'here'}, "got 'here', expected HOST:PORT"),
  ],
)
def test_variables_that_make_no_run(refused, tmp_path, changes, line):
  variables = {
    'JAX_COORDINATOR_ADDRESS': 'localhost:1',
    'JAX_NUM_PROCESSES': '2',
    'JAX_PROCESS_ID': '0',
  }
  workdir = f'--workdir={tmp_path}/run'
  message = refused(
    'pretrain', _PRETRAIN, workdir, variables=variables | changes
  )
  assert line in message


def test_nothing_of_another_run_is_overwritten(refused, tmp_path):
  (tmp_path / 'summary.json').write_text('precious')
  line = refused('pretrain', _PRETRAIN, f'--workdir={tmp_path}')
  assert 'something else' in line
  (file,) = tmp_path.iterdir()
  assert file.read_text() == 'precious'


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


def test_weights_that_are_not_numbers(launch, folders, tmp_path):
  """A pass reports them, after the prompt is printed."""
  ended = launch(
    'decode',
    f'--config={_QUICK}:smoke',
    f'--workdir={tmp_path}/run',
    f'--config.target={folders}/nan',
    f'--config.draft={folders}/draft',
    '--prompt=x',
    '--config.max_new_tokens=2',
  )
  assert ended.code == 2
  assert ended.err == 'decode.py: the target gave NaN logits in rows [0]\n'


@pytest.mark.extended
@pytest.mark.parametrize(
  ('shell', 'error'),
  [
    ('> /dev/full', 'decode.py: output: No space left on device\n'),
    ('| true', 'decode.py: output: Broken pipe\n'),
  ],
)
def test_an_output_that_cannot_be_written(folders, tmp_path, shell, error):
  command = [
    sys.executable, 'launch/decode.py', f'--config={_QUICK}:smoke',
    f'--workdir={tmp_path}/run', f'--config.target={folders}/target',
    f'--config.draft={folders}/draft', "--prompt='é'",
    '--config.max_new_tokens=2',
  ]  # fmt: skip
  ended = subprocess.run(
    f'{" ".join(command)} {shell}',
    shell=True,
    capture_output=True,
    text=True,
    check=False,
    env=os.environ | {'PYTHONIOENCODING': 'ascii'},
  )
  assert ended.stderr == error
