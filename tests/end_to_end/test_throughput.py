"""A queue timed both ways through the launcher."""

import json

import pytest
from testing import launching, shallow

from specsamp import zoo
from specsamp.experiments import throughput, throughput_rows
from specsamp.utils import progress

_CONFIG = '--config=configs/throughput.py:smoke'


@pytest.fixture(autouse=True)
def pair(monkeypatch):
  """In place of the embedded one: little of it is to be compiled."""
  monkeypatch.setattr(zoo, 'load', shallow.zoo_load())


def test_both_ways_emit_the_same(tmp_path):
  ended = launching.run_here('throughput', _CONFIG, f'--workdir={tmp_path}/run')
  assert ended.code == 0, ended
  assert 'the same text for 8 of 8' in ended.out
  summary = json.loads((tmp_path / 'run' / 'summary.json').read_text())
  rows = {(row['way'], row['method']): row for row in summary['runs']}
  assert len(rows) == 4
  assert rows['batches', 'plain']['over_batches'] == 1
  assert rows['engine', 'plain']['over_plain'] == 1
  assert all(row['tokens_per_second'] > 0 for row in rows.values())
  lines = (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()
  assert len(lines) == 4


def test_a_chosen_length_beside_fixed_ones(tmp_path):
  ended = launching.run_here(
    'throughput',
    _CONFIG,
    '--config.adaptive=true',
    '--config.batches=false',
    '--config.shuffled=false',
    '--config.temperatures=(0.0,1.0)',
    '--config.num_prompts=3',
    f'--workdir={tmp_path}/run',
  )
  assert ended.code == 0, ended
  summary = json.loads((tmp_path / 'run' / 'summary.json').read_text())
  rows = {(row['part'], row['method']): row for row in summary['runs']}
  parts = 'code, greedy', 'code, t=1, top-p 0.95', 'all'
  methods = 'plain', 'γ=4', 'γ of 0, 4'
  assert list(rows) == [(part, method) for part in parts for method in methods]
  assert {row['way'] for row in rows.values()} == {'engine'}
  assert rows['all', 'γ=4']['over_fixed'] == 1
  for (_, method), row in rows.items():
    least = 0 if method == 'γ of 0, 4' else 4
    deepest = 0 if method == 'plain' else 4
    assert min(least, deepest) <= row['drafted_per_round'] <= deepest
    assert 1 <= row['block_efficiency'] <= 1 + row['drafted_per_round']
  lines = (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()
  assert len(lines) == 2 * 3
  assert 'over best γ' in ended.out and 'over batches' not in ended.out
  assert 'A round of 0, 4 drafted tokens was timed at ' in ended.out


def test_a_soak_compiles_nothing(tmp_path):
  ended = launching.run_here(
    'throughput',
    _CONFIG,
    '--config.soak=30',
    f'--workdir={tmp_path}/run',
  )
  assert ended.code == 0, ended
  summary = json.loads((tmp_path / 'run' / 'summary.json').read_text())
  assert (summary['requests'], summary['compiled']) == (30, 0)
  assert summary['warm_up'] > 0 and summary['cancelled'] > 0
  assert summary['texts'] > 30 and summary['tokens'] > 30
  assert 0 < summary['memory'] <= summary['most']
  lines = (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()
  assert len(lines) == 30
  assert (tmp_path / 'run' / 'soak.png').read_bytes().startswith(b'\x89PNG')
  assert '0 programs compiled' in ended.out


@pytest.mark.parametrize(
  ('flag', 'words'),
  [
    ('soak=-1', ['soak', '-1']),
    ('slots=0', ['slots', '0']),
    ('temperatures=(-1.0,)', ['temperature', '-1.0']),
    ('draft_lens=(4,4)', ['draft_lens', '(4, 4)', 'none twice']),
    ('draft_lens=(0,4)', ['draft_lens', 'got 0']),
    ('drafter=nothing', ['nothing']),
    ('spread=9.0', ['spread', '9.0', '8']),
    ('max_new_tokens=100000', ['max_prompt_tokens', '100000']),
  ],
)
def test_mistakes_are_told_in_a_line(tmp_path, flag, words):
  ended = launching.run_here(
    'throughput', _CONFIG, f'--config.{flag}', f'--workdir={tmp_path}/run'
  )
  assert ended.code == 2 and not (tmp_path / 'run').exists()
  assert all(word in ended.err for word in words), ended.err


def test_every_request_has_a_seed(tmp_path):
  """Four prompts at two temperatures are eight."""
  ended = launching.run_here(
    'throughput',
    _CONFIG,
    '--config.temperatures=(0.0,1.0)',
    f'--config.seed={2**31 - 7}',
    f'--workdir={tmp_path}/run',
  )
  assert ended.code == 2 and not (tmp_path / 'run').exists()
  assert f'seed: got {2**31 - 7}' in ended.err, ended.err


def test_budgets_are_spread():
  config = throughput.ThroughputConfig(
    target='', draft='', data='', num_prompts=64, max_prompt_tokens=64,
    max_new_tokens=128, seed=0, top_p=1.0, drafter='', draft_lens=(4,),
    adaptive=False, temperatures=(1.0,), prompts=('code',), shuffled=True,
    spread=8.0, slots=8, batches=True, rounds=16, repeats=1,
  )  # fmt: skip
  budgets = config.budgets(64)
  assert (len(budgets), min(budgets), max(budgets)) == (64, 16, 128)
  assert budgets != sorted(budgets)


def test_bursts_go_by_turns():
  """The next one is of the way that has emitted the least."""
  order = []

  def decoding(name, bursts):
    for new in bursts:
      order.append(name)
      yield new
    return [[name]]

  bar = progress.bar('decoding', total=12, unit='tok')
  ended = throughput.by_turns(
    [decoding('slow', [1] * 6), decoding('fast', [3, 0, 3])], bar
  )
  assert ''.join(each[0] for each in order) == 'sfsssffss'
  assert [texts for _, texts in ended] == [[['slow']], [['fast']]]
  assert all(taken > 0 for taken, _ in ended)
  assert bar.n == 12


def test_rates_are_compared_turn_by_turn():
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
  rows = throughput_rows.summarize(
    {
      (part, *way): [
        throughput_rows.Run(scale * each, 4, 8, 6) for each in found
      ]
      for part, scale in (('a', 1.0), ('b', 3.0))
      for way, found in seconds.items()
    },
    {'a': 8, 'b': 8},
    ['slow', 'fast'],
  )
  found = {(row.part, row.way, row.method): row for row in rows}
  assert len(found) == 3 * len(seconds) + 2
  assert found['a', 'engine', 'plain'].over_batches == 2
  assert found['a', 'engine', 'chosen'].over_batches is None
  assert found['a', 'engine', 'fast'].over_plain == 2
  assert found['b', 'engine', 'chosen'].over_fixed == 1.25
  assert found['a', 'batches', 'plain'].tokens_per_second == 3
  assert found['a', 'batches', 'plain'].block_efficiency == 2.5
  assert found['a', 'batches', 'plain'].drafted_per_round == 2
  # Both parts one after the other.
  assert found['all', 'engine', 'plain'].tokens_per_second == 3


def test_the_best_length_of_each_part():
  run = throughput_rows.Run
  runs = {
    ('a', 'engine', 'plain'): [run(4.0, 6, 0, 0)],
    ('b', 'engine', 'plain'): [run(4.0, 6, 0, 0)],
    ('a', 'engine', 'γ=2'): [run(1.0, 2, 4, 4)],
    ('b', 'engine', 'γ=2'): [run(3.0, 4, 8, 2)],
    ('a', 'engine', 'γ=4'): [run(2.5, 2, 8, 4)],
    ('b', 'engine', 'γ=4'): [run(2.0, 3, 12, 3)],
  }
  rows = throughput_rows.summarize(runs, {'a': 6, 'b': 6}, ['γ=2', 'γ=4'])
  *_, known = rows
  assert (known.part, known.method) == ('all', 'the best γ of each part')
  assert known.tokens_per_second == 4
  assert known.over_plain == 8 / 3 and known.over_fixed == 4 / 3
  assert known.block_efficiency == 1 + 7 / 5
  assert known.drafted_per_round == 16 / 5
