"""Figures of methods, from constructed lines."""

import itertools

import numpy as np
import pytest

from specsamp.drafting import TokenTree
from specsamp.evaluation import metrics, timing


def _line(method, prompt, seconds, tokens=10, **more):
  drafted = method != 'autoregressive'
  values = dict(
    method=method, task='t', prompt=prompt, sample=0, temperature=1.0,
    top_p=1.0, verifier='', lossless=True, law='',
    tree=TokenTree.chain(2 * drafted), tree_attention=True, seed=0,
    id=f'{method}{prompt}', tokens=tokens, rounds=5,
    num_drafted_per_round=[2 * drafted] * 5,
    num_drafted_per_pos=[5, 5] * drafted, num_accepted_per_pos=[4, 1] * drafted,
    prefill_seconds=0.0, decode_seconds=seconds, output_tokens=[], texts=[],
    cut=[],
  )  # fmt: skip
  return metrics.Line(**values | more)


def test_figures():
  times = (0.2, 0.4, 0.6, 0.8)
  lines = [
    *(_line('autoregressive', p, 1.0) for p in 'abcd'),
    *(_line('fast', p, s) for p, s in zip('abcd', times, strict=True)),
  ]
  base, fast = metrics.summarize(lines)
  assert base.speedup == 1 and fast.speedup == 2
  assert fast.block_efficiency == 2 and fast.acceptance_rate == 0.5
  assert fast.acceptance_by_position == [0.8, 0.2]
  assert fast.p50_s == pytest.approx(0.5)
  assert fast.p99_s == pytest.approx(np.percentile(times, 99))
  assert fast.p90_ms == pytest.approx(1e3 * fast.p90_s / 10)
  low, high = fast.speedup_95
  assert 4 / 3.2 <= low < 2 < high <= 4 / 0.8
  # All prompts have the same τ.
  assert fast.block_efficiency_95 == [2, 2]
  assert base.acceptance_rate_95 is None


def test_intervals_contain_the_truth_at_95_percent():
  rng = np.random.default_rng(0)
  hits = 0
  for _ in range(100):
    lines = [
      line
      for i in range(40)
      for line in (
        _line('autoregressive', str(i), rng.uniform(0.5, 1.5)),
        _line('fast', str(i), rng.uniform(0.2, 0.8)),
      )
    ]
    low, high = metrics.summarize(lines)[1].speedup_95
    hits += low <= 2 <= high
  assert 88 <= hits <= 100  # 95 expected, 3 standard deviations are 6.5


@pytest.mark.parametrize(
  ('fast', 'speedup'),
  [
    # The speedup is not a mean of ratios: long texts count more.
    (dict(a=(1.0, 10), b=(3.0, 90)), 10 / 4),
    # It is over the same prompts.
    (dict(a=(0.5, 10)), 2),
  ],
)
def test_speedup_is_of_totals(fast, speedup):
  lines = [
    _line('autoregressive', 'a', 1.0, 10),
    _line('autoregressive', 'b', 9.0, 90),
    *(_line('fast', prompt, *timed) for prompt, timed in fast.items()),
  ]
  assert metrics.summarize(lines)[1].speedup == pytest.approx(speedup)


def test_a_baseline_has_the_whole_sampling():
  """Each top-p and top-k has a separate baseline."""
  lines = [
    _line(method, 'a', seconds, **sampling)
    for sampling, base in (
      (dict(), 1.0), (dict(top_k=5), 2.0), (dict(top_p=0.5), 3.0)
    )
    for method, seconds in (('autoregressive', base), ('fast', 1.0))
  ]  # fmt: skip
  rows = [row for row in metrics.summarize(lines) if row.tree.depth]
  assert [row.speedup for row in rows] == [1, 2, 3]
  names = ['t=1', 't=1, top-k 5', 't=1, top-p 0.5']
  assert [row.sampling_name for row in rows] == names
  assert [row.plain().get('top_k') for row in rows] == [None, 5, None]


def test_all_tasks_together():
  lines = [
    _line(method, 'a', seconds, task=task, id=f'{method}{task}')
    for task, seconds in (('x', 1.0), ('y', 3.0))
    for method in ('autoregressive', 'fast')
  ]
  assert [row.task for row in metrics.summarize(lines)] == list('xxyy')
  rows = metrics.overall(lines)
  assert [row.task for row in rows] == [metrics.ALL] * 2
  assert rows[1].sequences == 2 and rows[1].seconds == 4
  # A single task keeps its name.
  assert metrics.overall(lines[:2])[0].task == 'x'


def test_pass_at_k_is_the_share_of_subsets():
  for n, c, k in itertools.product(range(1, 6), range(6), range(1, 6)):
    if c <= n and k <= n:
      passed = [True] * c + [False] * (n - c)
      chosen = list(itertools.combinations(passed, k))
      share = sum(map(any, chosen)) / len(chosen)
      assert metrics.pass_at_k(n, c, k) == pytest.approx(share)


def test_scores_are_means_over_prompts():
  lines, scores = [], {}
  for prompt, passed in (('a', 5), ('b', 0)):
    for i in range(10):
      lines.append(_line('fast', prompt, 1.0, sample=i, id=f'{prompt}{i}'))
      scores[f'{prompt}{i}'] = {'pass@1': float(i < passed), 'why': 'x'}
  (row,) = metrics.summarize(lines, scores)
  assert row.scores == {'pass@1': 0.25, 'pass@10': 0.5}


def test_ratios_are_medians_over_turns():
  """The ratio is 1.1 except in the third turn, in which the speed changes."""
  speeds = [1.0, 1.0, 1.0, 2.0, 2.0]
  late = [1.0, 1.0, 2.0, 2.0, 2.0]  # from the third pass on
  times = timing.medians(
    round_ms=[11.0 * s for s in speeds],
    draft_ms=[2.0 * s for s in speeds],
    score_ms=[8.0 * s for s in late],
    both_ms=[10.0 * s for s in late],
  )
  assert times['round_ms'] / (times['draft_ms'] + times['score_ms']) < 0.7
  assert times['overhead'] == pytest.approx(1.1)
  assert times['verification'] == pytest.approx(1.1)
  assert (times['draft_ms'], times['score_ms']) == (2.0, 16.0)
