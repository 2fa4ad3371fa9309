"""`launch/evaluate.py` and its configs: files, searches, papers' tables."""

import json
import pathlib
import runpy
import shlex

import pytest
from testing import shallow
from testing.launching import run_here

from specsamp import zoo
from specsamp.drafting.trained import KINDS
from specsamp.errors import UserError
from specsamp.evaluation import timing
from specsamp.experiments import compare, decode, measured_trees
from specsamp.utils import home

_PAPERS = 'configs/papers'
_TABLE1 = f'{_PAPERS}/parallelspec/table1.py'
_TABLE2 = f'{_PAPERS}/parallelspec/table2.py'  # its argument names drafters
_CONFIGS = [
  *(p.as_posix() for p in sorted(pathlib.Path(_PAPERS).glob('*/*.py'))),
  'configs/humaneval.py',
  'configs/spec_bench.py',
]


def _values(path, arg, **changes):
  return runpy.run_path(path)['get_config'](arg).to_dict() | changes


@pytest.mark.parametrize('path', _CONFIGS)
def test_every_config_can_run(path, data):
  """Checks everything except the decoding."""
  places = dict(data=str(data))
  for arg in ('smoke',) if path == _TABLE2 else (None, 'smoke'):
    job = compare.prepare(_values(path, arg, **places))
    assert len(job.methods) > 1 and job.tasks
  if path == _TABLE2:
    with pytest.raises(UserError, match='drafter'):
      _values(path, '')
    return
  with pytest.raises(UserError, match='smoke'):
    _values(path, 'nope')
  # The weights of the papers' pairs are not here.
  for pair in ('vicuna-7b+vicuna-68m', 'llama-33b+llama-68m,smoke'):
    values = _values(path, pair, **places)
    assert values['target'] == f'MODELS/{pair.partition("+")[0]}'
    with pytest.raises(UserError, match='MODELS'):
      compare.prepare(values)


def test_the_config_of_code_edits_finds_its_prompts():
  """Held-out files of this Python have enough edits."""
  values = _values('configs/ngram_code_edit.py', 'full')
  job = decode.prepare(values)
  assert len(job.prompts) == values['num_prompts']
  depths = [drafter.tree.depth for _, drafter in job.compared]
  assert depths == [*values['draft_lens'], len(values['branching'])]


def test_a_comparison(folders, tmp_path):
  workdir = tmp_path / 'run'
  flags = (
    '--config=configs/papers/mcsd/figure4.py:smoke',
    f'--workdir={workdir}',
    f'--config.target={folders}/target',
    f'--config.draft={folders}/draft',
    '--config.max_prompt_tokens=40',
    '--config.num_prompts=3',
    '--config.bounds=True',
  )
  ended = run_here('evaluate', *flags)
  assert ended.code == 0, ended.err
  assert '|' not in ended.out
  assert sorted(path.name for path in workdir.iterdir()) == [
    'by_budget.png',
    'config.json',
    'metrics.jsonl',
    'report.md',
    'scores.jsonl',
    'summary.json',
    'texts.html',
  ]
  summary = json.loads((workdir / 'summary.json').read_text())
  runs = summary['runs']
  assert [(run['branching'], run['nodes']) for run in runs] == [
    ('', 1),
    ('2x2', 7),
    ('1x4', 6),
  ]
  for run in runs:
    assert run['tokens'] == 3 * 16 and run['sequences'] == 3
  text = (workdir / 'report.md').read_text()
  assert '2x2' in text and 'by_budget.png' in text
  assert '## The first token of a draft' in text
  command = shlex.join(flag for flag in flags if 'workdir' not in flag)
  root = f'{home.folder()}/'
  assert f'\npython launch/evaluate.py {command}\n'.replace(root, '') in text
  assert [found['branching'] for found in summary['bounds']] == ['2x2', '1x4']
  assert all(0 < found['at_most'] <= 1 for found in summary['bounds'])
  # Another comparison does not resume in this folder.
  ended = run_here('evaluate', *flags, '--config.seed=1')
  assert ended.code == 2 and 'another config (other seed)' in ended.err


@pytest.mark.usefixtures('parts')
def test_user_defined_parts(folders, tmp_path, capsys):
  line = {'prompt': '1 + 1 =', 'reference': '2', 'id': 'one'}
  (tmp_path / 'own.jsonl').write_text(json.dumps(line))
  method = dict(
    name='own words', branching=(1, 1), temperature=1.0, law='iid',
    drafter='parts:own_words', verifier='parts:FirstToken',
  )  # fmt: skip
  values = _values(
    f'{_PAPERS}/mcsd/figure4.py',
    'smoke',
    target=f'{folders}/target',
    draft=f'{folders}/draft',
    max_new_tokens=8,
    num_prompts=2,
    methods=(method,),
    tasks=('parts:sums', f'{tmp_path}/own.jsonl'),
    plot='by_method',
  )
  job = compare.prepare(values)
  assert 'own: 1 of the 2 requested prompts' in capsys.readouterr().out
  job.run(tmp_path)
  read = lambda name: [
    json.loads(line) for line in (tmp_path / name).read_text().splitlines()
  ]
  scores = [name for line in read('scores.jsonl') for name in line['scores']]
  assert {*scores} == {'right', 'exact match'}
  # If a part has changed, only its lines are decoded again.
  before = read('metrics.jsonl')
  module = tmp_path / 'parts/parts.py'
  module.write_text(module.read_text() + '\n')
  compare.prepare(values).run(tmp_path)
  after = read('metrics.jsonl')
  changed = [line['method'] for line in after if line not in before]
  assert changed == ['own words'] * 3 and len(after) == len(before) == 6


