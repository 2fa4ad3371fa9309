"""A user's mistake is one line that says what, exit code 2, nothing written."""

import os
import subprocess
import sys

import pytest

_QUICK = '--config=configs/quickstart.py:smoke'
_TREES = '--config.verifier=multi_candidate'
_NAIVE = ['--config.law=deterministic', '--config.verifier=naive']
_NGRAM = [
  '--config.drafter=ngram',
  '--config.law=deterministic',
  '--config.verifier=naive',
]
_PRETRAIN = '--config=configs/pretrain_pycode.py:smoke'
_DISTILL = '--config=configs/distill_pycode.py:smoke'


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--config.nope=1'], 'nope'),
    (['--config=configs/nope.py'], '--config: got two of them'),
    (['--config.num_prompts=many'], 'num_prompts'),
    (['--config.num_prompts=0'], 'num_prompts'),
    (['--config.sweep_prompts=0'], 'sweep_prompts: got 0'),
    (['--nope=1'], 'nope'),
    (['stray'], 'stray'),
    (['--config.draft_lens=(-1,)'], 'got -1'),
    (['--config.draft_lens=(0,)'], 'got 0'),
    (['--config.shown=(1,)'], 'shown: got (1,)'),
    (['--config.shown=(-1, 0)'], 'shown: got (-1, 0)'),
    (['--config.other_drafters=("ngram",)'], "other_drafters: got 'ngram'"),
    (['--config.draft_lens=(2.5,)'], '2.5'),
    (['--config.draft_len=-1'], 'got -1'),
    (['--config.draft_lens=(2, 2)'], 'twice'),
    (['--config.max_new_tokens=2147483647'], 'positions'),
    (['--prompts_file='], 'prompts'),
    (['--config.top_p=0.0'], 'top_p: got 0.0'),
    (['--config.top_p=1.5'], 'top_p: got 1.5'),
    (['--config.temperatures=(-1.0,)'], 'temperature: got -1.0'),
    (['--config.temperatures=(float("nan"),)'], 'temperature'),
    (['--config.verifier=tokn'], 'did you mean token'),
    (['--config.verifier=no.such:Rule'], "verifier: no module 'no' for"),
    (['--config.drafter=no_such:draft'], "drafter: no module 'no_such'"),
    (['--config.branching=(2, 0)', _TREES], 'at least 1, got (2, 0)'),
    (['--config.branching=(2, -1)', _TREES], 'at least 1, got (2, -1)'),
    (['--config.branching=(2.5,)', _TREES], '2.5'),
    (['--config.branching=(2, (1, "a"))', _TREES], "'a'"),
    (['--config.branching=(2, (1, 1, 1))', _TREES], 'got 3 counts'),
    (['--config.branching=(2, (0,))', _TREES], 'at least 1, got (2, (0,))'),
    (['--config.branching=(9, 9, 9, 9, 9)', _TREES], '9x9x9x9x9'),
    (['--config.branching=(63, 1)', _TREES], '64 positions'),
    (
      ['--config.branching=(600,)', '--config.target={root}/long', _TREES],
      '600 candidates, more than the 512 tokens',
    ),
    (['--config.dynamic_tree=(8, 3)'], 'expected (nodes, depth, children)'),
    (['--config.dynamic_tree=(99, 3, 9)', *_NAIVE], 'at most the 64 positions'),
    (['--config.dynamic_tree=(9, 2, 2)', *_NAIVE], 'there are 7'),
    (
      ['--config.dynamic_tree=(8, 3, 3)', '--config.law=iid'],
      "expected 'deterministic'",
    ),
    (
      ['--config.dynamic_tree=(8, 3, 3)', '--config.adaptive=true'],
      'other ways to choose what is drafted',
    ),
    (['--config.adaptive=true', '--config.draft_lens=()'], 'at least one'),
    (
      ['--config.adaptive=true', '--config.draft_lens=(200,)'],
      'a round has 201 tokens, the target 64 positions',
    ),
    ([*_NGRAM, '--config.adaptive=true'], 'chooses itself how much it drafts'),
    (
      ['--config.branching=(2, 2)', '--config.verifier=token'],
      'TokenVerifier verifies chains',
    ),
    (['--config.law=deterministic', _TREES], "got law 'deterministic'"),
    (['--config.law=nope'], "law: got 'nope'"),
    (
      ['--config.drafter=ngrm'],
      'at the hub, or your own, my.module:',
    ),
    (
      ['--config.drafter=ngram', '--config.law=iid'],
      "got law 'iid', expected 'deterministic'",
    ),
    (['--config.drafter=ngram', '--config.verifier=token'], 'cannot correct'),
    (['--config.drafter=none', '--config.branching=(2,)'], 'drafter none: got'),
    (['--config.dtype=float33'], "dtype: got 'float33'"),
    ([*_NGRAM, '--config.branching=(2, 2)'], 'parts at the root only'),
    ([*_NGRAM, '--config.lookup.n_min=5'], 'got n_max 3 and n_min 5'),
    ([*_NGRAM, '--config.lookup.window=many'], 'window'),
    (
      [*_NGRAM, '--config.lookup.datastore=/no/such/file'],
      'datastore /no/such/file: No such file or directory',
    ),
    (
      [
        '--config.drafter=ngram_or_draft',
        '--config.law=without_replacement',
        _TREES,
      ],
      "law must be 'iid'",
    ),
    (
      ['--config.drafter=lookahead', '--config.law=iid'],
      "expected 'deterministic'",
    ),
    (
      ['--config.lookup.window=0', *_NGRAM[1:], '--config.drafter=lookahead'],
      'window: got 0',
    ),
    (['--config.seed=-1'], 'seed'),
    (['--config.seed=2147483647'], 'seed: got 2147483647'),
    (
      ['--config.seed=2147483645', '--prompts_file={root}/five'],
      'seed: got [2147483645',
    ),
    (['--config.draft_len=100000000'], 'got 100000001 nodes, expected at most'),
    (['--config.max_prompt_tokens=1000000000'], 'expected at most the 64'),
    ([*_NGRAM, '--config.lookup.n_max=1000000000'], 'at most 64'),
    (
      [
        '--config.lookup.window=1000000000',
        *_NGRAM[1:],
        '--config.drafter=lookahead',
      ],
      'window: got 1000000000',
    ),
    ([*_NGRAM, '--config.lookup.datastore={root}/blank'], 'blank: empty'),
    (['--config.temperatures=((0.5,),)'], 'temperatures: got (0.5,)'),
    (['--config.target={root}/deep'], 'nested too deep'),
    (['--config.target={root}/huge'], 'width must be at most'),
    (['--workdir='], "workdir: got ''"),
    (['--config.prompts=/no/such.json'], 'prompts /no/such.json: No such file'),
    (['--prompts_file=/no/such/file'], '/no/such/file'),
    (['--prompts_file=a.jsonl'], '--config.prompts=a.jsonl reads it'),
    (['--prompt=x', '--prompts_file=y'], 'not both'),
    (['--prompt='], "got '', expected a text"),
    (['--prompt=' + 'x = 1\n' * 400], '64 positions'),
    (['--config.draft={root}/small'], 'tokens differ, the first is'),
    (['--config.draft={root}/turned'], 'tokenizer'),
    (['--config.target={root}/cut'], 'cut/model.safetensors'),
    (['--config.target={root}/nowhere'], 'nowhere'),
    (['--config.target={root}'], 'config.json'),
    (['--workdir={root}/target/config.json/run'], 'config.json/run'),
    (['--workdir={root}/target'], 'holds the run of another config'),
  ],
)
def test_decode_refuses(refused, folders, tmp_path, flags, words):
  flags = [flag.replace('{root}', str(folders)) for flag in flags]
  workdir = tmp_path / 'run'
  defaults = [
    _QUICK,
    f'--workdir={workdir}',
    f'--config.target={folders}/target',
    f'--config.draft={folders}/draft',
    '--config.max_prompt_tokens=40',
  ]
  assert words in refused('decode', *defaults, *flags)
  assert not workdir.exists()


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--config='], "--config: got ''"),
    (['--config=configs/nope.py'], 'nope.py'),
    (['--config=configs/quickstart.py:nope'], "'nope'"),
    (['--config=configs/pretrain_pycode.py:smoke'], 'a config of pretrain'),
    (['--config=README.md'], 'SyntaxError'),
    (['--config=tests'], 'tests'),
    (['--config={root}/raises.py'], 'RuntimeError: of two lines'),
    (['--config={root}/dict.py'], 'returned a dict'),
  ],
)
def test_config_file_is_refused(refused, folders, tmp_path, flags, words):
  flags = [flag.replace('{root}', str(folders)) for flag in flags]
  assert words in refused('decode', f'--workdir={tmp_path}/run', *flags)


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--config.model.width=0'], 'width'),
    (['--config.model.norm=nope'], 'norm'),
    (['--config.model.nope=1'], 'nope'),
    (['--config.length=65'], 'max_length'),
    (['--config.steps=0'], 'steps'),
    (['--config.seed=-1'], 'seed'),
    (['--config.seed=4294967296'], 'seed'),
    (['--config.learning_rate=nan'], 'learning_rate: got nan'),
    (['--config.learning_rate=inf'], 'learning_rate: got inf'),
    (['--config.weight_decay=-0.1'], 'weight_decay'),
    (['--config.clip_norm=0.0'], 'clip_norm: got 0.0, expected above 0'),
    (['--config.beta2=2.0'], 'beta2: got 2.0, expected below 1'),
    (['--config.optimizer=sgd'], "got 'sgd'"),
    (['--config.storage=int4'], 'int4'),
    (['--config.distillation_weight=2.0'], 'distillation_weight'),
    (['--config.corpus=/no/such/folder'], '/no/such/folder'),
    (['--config.tokenizer=/no/such/file'], '/no/such/file'),
    (['--config.teacher={root}/cut'], 'cut/model.safetensors'),
    (['--config.teacher={root}/small'], '400'),
  ],
)
def test_pretrain_refuses(refused, folders, tmp_path, flags, words):
  flags = [flag.replace('{root}', str(folders)) for flag in flags]
  workdir = tmp_path / 'run'
  line = refused('pretrain', _PRETRAIN, f'--workdir={workdir}', *flags)
  assert words in line
  assert not workdir.exists()


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--config.kind=nope'], "'nope'"),
    (['--config.nope=1'], 'nope'),
    (['--config.groups=33'], 'more than the 32 positions'),
    (['--config.ahead=0'], 'ahead: got 0'),
    (['--config.noise=nan'], 'noise: got nan'),
    (['--config.cross_entropy_weight=-1.0'], 'cross_entropy_weight: got -1.0'),
    (['--config.num_layers=1000000000'], 'num_layers'),
    (['--config.features={root}/blank'], 'blank: File exists'),
    (['--config.length=65'], 'length 65 exceeds the 64 positions'),
    (['--config.continuation_batch=0'], 'continuation_batch'),
    (['--config.temperatures=(0, -1.0)'], 'temperature: got -1.0'),
    (['--config.target={root}/nowhere'], 'nowhere'),
    (['--config.target={root}/cut'], 'cut/model.safetensors'),
    (['--config.corpus=/no/such/folder'], '/no/such/folder'),
    (['--config.num_continuations=33'], 'continuation_batch=32'),
    (['--config=configs/distill_pycode.py:nope'], "'nope'"),
    (['--config=configs/pretrain_pycode.py:smoke'], 'config'),
  ],
)
def test_distill_refuses(refused, folders, tmp_path, flags, words):
  workdir = tmp_path / 'run'
  defaults = [f'--workdir={workdir}']
  if not flags[0].startswith('--config=configs'):
    defaults += [
      _DISTILL,
      f'--config.target={folders}/target',
      '--config.corpus=tests',
      '--config.prompt_length=8',
    ]
  flags = [flag.replace('{root}', str(folders)) for flag in flags]
  assert words in refused('distill', *defaults, *flags)
  assert not workdir.exists()


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--config.num_prompts=0'], 'num_prompts'),
    (['--config.tasks=("/no/such.json",)'], '/no/such.json'),
    (['--config.tasks=("README.md",)'], 'expected one of code'),
    (['--config.tasks=(1,)'], 'task: got 1'),
    (['--config.tasks=()'], 'tasks: got none'),
    (
      ['--config.tasks=("humaneval",)', '--config.data=tests'],
      'specsamp fetch humaneval --to=tests fetches',
    ),
    (['--config.tasks=("code", "code")'], 'no task twice'),
    (['--config.samples=0'], 'samples'),
    (['--config.samples=1000000000'], 'samples'),
    (['--config.max_prompt_tokens=1000000000'], 'max_prompt_tokens'),
    (['--config.chat=true'], 'no chat template'),
    (['--config.plot=by_budgt'], 'did you mean by_budget'),
    (['--config.tasks=("no_such:task",)'], "task: no module 'no_such'"),
    (['--config.top_p=0.0'], 'top_p'),
    (['--config.draft={root}/small'], 'tokens differ, the first is'),
    (['--config=configs/quickstart.py:smoke'], 'config'),
  ],
)
def test_evaluate_refuses(refused, folders, tmp_path, flags, words):
  flags = [flag.replace('{root}', str(folders)) for flag in flags]
  workdir = tmp_path / 'run'
  defaults = [
    '--config=configs/papers/mcsd/figure4.py:smoke',
    f'--workdir={workdir}',
  ]
  if not flags[0].startswith('--config=configs'):
    defaults += [
      f'--config.target={folders}/target',
      f'--config.draft={folders}/draft',
      '--config.max_prompt_tokens=40',
    ]
  assert words in refused('evaluate', *defaults, *flags)
  assert not workdir.exists()


