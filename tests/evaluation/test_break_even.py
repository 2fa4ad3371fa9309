"""Sentences on why a draft gains or not, and the warning of a busy machine."""

from types import SimpleNamespace

import pytest

from specsamp.drafting import TokenTree
from specsamp.evaluation import break_even, cpu_load


def _row(name, speedup):
  return SimpleNamespace(
    task='code',
    method=name,
    is_baseline=name == 'plain',
    sampling_name='greedy',
    draft_name='γ=4',
    speedup=speedup,
    tree=TokenTree.chain(0 if name == 'plain' else 4),
    round_ms=10.0 if name == 'plain' else 35.0,
    block_efficiency=1.0 if name == 'plain' else 3.2,
  )


_TIMED = [
  SimpleNamespace(
    sampling_name='greedy', tree=TokenTree.chain(4), score_ms=29.0
  )
]


@pytest.mark.parametrize(
  ('speedups', 'costs', 'words'),
  [
    (
      dict(draft=0.91),
      _TIMED,
      'greedy: no draft gained; a pass over 5 tokens costs 2.9 steps here, '
      'drafting and verifying 0.6; τ above 3.5 gains, and it was 3.20.',
    ),
    (
      dict(draft=0.9),
      [],
      'greedy: no draft gained; a round costs 3.5 steps here; τ above 3.5 '
      'gains, and it was 3.20.',
    ),
    # The draft that was timed explains the gain.
    (
      {'draft': 1.2, 'n-grams': 1.4},
      _TIMED,
      'greedy: n-grams γ=4 is fastest, 1.40 times as fast as plain decoding. '
      'With draft γ=4 a pass over 5 tokens costs 2.9 steps',
    ),
  ],
)
def test_sentences(speedups, costs, words):
  rows = [_row('plain', 1.0), *(_row(*item) for item in speedups.items())]
  (sentence,) = break_even.sentences(rows, costs, 'draft')
  assert sentence.startswith(words)


def test_a_gain_of_rounds_that_is_lost_elsewhere():
  text = break_even.sentence(5, 10.0, 12.0, 24.0, 2.6)
  assert 'above 2.4' in text and 'cut at the end cost more' in text
  text = break_even.sentence(5, 10.0, None, 12.0, 1.1)
  assert 'above 1.2' in text and 'cut' not in text


def test_other_processes_are_seen(tmp_path, monkeypatch):
  path, times = tmp_path / 'stat', [1.0, 0, 0, 0]
  monkeypatch.setattr(cpu_load, '_STAT', path)
  monkeypatch.setattr(cpu_load.os, 'sysconf', lambda _: 100)
  monkeypatch.setattr(cpu_load.os, 'times', lambda: times)
  assert cpu_load.Meter().warning() == ''  # the load is unknown
  path.write_text('cpu 1000 0 0 1000 0 0 0 0 0 0\ncpu0 1 1 1 1\n')
  meter = cpu_load.Meter()
  # 10 s on all cores: 4 s idle, 1 s stolen, 5 s busy, 2 of them here.
  path.write_text('cpu 1500 0 0 1400 0 0 0 100 0 0\ncpu0 1 1 1 1\n')
  times[0] = 3.0
  assert '40%' in meter.warning()
  times[0] = 6.5
  assert meter.warning() == ''
