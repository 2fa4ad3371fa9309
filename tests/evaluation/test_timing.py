"""Times of the parts of a round, on a machine that changes its speed."""

import pytest

from specsamp.evaluation import timing


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


def test_steps_take_turns_after_one_that_compiles():
  ran = []

  def step(name, taken):
    times = iter(taken)
    return lambda: ran.append(name) or next(times)

  steps = [step('a', [90.0, 1.0, 2.0]), step('b', [80.0, 3.0, 4.0])]
  assert timing.in_turns(steps, 2) == [[1.0, 2.0], [3.0, 4.0]]
  assert ''.join(ran) == 'ababab'