_MESH_FLAGS = {
  'decode': [
    _QUICK,
    '--config.target={root}/target',
    '--config.draft={root}/draft',
  ],
  'pretrain': [_PRETRAIN, '--config.corpus=tests'],
  'distill': [_DISTILL, '--config.target={root}/target'],
  'evaluate': [
    '--config=configs/papers/mcsd/figure4.py:smoke',
    '--config.target={root}/target',
    '--config.draft={root}/draft',
  ],
}


@pytest.mark.parametrize('name', _MESH_FLAGS)
@pytest.mark.parametrize(
  ('mesh', 'line'),
  [
    ('3x3', 'mesh 3x3 takes 9 devices, got 8'),
    ('2x', "mesh: got '2x', expected DATAxMODEL such as 2x4"),
    ('2x4', 'heads: 2 do not divide into 4 shards, the size of the mesh axis'),
  ],
)
def test_a_mesh_that_does_not_fit(refused, folders, tmp_path, name, mesh, line):
  workdir = tmp_path / 'run'
  got = refused(
    name,
    *(flag.replace('{root}', str(folders)) for flag in _MESH_FLAGS[name]),
    f'--mesh={mesh}',
    f'--workdir={workdir}',
    variables={'JAX_NUM_CPU_DEVICES': '8'},
  )
  assert got.startswith(f'{name}.py: {line}')
  assert not (workdir / 'metrics.jsonl').exists()


