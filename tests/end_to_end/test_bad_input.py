"""A user's mistake is one line that says what, exit code 2, nothing written."""

import subprocess
import sys

import pytest

_QUICK = '--config=configs/quickstart.py:smoke'
_TREES = '--config.verifier=multi_candidate'
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
    (['--config.num_prompts=many'], 'num_prompts'),
    (['--config.num_prompts=0'], 'num_prompts'),
    (['--config.sweep_prompts=0'], 'sweep_prompts: got 0'),
    (['--nope=1'], 'nope'),
    (['stray'], 'stray'),
    (['--config.draft_lens=(-1,)'], 'got -1'),
    (['--config.draft_lens=(0,)'], 'got 0'),
    (['--config.draft_lens=(2.5,)'], '2.5'),
    (['--config.draft_len=-1'], 'got -1'),
    (['--config.draft_lens=(2, 2)'], 'twice'),
    (['--config.max_new_tokens=2147483647'], 'positions'),
    (['--prompts_file='], 'prompts'),
    (['--config.top_p=0.0'], 'top_p: got 0.0'),
    (['--config.top_p=1.5'], 'top_p: got 1.5'),
    (['--config.temperatures=(-1.0,)'], 'temperature: got -1.0'),
    (['--config.temperatures=(float("nan"),)'], 'temperature'),
    (['--config.verifier=nope'], 'nope'),
    (['--config.branching=(2, 0)', _TREES], 'at least 1, got (2, 0)'),
    (['--config.branching=(2, -1)', _TREES], 'at least 1, got (2, -1)'),
    (['--config.branching=(2.5,)', _TREES], '2.5'),
    (['--config.branching=(2, (1, "a"))', _TREES], "'a'"),
    (['--config.branching=(2, (1, 1, 1))', _TREES], 'is of 3 nodes'),
    (['--config.branching=(2, (0,))', _TREES], 'at least 1, got (2, (0,))'),
    (['--config.branching=(9, 9, 9, 9, 9)', _TREES], '9x9x9x9x9'),
    (['--config.branching=(63, 1)', _TREES], '64 positions'),
    (
      ['--config.branching=(600,)', '--config.target={root}/long', _TREES],
      '600 candidates, more than the 512 tokens',
    ),
    (['--config.branching=(2, 2)'], 'TokenVerifier verifies chains'),
    (['--config.law=deterministic', _TREES], "got law 'deterministic'"),
    (['--config.law=nope'], "law: got 'nope'"),
    (['--config.drafter=nope'], 'expected ngram, ngram_or_draft, lookahead or'),
    (
      _NGRAM[:1],
      "its law is 'deterministic', got 'iid'; naive verifies it",
    ),
    (_NGRAM[:2], 'cannot correct'),
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
    (['--config.drafter=lookahead'], "its law is 'deterministic'"),
    (
      ['--config.lookup.window=0', *_NGRAM[1:], '--config.drafter=lookahead'],
      'window: got 0',
    ),
    (['--config.seed=-1'], 'seed'),
    (['--config.prompts=/no/such.json'], 'prompts /no/such.json: No such file'),
    (['--prompts_file=/no/such/file'], '/no/such/file'),
    (['--prompt=x', '--prompts_file=y'], 'not both'),
    (['--prompt='], 'empty'),
    (['--prompt=' + 'x = 1\n' * 400], '64 positions'),
    (['--config.draft={root}/small'], 'tokens differ, the first is'),
    (['--config.draft={root}/turned'], 'tokenizer'),
    (['--config.target={root}/cut'], 'cut/model.safetensors'),
    (['--config.target={root}/nowhere'], 'nowhere'),
    (['--config.target={root}'], 'config.json'),
    (['--workdir={root}/target/config.json/run'], 'config.json/run'),
    (['--workdir={root}/target'], 'something else'),
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
    ([], 'config'),
    (['--config=configs/nope.py'], 'nope.py'),
    (['--config=configs/quickstart.py:nope'], "'nope'"),
    (['--config=configs/pretrain_pycode.py:smoke'], 'batch_size'),
  ],
)
def test_config_file_is_refused(refused, tmp_path, flags, words):
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
  assert not (workdir / 'metrics.jsonl').exists()


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--config.kind=nope'], "'nope'"),
    (['--config.nope=1'], 'nope'),
    (['--config.groups=33'], 'more than the 32 positions'),
    (['--config.ahead=0'], 'ahead: got 0'),
    (['--config.length=65'], 'length 65 exceeds the 64 positions'),
    (['--config.continuation_batch=0'], 'continuation_batch'),
    (['--config.temperature=-1.0'], 'temperature: got -1.0'),
    (['--config.target={root}/nowhere'], 'nowhere'),
    (['--config.target={root}/cut'], 'cut/model.safetensors'),
    (['--config.corpus=/no/such/folder'], '/no/such/folder'),
    (['--config.num_continuations=33'], 'a multiple of the batch size 32'),
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
  assert not (workdir / 'metrics.jsonl').exists()


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--config.num_prompts=0'], 'num_prompts'),
    (['--config.tasks=("/no/such.json",)'], '/no/such.json'),
    (['--config.tasks=("README.md",)'], 'expected one of code'),
    (['--config.tasks=(1,)'], 'tasks: got 1'),
    (['--config.tasks=()'], 'tasks: got none'),
    (['--config.tasks=("humaneval",)', '--config.data=tests'], 'published at'),
    (['--config.tasks=("code", "code")'], 'no task twice'),
    (['--config.samples=0'], 'samples'),
    (['--config.chat=true'], 'no chat template'),
    (['--config.plot=nope'], 'nope'),
    (['--config.top_p=0.0'], 'top_p'),
    (['--config.draft={root}/small'], 'tokens differ, the first is'),
    (['--config=configs/quickstart.py:smoke'], 'config'),
  ],
)
def test_evaluate_refuses(refused, folders, tmp_path, flags, words):
  flags = [flag.replace('{root}', str(folders)) for flag in flags]
  workdir = tmp_path / 'run'
  defaults = [
    '--config=configs/paper_mcsd_figure4.py:smoke',
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
    '--config=configs/paper_mcsd_figure4.py:smoke',
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
  """The forked ones above share an interpreter's start; this one does not."""
  ended = subprocess.run(
    [sys.executable, 'launch/decode.py', _QUICK, '--config.nope=1'],
    capture_output=True,
    text=True,
    check=False,
  )
  assert ended.returncode == 2
  assert ended.stderr.count('\n') == 1 and 'nope' in ended.stderr
