"""Plans through the launcher: their files, and mistakes."""

import json

import pytest
from testing.launching import run_here

pytestmark = pytest.mark.extended

_PREDICT = '--config=configs/chinchilla.py:predict'
_SLICE = '--topology=v4:2x2x4'


def _plan(workdir, *flags):
  ended = run_here('plan', f'--workdir={workdir}', *flags)
  assert ended.code == 0, ended
  return ended, json.loads((workdir / 'summary.json').read_text())


def test_prediction(tmp_path):
  ended, summary = _plan(tmp_path / 'plan', _PREDICT, _SLICE)
  assert 'Paper and plan' in ended.out and 'Speedups' in ended.out
  for name in ('report.md', 'prices.png', 'config.json'):
    assert (tmp_path / 'plan' / name).stat().st_size
  assert [row['what'] for row in summary['paper']] == [
    'target', 'draft', 'alternative',
  ]  # fmt: skip
  assert all(0.75 < row['plan / paper'] < 1.25 for row in summary['paper'])
  taus = [row['implied τ'] for row in summary['implied']]
  assert 2.5 < taus[0] < taus[1] < taus[2] < 4.2
  assert 3 <= summary['implied'][0]['best γ'] <= 5
  slices = {row['topology'] for row in summary['speedups']}
  assert slices == {'v4:2x2x4', 'v5e:4x4', 'v5p:2x2x4', 'v6e:4x4'}
  # The draft on the target's chips is faster than the 7B on any slice.
  draft, *others = [row['step ms'] for row in summary['alternatives']]
  assert len(others) == 4 and draft < min(others)
  # Three batches on four slices, except one that does not fit.
  assert len(summary['prices']) == 11 and len(summary['drafts']) == 2 * 11
  assert 'No price of 32 x 2048 slots: v5e:4x4: weights and' in ended.out


def test_measured_times_replace_predicted_ones(tmp_path):
  times = tmp_path / 'times.json'
  times.write_text('{"draft_ms": 100, "target_ms": 14.1}')
  ended, summary = _plan(
    tmp_path / 'plan', _PREDICT, _SLICE, f'--config.measured={times}',
    '--config.paper_speedups=()', '--config.compare=("v4-8","v4-32","v5e-4")',
  )  # fmt: skip
  assert 'v5e:2x2: weights and caches take 36.56 GiB of each' in ended.out
  assert {row['topology'] for row in summary['times']} == {'v4:2x2x4'}
  assert all(row['γ=1'] < 0.3 for row in summary['speedups'])


@pytest.mark.tpu_aot
@pytest.mark.slow
def test_compilation(launch, tmp_path):
  workdir = tmp_path / 'plan'
  ended = launch(
    'plan', '--config=configs/chinchilla.py', '--topology=v5e-4',
    '--config.target.num_layers=2', '--config.draft.num_layers=1',
    '--config.paper_ms=()', '--config.paper_speedups=()',
    '--config.compare=()', f'--workdir={workdir}',
  )  # fmt: skip
  assert ended.code == 0, ended
  assert 'as predicted: 5 all-reduce of 81920 bytes' in ended.out
  summary = json.loads((workdir / 'summary.json').read_text())
  assert [row['part'] for row in summary['memory']] == [
    'draft step', 'scoring pass', 'speculative loop',
  ]  # fmt: skip
  assert all(row['fits'] == 'yes' for row in summary['memory'])
  assert {row['kind'] for row in summary['collectives']} == {'all-reduce'}


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--topology='], "got '', expected one of v4, v5e"),
    (['--topology=v5e-4'], 'v5e:2x2: weights and caches take 36.56 GiB of'),
    (
      ['--topology=v4:2x4x4'],
      'v4:2x4x4, draft: heads: 48 do not divide into 32 shards',
    ),
    ([_SLICE, '--config.context=4096'], 'context: got 4096'),
    ([_SLICE, '--config.draft.vocab_size=7'], 'share a vocabulary'),
    ([_SLICE, '--config.paper_ms=()'], 'paper_speedups: expected paper_ms'),
    (
      [_SLICE, '--config.target.num_layers=20'],
      'paper_speedups: tau of 4 draft tokens must be 1 to 5',
    ),
  ],
)
def test_bad_input(refused, tmp_path, flags, words):
  workdir = tmp_path / 'out'
  assert words in refused('plan', _PREDICT, f'--workdir={workdir}', *flags)
  assert not workdir.exists()
