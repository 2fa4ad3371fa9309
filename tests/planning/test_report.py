"""Reports of made-up plans."""

import dataclasses
import json

import pytest

from specsamp.planning import latency, parts, report, speculation
from specsamp.planning.report import Plan
from specsamp.planning.topology import parse
from specsamp.planning.work import NO_KERNELS, Collective, Part, Work


def _plan(name, measured):
  topology = parse(name)
  reduces = (Collective('all-reduce', 16384, 161),)
  part = Part(
    'scoring pass', 8 * 2**30, 2**29, 2**28, 0, reduces, NO_KERNELS, 80, 58.0
  )
  work = Work(2**33, 2**29, 1e12, reduces, 0)
  return Plan(
    topology,
    (part,),
    {'scoring pass': latency.predict(work, topology)},
    measured,
    {0.8: speculation.curve(0.8, 1.8, lambda gamma: 14.0, 14.1)},
  )


@pytest.fixture
def written(tmp_path):
  plans = [_plan('v4-32', {'scoring pass': 14.0}), _plan('v5e-4', {})]
  figure = {'XSum': plans[0].curves[0.8]}
  printed = report.write(
    tmp_path,
    'A plan',
    plans,
    paper=report.paper_rows([('70B', 'v4:2x2x4', 14.1, 15.0)]),
    implied=report.implied_rows({'XSum': 1.92}, 21.7, 14.1, 4),
    figure=figure,
    sections=['A remark.'],
  )
  summary = json.loads((tmp_path / 'summary.json').read_text())
  return tmp_path, summary, printed


def test_files(written):
  folder, _, printed = written
  text = (folder / 'report.md').read_text()
  for words in (
    '# A plan', '## Memory of a chip', '## Collectives', '## Times',
    '## Speedups', '![speedups](speedups.png)', '## Paper and plan',
    '## Published speedups, inverted', '![figure](figure.png)', 'A remark.',
  ):  # fmt: skip
    assert words in text
  for name in ('speedups.png', 'figure.png'):
    assert (folder / name).stat().st_size > 10_000
  assert 'Memory of a chip' in printed and 'τ: tokens a loop' in printed


def test_memory(written):
  rows = written[1]['memory']
  assert [row['total GiB'] for row in rows] == [8.75, 8.75]
  assert [row['HBM GiB'] for row in rows] == pytest.approx([30.75, 15.75])
  assert all(row['fits'] for row in rows)
  assert '| yes' in report.table(rows)


def test_does_not_fit():
  plan = _plan('v5e-4', {})
  (part,) = plan.parts
  (row,) = report.memory_rows(
    Plan(
      plan.topology,
      (Part(part.name, 2**34, 0, 0, 0, (), NO_KERNELS, 80, 1.0),),
      {}, {}, {},
    )
  )  # fmt: skip
  assert not row['fits'] and '| no' in report.table([row])


def test_collectives(written):
  row = written[1]['collectives'][0]
  assert (row['kind'], row['count'], row['bytes each']) == (
    'all-reduce', 161, 16384,
  )  # fmt: skip
  assert row['a layer'] == pytest.approx(161 / 80)
  assert row['kB a layer'] == pytest.approx(161 / 80 * 16.384)


def test_times(written):
  first, second = written[1]['times']
  parts = ('memory ms', 'compute ms', 'collectives ms', 'step ms')
  memory, compute, collectives, step = (first[name] for name in parts)
  assert first['predicted ms'] == pytest.approx(
    max(memory, compute) + collectives + step
  )
  assert first['measured ms'] == 14.0 and 'measured ms' not in second


def test_speedups_and_paper(written):
  summary = written[1]
  row = summary['speedups'][0]
  assert row['best γ'] == max(range(1, 11), key=lambda g: row[f'γ={g}'])
  assert len(summary['curves']['speedup at α=0.8']['v4:2x2x4']) == 10
  assert summary['paper'][0]['plan / paper'] == pytest.approx(15 / 14.1)
  implied = summary['implied'][0]
  assert implied['implied τ'] == pytest.approx(21.7 / 14.1 * 1.92)
  assert sum('(best)' in row['XSum'] for row in summary['figure']) == 1


def test_parts_of_others_are_not_believed():
  """What stands in parts.jsonl is compiled again unless it is a part."""
  (part,) = _plan('v5e-4', {}).parts
  values = json.loads(json.dumps(dataclasses.asdict(part)))
  assert parts.is_part(['v5e:2x2', values])
  assert parts.from_plain(values) == part
  for value in (None, True, 'x', 1.5, [], {}, float('nan'), 10**400):
    assert not parts.is_part(value)
    assert not parts.is_part(['v5e:2x2', value])
    assert not parts.is_part([value, values]) or value == 'x'
    for name, was in values.items():
      fits = type(value) is type(was) or (name == 'seconds' and value == 1.5)
      if not fits or value != value or value == 10**400:
        assert not parts.is_part(['v5e:2x2', values | {name: value}])
  assert not parts.is_part(['v5e:2x2', values | {'more': 1}])
