"""Tables and figures of the papers, run completely in their smallest size.

They run in one process, so that configs share compiled programs.
"""

import importlib.util
import json
import pathlib

import pytest
from testing import shallow

from specsamp import zoo
from specsamp.drafting.trained import KINDS
from specsamp.experiments import compare

pytestmark = pytest.mark.extended

_PAPERS = pathlib.Path('configs/papers')
_CONFIGS = [
  # test_evaluate.py searches trees.
  *(
    path for path in sorted(_PAPERS.glob('*/*.py')) if path.stem != 'best_tree'
  ),
  pathlib.Path('configs/completions.py'),
  pathlib.Path('configs/humaneval.py'),
  pathlib.Path('configs/drafters.py'),
  pathlib.Path('configs/dynamic_trees.py'),
  pathlib.Path('configs/spec_bench.py'),
]
# Configs without trained drafters, which run with a smaller pair here.
_ANY_PAIR = {
  *_PAPERS.glob('mcsd/*.py'),
  *_PAPERS.glob('chinchilla/*.py'),
  *_PAPERS.glob('llama31/*.py'),
  pathlib.Path('configs/spec_bench.py'),
}
_MAX_METHODS = 2  # of a config; all with --slow
# The widest table, of which some drafters run; all with --slow.
_WIDEST = _PAPERS / 'parallelspec/table1.py'
_SOME = {'', 'ngram', 'medusa', 'medusa_parallel', 'eagle_parallel'}


@pytest.fixture(autouse=True)
def _shallow(monkeypatch):
  monkeypatch.setattr(zoo, 'load', shallow.zoo_load())


def _job(path, data, folders, arg='smoke', whole=True):
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  values = module.get_config(arg).to_dict() | {'data': str(data)}
  if path in _ANY_PAIR:
    values |= {'target': f'{folders}/target', 'draft': f'{folders}/draft'}
    values['max_prompt_tokens'] = min(values['max_prompt_tokens'], 40)
    values['methods'] = [
      method
      for method in values['methods']
      if method.get('drafter') not in KINDS
    ]
  methods = values['methods']
  if path == _WIDEST and not whole:
    values['methods'] = [m for m in methods if m['drafter'] in _SOME]
  elif not whole:
    values['methods'] = methods[:: -(-len(methods) // _MAX_METHODS)]
  return compare.prepare(values)


def test_trees_of_parallelspec(data, folders):
  """In full size they have 25 tokens and fit drafter, law and verifier."""
  trees = {
    (method.name, method.label.tree.size - 1, method.label.tree.depth)
    for method in _job(_WIDEST, data, folders, arg=None).methods
    if method.name != 'Lookahead' and not method.label.tree.is_chain
  }
  assert trees == {
    ('Medusa', 25, 5),
    ('Medusa + ParallelSpec', 25, 5),
    ('Hydra', 25, 5),
    ('EAGLE', 25, 5),
    ('EAGLE + ParallelSpec', 25, 5),
    ('EAGLE + ParallelSpec, 3 layers', 25, 9),
  }


@pytest.mark.parametrize(
  'whole',
  [
    pytest.param(False, id='some'),
    pytest.param(True, id='all', marks=pytest.mark.slow),
  ],
)
@pytest.mark.parametrize(
  'path', _CONFIGS, ids=lambda path: f'{path.parent.name}-{path.stem}'
)
def test_it_ends(path, whole, data, folders, tmp_path):
  if path == _PAPERS / 'mcsd/figure4.py' and not whole:
    pytest.skip('test_evaluate.py runs it as a process')
  job = _job(path, data, folders, whole=whole)
  job.run(tmp_path, allow_code_execution=True)
  names = {file.name for file in tmp_path.iterdir()}
  assert {'metrics.jsonl', 'report.md', 'scores.jsonl', 'summary.json'} <= names
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
  if 'xsum' in tasks:
    assert 'ROUGE-2' in report
  if 'qa' in tasks:
    assert all(f'{name} ' in report for name in tasks)