@pytest.mark.extended
def test_search_and_passes(monkeypatch, folders, tmp_path):
  # Compilation dominates: few sizes, and the times of one tree for all.
  monkeypatch.setattr(measured_trees, 'CANDIDATES', 2)
  monkeypatch.setattr(measured_trees, 'SIZES', (1, 3))
  measure, timed = timing.measure, []

  def measure_once(*args):
    timed[:] = timed or measure(*args, repeats=1)
    return timed

  monkeypatch.setattr(timing, 'measure', measure_once)
  values = _values(
    f'{_PAPERS}/mcsd/best_tree.py',
    'smoke',
    target=f'{folders}/target',
    draft=f'{folders}/draft',
    max_prompt_tokens=40,
    plot='by_budget',  # which has branchings only
    passes=True,
  )
  # The other temperature has the same programs.
  values['methods'] = [m for m in values['methods'] if m['temperature']]
  job = compare.prepare(values)
  job.run(tmp_path)
  summary = json.loads((tmp_path / 'summary.json').read_text())
  methods = [run['method'] for run in summary['runs']]
  assert methods[:3] == ['autoregressive', 'speculative (SD)', 'branching']
  assert set(methods[3:]) == {'best static tree'}
  # The chain, the fastest tree, and the tree of the highest τ.
  costs = summary['parts']
  assert len(costs) in (2, 3) and costs[0]['branching'][0] == 'γ'
  assert all(cost['ideal_speedup'] > 0 for cost in costs)
  measured = json.loads((tmp_path / 'acceptance-1.json').read_text())
  assert 0 < sum(measured['acceptance']) <= 1
  text = (tmp_path / 'report.md').read_text()
  for words in ('Best static trees at t=1', 'The cost of a larger pass'):
    assert words in text
  # A resumed run measures and decodes nothing again.
  before = (tmp_path / 'metrics.jsonl').read_bytes()
  monkeypatch.setattr(timing, 'level_time', lambda *_: 1 / 0)
  job.run(tmp_path)
  assert (tmp_path / 'metrics.jsonl').read_bytes() == before


# Configs that run completely in their smallest size, in one process that
# compiles their programs once. The others run with --slow.
_SOME = {
  f'{_PAPERS}/chinchilla/table1.py',
  f'{_PAPERS}/mcsd/figure3.py',
  f'{_PAPERS}/mcsd/table2.py',
  _TABLE1,
  'configs/spec_bench.py',
}
_RUN = [
  *(path for path in _CONFIGS if 'best_tree' not in path),
  *('configs/completions.py', 'configs/drafters.py'),
  *('configs/dynamic_trees.py', 'configs/tree_rules.py'),
]
# Drafters of the widest table that run without --slow.
_DRAFTERS = {'', 'ngram', 'medusa', 'medusa_parallel', 'eagle_parallel'}


def _job(path, data, folders, arg='smoke', whole=True):
  values = _values(path, arg, data=str(data))
  # Configs without trained drafters run with a smaller pair.
  if any(x in path for x in ('mcsd', 'chinchilla', 'llama31', 'spec_bench')):
    values |= {'target': f'{folders}/target', 'draft': f'{folders}/draft'}
    values['max_prompt_tokens'] = min(values['max_prompt_tokens'], 40)
    values['methods'] = [
      method
      for method in values['methods']
      if method.get('drafter') not in KINDS
    ]
  methods = values['methods']
  if path == _TABLE1 and not whole:
    values['methods'] = [m for m in methods if m['drafter'] in _DRAFTERS]
  elif not whole:  # two
    values['methods'] = methods[:: -(-len(methods) // 2)]
  return compare.prepare(values)


@pytest.fixture
def pair(monkeypatch):
  """Replaces the embedded pair by one that compiles faster."""
  monkeypatch.setattr(zoo, 'load', shallow.zoo_load())


@pytest.mark.extended
@pytest.mark.usefixtures('pair')
@pytest.mark.parametrize(
  ('path', 'whole'),
  [
    *((path, False) for path in _RUN if path in _SOME),
    *(pytest.param(path, True, marks=pytest.mark.slow) for path in _RUN),
  ],
)
def test_a_config_runs(path, whole, data, folders, tmp_path):
  job = _job(path, data, folders, whole=whole)
  job.run(tmp_path, allow_code_execution=True)
  summary = json.loads((tmp_path / 'summary.json').read_text())
  # Every method, and the baseline of its sampling, on every task.
  laws = {method.label.sampling for method in job.methods}
  tasks = [task.name for task in job.tasks]
  several = ['all tasks'] * (len(tasks) > 1)
  rows = (len(laws) + len(job.methods)) * len([*tasks, *several])
  assert len(summary['runs']) == rows
  assert all(run['speedup'] > 0 for run in summary['runs'])
  assert len(summary['lossless']) == len(job.methods)
  for row in summary['lossless']:  # few sampled texts prove nothing
    expected = {'lossless'} if row['temperature'] == 0 else {'too few texts'}
    assert row['verdict'] in expected
  report = (tmp_path / 'report.md').read_text()
  for heading in ('Losslessness', 'Confidence', 'Acceptance by position'):
    assert f'## {heading}' in report
  if 'humaneval' in tasks:
    scored = (tmp_path / 'scores.jsonl').read_text().splitlines()
    why = [line['scores'].get('why') for line in map(json.loads, scored)]
    assert any(why) and '| pass@1' in report
  assert 'xsum' not in tasks or 'ROUGE-2' in report
  assert 'qa' not in tasks or all(f'{name} ' in report for name in tasks)