@pytest.mark.parametrize(
  ('changes', 'line'),
  [
    ({'JAX_NUM_PROCESSES': ''}, 'go together, got only'),
    ({'JAX_COORDINATOR_ADDRESS': ''}, 'go together, got only'),
    ({'JAX_PROCESS_ID': '2'}, 'JAX_PROCESS_ID is 2, expected below'),
    ({'JAX_PROCESS_ID': '-1'}, "JAX_PROCESS_ID: got '-1', expected a number"),
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
  got = refused('pretrain', _PRETRAIN, workdir, variables=variables | changes)
  assert line in got


def test_nothing_of_another_run_is_overwritten(refused, tmp_path):
  (tmp_path / 'summary.json').write_text('precious')
  line = refused('pretrain', _PRETRAIN, f'--workdir={tmp_path}')
  assert 'something else' in line
  assert [p.name for p in tmp_path.iterdir() if p.name[:3] != 'std'] == [
    'summary.json'
  ]
  assert (tmp_path / 'summary.json').read_text() == 'precious'


def test_a_process_of_its_own_ends_with_code_2(tmp_path):
  """Those above share this process or a fork; this one does not."""
  ended = subprocess.run(
    [sys.executable, 'launch/decode.py', _QUICK, '--config.nope=1'],
    capture_output=True,
    text=True,
    check=False,
  )
  assert ended.returncode == 2
  assert ended.stderr.count('\n') == 1 and 'nope' in ended.stderr


@pytest.mark.parametrize(
  ('flag', 'words'),
  [
    ("--config.alphas=('a',)", "alphas: got 'a'"),
    ('--config.compare=(1,)', 'compare: got 1'),
    ('--config.alternative_on=(2,)', 'alternative_on: got 2'),
    ("--config.paper_ms=('target',)", "paper_ms: got 'target'"),
    ("--config.paper_ms=(('target', 'v4:2x2x4'),)", "paper_ms: got ('target"),
    ("--config.paper_speedups=(('a',),)", "paper_speedups: got ('a',)"),
  ],
)
def test_plan_refuses(refused, tmp_path, flag, words):
  workdir = tmp_path / 'run'
  line = refused(
    'plan',
    '--config=configs/chinchilla.py:predict',
    '--topology=v4:2x2x4',
    f'--workdir={workdir}',
    flag,
  )
  assert words in line
  assert not workdir.exists()


@pytest.mark.parametrize('to', ['', '.', '/', '..', 'README.md', 'tests'])
def test_import_refuses(refused, folders, to):
  line = refused('import_weights', f'--source={folders}/target', f'--to={to}')
  assert line.startswith('import_weights.py: folder')


def test_a_folder_for_a_file(refused, tmp_path):
  workdir = tmp_path / 'run'
  (workdir / 'config.json').mkdir(parents=True)
  assert 'is a folder' in refused('pretrain', _PRETRAIN, f'--workdir={workdir}')
  assert [path.name for path in workdir.iterdir()] == ['config.json']


def test_weights_that_are_not_numbers(launch, folders, tmp_path):
  """Which only a pass can tell, after the prompt is printed."""
  ended = launch(
    'decode',
    _QUICK,
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
    ('>&-', ''),
    ('--prompt=- <&-', 'decode.py: prompts -: standard input is closed\n'),
  ],
)
def test_an_output_that_nobody_reads(folders, tmp_path, shell, error):
  command = [
    sys.executable, 'launch/decode.py', _QUICK, f'--workdir={tmp_path}/run',
    f'--config.target={folders}/target', f'--config.draft={folders}/draft',
    "--prompt='é'", '--config.max_new_tokens=2',
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
