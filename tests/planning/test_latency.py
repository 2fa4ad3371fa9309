"""The latency model against the times that Chen et al. 2302.01318 report."""

import dataclasses

import numpy as np
import pytest
from passes import (
  CHINCHILLA_7B,
  CHINCHILLA_70B,
  DRAFT_4B,
  REPORTED_MS,
  ms,
)
from scipy import optimize

from specsamp.errors import UserError
from specsamp.planning import latency, tpu
from specsamp.planning.latency import predict
from specsamp.planning.topology import parse
from specsamp.planning.work import Collective, Work

_SLICES = ('v4-8', 'v4-16', 'v4-32', 'v4-64')  # 4 to 32 chips, one a head


@pytest.mark.parametrize(('model', 'name', 'reported'), REPORTED_MS)
def test_reported_times(model, name, reported):
  assert ms(model, name) == pytest.approx(reported, rel=0.05)


def test_constants_are_the_fitted_ones():
  fitted = optimize.least_squares(
    lambda logs: [
      np.log(ms(model, name, constants=tpu.Constants(*np.exp(logs))) / reported)
      for model, name, reported in REPORTED_MS
    ],
    np.log([1e-6, 1e-3]),
  )
  np.testing.assert_allclose(np.exp(fitted.x), tpu.CONSTANTS, rtol=0.02)


def test_a_shallow_draft_on_the_targets_chips_beats_the_7b_on_any():
  draft_ms = ms(DRAFT_4B, 'v4:2x2x4')
  assert all(draft_ms < ms(CHINCHILLA_7B, name) / 2 for name in _SLICES)


def test_more_chips_gain_a_small_model_less():
  gain = lambda model: ms(model, 'v4-8') / ms(model, 'v4-32')
  assert gain(DRAFT_4B) < 2 and gain(CHINCHILLA_7B) < 2 < gain(CHINCHILLA_70B)
  # The paper reports it for 16 chips against 4, the model for 16 against 8.
  assert ms(CHINCHILLA_7B, 'v4-32') > ms(CHINCHILLA_7B, 'v4-16')


def test_roofline_in_closed_form():
  topology = dataclasses.replace(
    parse('v5e:4x4'),
    constants=tpu.Constants(hop_seconds=1e-6, step_seconds=1e-3),
  )
  time = predict(
    Work(
      weights=819_000_000 - 9,
      caches=9,
      flops=197e9,
      collectives=(
        Collective('all-reduce', 16_000_000, 2),
        Collective('all-gather', 16_000_000, 1),
        Collective('reduce-scatter', 1_000_000, 1),
      ),
      kernels=1000,  # a TPU ignores them
    ),
    topology,
  )
  assert time.memory == pytest.approx(1)
  assert time.compute == pytest.approx(1)
  # 12 hops an all-reduce, 6 each half; 30 MB and 15 MB over two links.
  assert time.collectives == pytest.approx(36e-3 + 1e3 * 90e6 / 100e9)
  assert time.step == pytest.approx(1)
  assert time.total == pytest.approx(2 + time.collectives)


def test_gpus_in_closed_form():
  reduces = (Collective('all-reduce', 4_500_000, 1),)
  model_pass = Work(3_350_000_000, 0, 989e9, reduces, 1000)
  one, eight = (predict(model_pass, parse(name)) for name in ('h100', 'h100:8'))
  assert (one.memory, one.compute) == (pytest.approx(1), pytest.approx(1))
  # Kernels one after the other.
  assert (one.collectives, one.step) == (0, pytest.approx(1.3))
  assert eight.step == one.step
  # A constant, 14 messages, and 7/4 of 4.5 MB over 450 GB/s.
  assert eight.collectives == pytest.approx(6.6e-3 + 14 * 0.6e-3 + 7 / 4 * 0.01)


def test_unknown_collective():
  work = Work(1, 1, 1.0, (Collective('gossip', 1, 1),), 0)
  with pytest.raises(ValueError, match="'gossip'"):
    predict(work, parse('v4-8'))


def test_measured(tmp_path):
  path = tmp_path / 'times.json'
  path.write_text('{"draft_ms": 1.8, "target_ms": 14}')
  assert latency.measured(path) == {'draft_ms': 1.8, 'target_ms': 14.0}


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    (None, 'No such file'),
    ('{"draft_ms": 1.8,}', 'expected a JSON object with any of draft_ms'),
    ('[1.8]', 'expected a JSON object with any of draft_ms, score_ms'),
    ('{"draft": 1.8}', "key: got 'draft', expected one of draft_ms, score_ms"),
    ('{"draft_ms": 0}', 'draft_ms: got 0, expected a positive number'),
    ('{"draft_ms": NaN}', 'got nan'),
    ('{"score_ms": Infinity}', 'score_ms: got inf'),
    ('{"score_ms": true}', 'got True'),
    ('{"target_ms": "14.1"}', "target_ms: got '14.1'"),
  ],
)
def test_measured_refuses(tmp_path, text, words):
  path = tmp_path / 'times.json'
  if text is not None:
    path.write_text(text)
  with pytest.raises(UserError) as error:
    latency.measured(path)
  line = str(error.value)
  assert line.startswith(f'measured times {path}: ') and words in line
