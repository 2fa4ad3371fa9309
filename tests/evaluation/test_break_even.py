from types import SimpleNamespace

import pytest

from specsamp.drafting import TokenTree
from specsamp.evaluation import break_even, cpu_load


def _row(name, speedup, sampling='greedy'):
  return SimpleNamespace(
    task='code',
    method=name,
    is_baseline=name == 'plain',
    sampling_name=sampling,
    draft_name='γ=4',
    speedup=speedup,
    tree=TokenTree.chain(0 if name == 'plain' else 4),
    round_ms=10.0 if name == 'plain' else 35.0,
    block_efficiency=1.0 if name == 'plain' else 3.2,
  )


def _cost(sampling='greedy'):
  return SimpleNamespace(
    sampling_name=sampling, tree=TokenTree.chain(4), score_ms=29.0
  )


def test_a_draft_that_does_not_pay_says_what_would():
  rows = [_row('plain', 1.0), _row('draft', 0.91)]
  (line,) = break_even.sentences(rows, [_cost()], 'draft')
  assert 'no draft gained' in line and 'and verifying 0.6' in line
  assert '5 tokens costs 2.9 steps' in line
  assert 'above 3.5' in line and 'it was 3.20.' in line


def test_a_draft_whose_rounds_were_not_timed():
  rows = [_row('plain', 1.0), _row('draft', 0.9)]
  for costs, method in (
    ([], ''),
    ([_cost('t=1')], 'draft'),
    ([_cost()], 'another draft'),
  ):
    (line,) = break_even.sentences(rows, costs, method)
    assert 'a round costs 3.5 steps' in line and 'tokens costs' not in line


def test_a_gain_of_rounds_that_is_lost_elsewhere():
  told = break_even.sentence(5, 10.0, 12.0, 24.0, 2.6)
  assert 'above 2.4' in told and 'cut at the end cost more' in told
  told = break_even.sentence(5, 10.0, None, 12.0, 1.1)
  assert told.startswith('a round costs 1.2 steps') and 'cut' not in told


def test_a_gain_is_explained_by_the_draft_that_was_timed():
  rows = [_row('plain', 1.0), _row('draft', 1.2), _row('n-grams', 1.4)]
  (line,) = break_even.sentences(rows, [_cost()], 'draft')
  assert 'n-grams γ=4 is fastest, 1.40 times' in line
  assert 'With draft γ=4 a pass over 5 tokens costs 2.9' in line
  assert 'cut at the end' not in line


def test_nothing_to_say():
  assert break_even.sentences([_row('plain', 1.0)], [_cost()], 'draft') == []


def _stat(tmp_path, monkeypatch, own):
  """Returns a function that sets CPU ticks (user, idle, steal) and own time."""
  path = tmp_path / 'stat'
  monkeypatch.setattr(cpu_load, '_STAT', path)
  monkeypatch.setattr(cpu_load.os, 'sysconf', lambda _: 100)
  monkeypatch.setattr(cpu_load.os, 'times', lambda: (own[0], 0, 0, 0, 0))
  return lambda user, idle, steal: path.write_text(
    f'cpu {user} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu0 1 1 1 1\n'
  )


def test_other_processes_are_seen(tmp_path, monkeypatch):
  own = [1.0]
  set_ticks = _stat(tmp_path, monkeypatch, own)
  set_ticks(1000, 1000, 0)
  meter = cpu_load.Meter()
  # 10 s on all cores: 4 s idle, 1 s stolen, 5 s busy, 2 of them here.
  set_ticks(1500, 1400, 100)
  own[0] = 3.0
  assert meter.share() == pytest.approx(0.4)
  assert '40%' in meter.warning()
  own[0] = 6.5
  assert meter.share() == 0 or meter.warning() == ''


def test_an_unknown_load_is_no_warning(tmp_path, monkeypatch):
  monkeypatch.setattr(cpu_load, '_STAT', tmp_path / 'nothing')
  meter = cpu_load.Meter()
  assert meter.share() is None and meter.warning() == ''
