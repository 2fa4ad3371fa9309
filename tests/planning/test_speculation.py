"""Tokens per loop and their inverse; the shape of the paper's figure 1."""

import numpy as np
import pytest
from passes import CHINCHILLA_70B, DRAFT_4B, ms

from specsamp.planning import speculation
from specsamp.planning.speculation import alpha_of, expected_tokens

# Chen et al. 2302.01318, table 1: XSum nucleus and greedy, HumanEval nucleus.
_SPEEDUPS = (1.92, 2.01, 2.46)
_TARGET_MS = ms(CHINCHILLA_70B, 'v4-32')
_DRAFT_MS = ms(DRAFT_4B, 'v4-32')


def _score_ms(gamma):
  return ms(CHINCHILLA_70B, 'v4-32', tokens=gamma + 1)


def _taus():
  loop = speculation.loop_ms(_DRAFT_MS, _score_ms(4), 4)
  return [
    speculation.implied_tau(speedup, loop, _TARGET_MS) for speedup in _SPEEDUPS
  ]


@pytest.mark.parametrize('gamma', [1, 4, 10])
@pytest.mark.parametrize('alpha', [0.0, 0.3, 0.99])
def test_expected_tokens(alpha, gamma):
  closed_form = (1 - alpha ** (gamma + 1)) / (1 - alpha)
  assert expected_tokens(alpha, gamma) == pytest.approx(closed_form)
  assert alpha_of(closed_form, gamma) == pytest.approx(alpha, abs=1e-9)


def test_all_or_none_accepted():
  assert expected_tokens(1.0, 4) == 5
  assert expected_tokens(0.5, 0) == 1
  assert alpha_of(5, 4) == pytest.approx(1)
  assert alpha_of(1, 4) == pytest.approx(0)


@pytest.mark.parametrize('tau', [0.99, 5.01, float('nan')])
def test_tau_that_no_alpha_gives(tau):
  with pytest.raises(ValueError, match='must be 1 to 5, got'):
    alpha_of(tau, 4)


def test_inverse_of_a_curve():
  (point,) = [
    point
    for point in speculation.curve(0.8, _DRAFT_MS, _score_ms, _TARGET_MS)
    if point.gamma == 4
  ]
  assert point.ms_per_token == pytest.approx(point.loop_ms / point.tau)
  tau = speculation.implied_tau(point.speedup, point.loop_ms, _TARGET_MS)
  assert tau == pytest.approx(point.tau)
  assert alpha_of(tau, 4) == pytest.approx(0.8)


def test_shape_of_figure_1():
  alpha = alpha_of(_taus()[0], 4)
  points = speculation.curve(alpha, _DRAFT_MS, _score_ms, _TARGET_MS)
  assert [point.gamma for point in points] == list(range(1, 11))
  # Linear: one more draft step each, while the scoring pass hardly grows.
  np.testing.assert_allclose(
    np.diff([point.loop_ms for point in points]), _DRAFT_MS, rtol=0.1
  )
  best = speculation.best(points)
  assert 3 <= best.gamma <= 5
  assert best.speedup == pytest.approx(_SPEEDUPS[0], rel=0.02)
  assert points[-1].speedup < 0.95 * best.speedup
