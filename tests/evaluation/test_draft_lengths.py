"""Reports of adaptive draft lengths."""

import types

import pytest

from specsamp.evaluation import methods
from specsamp.evaluation.reporting import draft_lengths
from specsamp.evaluation.reporting.report import Table


def _line(method, draft_name, tokens, seconds, *, task='code', depths=()):
  return types.SimpleNamespace(
    method=method,
    draft_name=draft_name,
    tokens=tokens,
    seconds=seconds,
    depths=depths,
    task=task,
    sampling_name='greedy',
  )


def _lines():
  """The best fixed length is 4 for the first task, 2 for the other and both."""
  return [
    _line(methods.BASELINE, '', 100, 10.0),
    _line('m', 'γ=2', 100, 5.0),
    _line('m', 'γ=4', 100, 4.0),
    _line('m', 'chosen', 100, 4.0, depths=(0, 2, 4)),
    _line('other', 'γ=8', 100, 0.1),
    _line(methods.BASELINE, '', 100, 10.0, task='prose'),
    _line('m', 'γ=2', 100, 6.0, task='prose'),
    _line('m', 'γ=4', 100, 9.0, task='prose'),
    _line('m', 'chosen', 100, 6.0, task='prose', depths=(0, 2, 4)),
  ]


def _rows(section):
  (table,) = (part for part in section if isinstance(part, Table))
  return table.rows


def test_adaptive_lengths_against_the_best_fixed_one():
  code, prose, every = _rows(draft_lengths.against_fixed(_lines()))
  assert (code['task'], prose['task'], every['task']) == (
    'code', 'prose', 'all tasks',
  )  # fmt: skip
  assert code['γ=4'] == 25 and code['none'] == 10
  assert code['over best fixed'] == prose['over best fixed'] == 1
  # 200 tokens in 10 seconds, and in 11 seconds with always two draft tokens.
  assert every['over best fixed'] == pytest.approx(1.1)
  assert every['over none'] == 2
  # Four draft tokens in one part, two in the other.
  assert every['best of each part'] == 20


def test_a_shuffled_run_has_one_row():
  rows = _rows(draft_lengths.against_fixed(_lines(), by_task=False))
  assert [row['task'] for row in rows] == ['all tasks']


def test_no_adaptive_length():
  lines = [line for line in _lines() if not line.depths]
  assert draft_lengths.against_fixed(lines) == []
