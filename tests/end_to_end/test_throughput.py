"""Queues and soaks through the launchers of the benchmarks."""

import json

import pytest
from testing import launching, shallow

from specsamp import zoo

_CONFIG = '--config=configs/throughput.py:smoke'


@pytest.fixture(autouse=True)
def pair(monkeypatch):
  """Replaces the embedded pair by one that compiles faster."""
  monkeypatch.setattr(zoo, 'load', shallow.zoo_load())


def _run(name, tmp_path, *flags):
  """Returns the end of a run, its summary and the lines of its log."""
  ended = launching.run_here(name, *flags, f'--workdir={tmp_path}/run')
  assert ended.code == 0, ended
  summary = json.loads((tmp_path / 'run/summary.json').read_text())
  lines = (tmp_path / 'run/metrics.jsonl').read_text().splitlines()
  return ended, summary, lines


@pytest.mark.extended
def test_both_ways_emit_the_same(tmp_path):
  ended, summary, lines = _run('throughput', tmp_path, _CONFIG)
  assert 'the same text for 8 of 8' in ended.out
  rows = {(row['way'], row['method']): row for row in summary['runs']}
  assert len(rows) == len(lines) == 4
  assert rows['batches', 'plain']['over_batches'] == 1
  assert rows['engine', 'plain']['over_plain'] == 1
  assert all(row['tokens_per_second'] > 0 for row in rows.values())


@pytest.mark.slow
def test_an_adaptive_length_and_fixed_ones(tmp_path):
  ended, summary, lines = _run(
    'throughput',
    tmp_path,
    _CONFIG,
    '--config.adaptive=true',
    '--config.batches=false',
    '--config.shuffled=false',
    '--config.temperatures=(0.0,1.0)',
    '--config.num_prompts=3',
  )
  rows = {(row['part'], row['method']): row for row in summary['runs']}
  parts = 'code, greedy', 'code, t=1, top-p 0.95', 'all'
  methods = 'plain', 'γ=4', 'γ of 0, 4'
  assert list(rows) == [(part, method) for part in parts for method in methods]
  for (_, method), row in rows.items():
    drafted = row['drafted_per_round']
    low, high = {'plain': (0, 0), 'γ=4': (4, 4)}.get(method, (0, 4))
    assert low <= drafted <= high
    assert 1 <= row['block_efficiency'] <= 1 + drafted
  assert len(lines) == 2 * 3
  assert 'over best γ' in ended.out and 'over batches' not in ended.out
  assert 'A round of 0, 4 draft tokens was timed at ' in ended.out


def test_a_soak_compiles_nothing(tmp_path):
  ended, summary, lines = _run(
    'soak',
    tmp_path,
    '--config.requests=30',
    '--config.num_prompts=4',
    '--config.max_new_tokens=8',
    '--config.slots=2',
  )
  assert (summary['requests'], summary['compiled']) == (30, 0)
  assert summary['warm_up'] > 0 and summary['cancelled'] > 0
  assert summary['texts'] > 30 and summary['tokens'] > 30
  assert 0 < summary['memory'] <= summary['most']
  assert len(lines) == 30
  assert (tmp_path / 'run/soak.png').read_bytes().startswith(b'\x89PNG')
  assert '0 programs compiled' in ended.out


@pytest.fixture(scope='module')
def throughput():
  return launching.load('throughput')


def test_rates_are_compared_turn_by_turn(throughput):
  seconds = {
    ('batches', 'plain'): [2.0, 4.0],
    ('engine', 'plain'): [1.0, 2.0],
    ('engine', 'slow'): [0.8, 1.6],
    ('engine', 'fast'): [0.5, 1.0],
    # The median of ratios is not the ratio of medians.
    ('engine', 'chosen'): [0.25, 2.0],
    ('batches', 'slow'): [1.0, 1.0],
    ('batches', 'fast'): [1.0, 1.0],
  }
  rows = throughput.summarize(
    {
      (part, *way): [[scale * taken, 4, 8, 6] for taken in turns]
      for part, scale in (('a', 1.0), ('b', 3.0))
      for way, turns in seconds.items()
    },
    {'a': 8, 'b': 8},
    ['slow', 'fast'],
  )
  rows = {(row['part'], row['way'], row['method']): row for row in rows}
  assert len(rows) == 3 * len(seconds) + 2
  assert rows['a', 'engine', 'plain']['over_batches'] == 2
  assert rows['a', 'engine', 'chosen']['over_batches'] is None
  assert rows['a', 'engine', 'fast']['over_plain'] == 2
  assert rows['b', 'engine', 'chosen']['over_fixed'] == 1.25
  assert rows['a', 'batches', 'plain']['tokens_per_second'] == 3
  assert rows['a', 'batches', 'plain']['block_efficiency'] == 2.5
  assert rows['a', 'batches', 'plain']['drafted_per_round'] == 2
  # Both parts one after the other.
  assert rows['all', 'engine', 'plain']['tokens_per_second'] == 3
  best = rows['all', 'engine', 'the best γ of each part']
  assert best['over_plain'] == 2 and best['over_fixed'] == 1
