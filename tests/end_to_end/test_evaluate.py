"""Comparisons: what they write, and that they go on where they were."""

import importlib.util
import json
import pathlib

import pytest

from specsamp.evaluation import comparison

_CONFIGS = sorted(pathlib.Path('configs').glob('mcsd_*.py'))


def _get_config(path, arg):
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config(arg)


@pytest.mark.parametrize('path', _CONFIGS, ids=lambda path: path.stem)
@pytest.mark.parametrize('arg', [None, 'smoke'])
def test_every_config_can_run(path, arg):
  """Everything is checked but the decoding itself."""
  job = comparison.prepare(_get_config(path, arg).to_dict())
  assert len(job.methods) > 1 and job.prompts
  with pytest.raises(ValueError, match='smoke'):
    _get_config(path, 'nope')


def test_a_comparison_and_its_resumption(launch, folders, tmp_path):
  workdir = tmp_path / 'run'
  flags = (
    '--config=configs/mcsd_figure4.py:smoke',
    f'--workdir={workdir}',
    f'--config.target={folders}/target',
    f'--config.draft={folders}/draft',
    '--config.max_prompt_tokens=40',
    '--config.num_prompts=3',
  )
  ended = launch('evaluate', *flags)
  assert ended.code == 0, ended.err
  assert '| multi-candidate | fastest' in ended.out
  assert sorted(path.name for path in workdir.iterdir()) == [
    'by_budget.png',
    'config.json',
    'metrics.jsonl',
    'report.md',
    'summary.json',
  ]
  runs = json.loads((workdir / 'summary.json').read_text())['runs']
  assert [(run['branching'], run['nodes']) for run in runs] == [
    ('', 1),
    ('2x1', 5),
    ('1x2', 4),
  ]
  for run in runs:
    assert run['tokens'] == 3 * 16 and run['sequences'] == 3
  report = (workdir / 'report.md').read_text()
  assert '2x1' in report and 'by_budget.png' in report

  # Cut off in the middle of a line.
  metrics = workdir / 'metrics.jsonl'
  whole = metrics.read_text()
  lines = whole.splitlines()
  assert len(lines) == 9
  metrics.write_text('\n'.join(lines[:5]) + '\n' + lines[5][:40])
  (workdir / 'report.md').unlink()
  ended = launch('evaluate', *flags)
  assert ended.code == 0, ended.err
  again = metrics.read_text().splitlines()
  assert again[:5] == lines[:5]  # those times stand
  said = lambda lines: [
    (line['prompt'], line['branching'], line['text'])
    for line in map(json.loads, lines)
  ]
  assert said(again) == said(lines)
  assert (workdir / 'report.md').exists()
  # Nothing left to do.
  assert launch('evaluate', *flags).code == 0
  assert metrics.read_text().splitlines() == again
  # Another comparison does not go on in this folder.
  ended = launch('evaluate', *flags, '--config.seed=1')
  assert ended.code == 2 and 'something else' in ended.err


def test_prompts_of_a_file(launch, folders, tmp_path):
  prompts = tmp_path / 'texts.json'
  prompts.write_text(json.dumps(['x = 1\n' * 200, 'def f(x):\n', 'y = ']))
  ended = launch(
    'evaluate',
    '--config=configs/mcsd_figure4.py:smoke',
    f'--workdir={tmp_path}/run',
    f'--config.target={folders}/target',
    f'--config.draft={folders}/draft',
    f'--config.prompts={prompts}',
    '--config.max_prompt_tokens=40',
    '--config.num_prompts=2',
  )
  assert ended.code == 0, ended.err
  lines = (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()
  names = {json.loads(line)['prompt'] for line in lines}
  assert names == {'texts.json:1', 'texts.json:2'}  # the first is too long
  assert {json.loads(line)['task'] for line in lines} == {'texts'}
