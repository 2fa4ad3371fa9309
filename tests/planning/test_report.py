"""Reports of plans whose programs are not compiled but made up."""

import dataclasses
import json
import runpy

import pytest

from specsamp.planning import compile, plan, report
from specsamp.planning.compile import Compiled
from specsamp.planning.work import Collective

_REDUCES = (Collective('all-reduce', 81920, 161),)


def _compiled(program, topology, weights=8 * 2**30):
  return Compiled(
    topology, program, weights, 2**29, 2**28, 0, _REDUCES, 80, 58.0
  )


@pytest.fixture
def job(tmp_path):
  values = runpy.run_path('configs/chinchilla.py')['get_config']('predict')
  values = values.to_dict() | {'compare': ('v5p-32',)}
  times = tmp_path / 'times.json'
  times.write_text('{"score_ms": 14.0}')
  return plan.prepare(values | {'measured': str(times)}, ['v4:2x2x4'])


def test_report(job, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(
    compile,
    'compile_program',
    lambda program, target, draft, topology: _compiled(program, topology),
  )
  object.__setattr__(job.config, 'compile', True)
  job.run(tmp_path)
  text = (tmp_path / 'report.md').read_text()
  for words in (
    '# Chinchilla', '## Memory of a chip', '## Collectives', '## Times',
    '## Speedups', '## Paper and plan', '## Published speedups, inverted',
    '![prices](prices.png)', 'τ: tokens per loop',
  ):  # fmt: skip
    assert words in text
  assert 'runs the collectives as predicted: 161 all-reduce of 81920' in text
  printed = capsys.readouterr().out
  assert 'Memory of a chip' in printed and 'report.md' in printed

  summary = json.loads((tmp_path / 'summary.json').read_text())
  assert [row['part'] for row in summary['memory']] == list(compile.KINDS)
  row = summary['memory'][0]
  assert (row['total GiB'], row['fits']) == (8.75, 'yes')
  assert row['HBM GiB'] == pytest.approx(30.75)
  row = summary['collectives'][0]
  assert (row['kind'], row['count']) == ('all-reduce', 161)
  assert row['a layer'] == pytest.approx(161 / 80)
  target, score, *_ = summary['times']
  causes = ('memory ms', 'compute ms', 'collectives ms', 'step ms')
  memory, compute, collectives, step = (score[name] for name in causes)
  total = max(memory, compute) + collectives + step
  assert score['predicted ms'] == pytest.approx(total)
  assert score['measured ms'] == 14.0 and 'measured ms' not in target
  row = summary['speedups'][0]
  assert row['best γ'] == max(range(1, 11), key=lambda gamma: row[f'γ={gamma}'])
  assert {row['topology'] for row in summary['speedups']} == {
    'v4:2x2x4', 'v5p:2x2x4',
  }  # fmt: skip


def test_a_program_that_does_not_fit(job):
  (where,) = job.slices
  program = job.programs(where)[0]
  assert report.memory_row(_compiled(program, where, 2**35))['fits'] == 'no'


def test_unlike_collectives_are_reported(job):
  (where,) = job.slices
  scoring_pass = dataclasses.replace(job.programs(where)[1], batch=2)
  line = job._compare_collectives(_compiled(scoring_pass, where))
  assert 'UNLIKE predicted: 161 all-reduce of 81920 bytes against' in line
