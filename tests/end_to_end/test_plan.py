"""Plans through the launcher: their files, and mistakes."""

import json

import pytest

pytestmark = pytest.mark.extended

_CONFIG = '--config=configs/chinchilla.py'
_SLICE = '--topology=v4:2x2x4'


def test_prediction(launch, tmp_path):
  workdir = tmp_path / 'plan'
  ended = launch('plan', f'{_CONFIG}:predict', _SLICE, f'--workdir={workdir}')
  assert ended.code == 0, ended
  assert ended.err == ''
  assert 'Paper and plan' in ended.out and 'Speedups' in ended.out
  for name in ('report.md', 'prices.png', 'config.json'):
    assert (workdir / name).stat().st_size
  summary = json.loads((workdir / 'summary.json').read_text())
  assert len(summary['prices']) == 3 and len(summary['drafts']) == 6


@pytest.mark.slow
@pytest.mark.tpu_aot
def test_compilation(launch, tmp_path):
  workdir = tmp_path / 'plan'
  ended = launch(
    'plan', _CONFIG, '--topology=v5e-4',
    '--config.target.num_layers=1', '--config.draft.num_layers=1',
    '--config.paper_ms=()', '--config.paper_speedups=()',
    '--config.prices.nodes=()', f'--workdir={workdir}',
  )  # fmt: skip
  assert ended.code == 0, ended
  summary = json.loads((workdir / 'summary.json').read_text())
  assert [row['part'] for row in summary['memory']] == [
    'draft step', 'scoring pass', 'speculative loop',
  ]  # fmt: skip
  assert all(row['fits'] == 'yes' for row in summary['memory'])
  assert {row['kind'] for row in summary['collectives']} == {'all-reduce'}
