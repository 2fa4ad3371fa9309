"""What reports have of draft lengths that are chosen in each round."""

import types

from specsamp.evaluation import methods
from specsamp.evaluation.reporting import draft_lengths


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
  """Of the first task 4 is the best fixed length, of the other and of all 2."""
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
  table = [
    line for line in section('github').splitlines() if line.startswith('|')
  ]
  rows = [[cell.strip() for cell in line.split('|')[1:-1]] for line in table]
  return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def test_chosen_lengths_stand_against_the_best_fixed_one_of_their_method():
  code, prose, every = _rows(draft_lengths.against_fixed(_lines()))
  assert (code['task'], prose['task'], every['task']) == (
    'code', 'prose', 'all tasks',
  )  # fmt: skip
  assert float(code['γ=4']) == 25 and float(code['none']) == 10
  assert float(code['over best fixed']) == 1
  assert float(prose['over best fixed']) == 1
  # 200 tokens in 10 seconds, and in 11 where two tokens are drafted always.
  assert float(every['over best fixed']) == 1.1
  assert float(every['over none']) == 2
  # Four tokens in the one part, two in the other.
  assert float(every['best of each part']) == 20


def test_a_shuffled_run_has_one_row():
  rows = _rows(draft_lengths.against_fixed(_lines(), by_task=False))
  assert [row['task'] for row in rows] == ['all tasks']


def test_nothing_is_chosen():
  lines = [line for line in _lines() if not line.depths]
  assert draft_lengths.against_fixed(lines) == ''
