"""Comparisons: the files that they write, and that they resume."""

import importlib.util
import json
import pathlib
import shlex

import pytest

from specsamp.errors import UserError
from specsamp.evaluation import timing
from specsamp.experiments import compare, measured_trees

_PAPERS = pathlib.Path('configs/papers')
_TABLE2 = _PAPERS / 'parallelspec/table2.py'  # its argument names drafters
_CONFIGS = [
  *sorted(_PAPERS.glob('*/*.py')),
  pathlib.Path('configs/humaneval.py'),
  pathlib.Path('configs/spec_bench.py'),
]
_each = pytest.mark.parametrize(
  'path', _CONFIGS, ids=lambda path: f'{path.parent.name}-{path.stem}'
)


def _get_config(path, arg):
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config(arg)


@_each
@pytest.mark.parametrize('arg', [None, 'smoke'])
def test_every_config_can_run(path, arg, data):
  """Checks everything except the decoding."""
  if path == _TABLE2 and not arg:
    with pytest.raises(ValueError, match='drafter'):
      _get_config(path, arg)
    return
  values = _get_config(path, arg).to_dict() | {'data': str(data)}
  job = compare.prepare(values)
  assert len(job.methods) > 1 and job.tasks
  with pytest.raises((ValueError, UserError), match='smoke|nope'):
    compare.prepare(_get_config(path, 'nope').to_dict())


@_each
def test_every_config_knows_the_papers_pairs(path, data):
  """Their weights are not here: an error names their folders."""
  if path == _TABLE2:
    pytest.skip('it compares drafters of the embedded target')
  for pair in ('vicuna-7b+vicuna-68m', 'llama-33b+llama-68m,smoke'):
    values = _get_config(path, pair).to_dict()
    assert values['target'] == f'MODELS/{pair.partition("+")[0]}'
    with pytest.raises(UserError, match='MODELS'):
      compare.prepare(values | {'data': str(data)})


def test_a_comparison(launch, folders, tmp_path):
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
  ended = launch('evaluate', *flags)
  assert ended.code == 0, ended.err
  assert '## Losslessness' not in ended.out and '|' not in ended.out
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
  assert f'\npython launch/evaluate.py {command}\n' in text
  assert [found['branching'] for found in summary['bounds']] == ['2x2', '1x4']
  assert all(0 < found['at_most'] <= 1 for found in summary['bounds'])

  # Nothing is left to decode.
  path = workdir / 'metrics.jsonl'
  again = path.read_text().splitlines()
  assert len(again) == 9
  assert launch('evaluate', *flags).code == 0
  assert path.read_text().splitlines() == again
  # Another comparison does not resume in this folder.
  ended = launch('evaluate', *flags, '--config.seed=1')
  assert ended.code == 2 and 'another config (other seed)' in ended.err


def test_search_and_passes(monkeypatch, folders, tmp_path):
  # Compilation dominates: few sizes, and the times of one tree for all.
  monkeypatch.setattr(measured_trees, 'CANDIDATES', 2)
  monkeypatch.setattr(measured_trees, 'SIZES', (1, 3))
  measure, timed = timing.measure, []

  def measure_once(*args):
    timed[:] = timed or measure(*args, repeats=1)
    return timed

  monkeypatch.setattr(timing, 'measure', measure_once)
  values = dict(
    target=f'{folders}/target',
    draft=f'{folders}/draft',
    max_prompt_tokens=40,
    plot='by_budget',  # which has branchings only
    passes=True,
  )
  config = _get_config(_PAPERS / 'mcsd/best_tree.py', 'smoke')
  values |= config.to_dict() | values
  # The other temperature has the same programs.
  values['methods'] = [m for m in values['methods'] if m['temperature']]
  compare.prepare(values).run(tmp_path)
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
