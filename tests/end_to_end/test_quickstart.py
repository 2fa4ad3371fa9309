"""The README's first command, in its smallest size."""

import json

import pytest

_CONFIG = '--config=configs/quickstart.py:smoke'

_RUN_KEYS = {
  'method', 'task', 'temperature', 'draft_len', 'tokens', 'seconds',
  'ms_per_token', 'tokens_per_second', 'speedup', 'block_efficiency',
  'acceptance_rate', 'acceptance_by_position', 'round_ms', 'p50_ms', 'p90_ms',
  'p99_ms', 'lossless',
}  # fmt: skip


def test_comparison(launch, folders, tmp_path):
  workdir = tmp_path / 'run'
  ended = launch(
    'decode',
    _CONFIG,
    f'--workdir={workdir}',
    f'--config.target={folders}/target',
    f'--config.draft={folders}/draft',
    '--config.max_prompt_tokens=40',
  )
  assert ended.code == 0, ended.err
  assert '«' in ended.out and 'speedup' in ended.out
  assert sorted(path.name for path in workdir.iterdir()) == [
    'by_draft_length.png',
    'config.json',
    'metrics.jsonl',
    'report.md',
    'summary.json',
  ]
  summary = json.loads((workdir / 'summary.json').read_text())
  assert summary['device'] and summary['versions']['jax']
  runs = summary['runs']
  assert [(r['temperature'], r['draft_len']) for r in runs] == [
    (t, n) for t in (0, 1) for n in (0, 2, 4)
  ]
  for run in runs:
    assert run.keys() >= _RUN_KEYS
    assert run['tokens'] == 16 * run['sequences']
    assert len(run['acceptance_by_position']) == run['draft_len']
    assert run['ms_per_token'] == pytest.approx(
      1e3 * run['seconds'] / run['tokens']
    )
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  lines = [json.loads(line) for line in lines]
  # One of two prompts is for every draft length, the other for the fastest.
  for temperature in (0, 1):
    baseline, *drafts = (
      r['sequences'] for r in runs if r['temperature'] == temperature
    )
    assert baseline == 2 and sorted(drafts) == [1, 2]
  assert len(lines) == sum(run['sequences'] for run in runs)
  # Greedy text does not depend on the draft.
  greedy = {
    (line['prompt'], line['texts'][0])
    for line in lines
    if line['temperature'] == 0
  }
  assert len(greedy) == len({line['prompt'] for line in lines})


def test_plain_decoding_alone(launch, folders, tmp_path):
  """Decodes a target that no draft fits, with a verifier of trees."""
  workdir = tmp_path / 'run'
  ended = launch(
    'decode',
    _CONFIG,
    f'--workdir={workdir}',
    f'--config.target={folders}/turned',
    '--config.max_prompt_tokens=40',
    '--config.drafter=none',
    '--config.verifier=top_plus_one',
  )
  assert ended.code == 0, ended.err
  runs = json.loads((workdir / 'summary.json').read_text())['runs']
  assert [run['method'] for run in runs] == ['autoregressive'] * 2
  assert 'between marks' not in ended.out


def test_adaptive_lengths(launch, folders, tmp_path):
  workdir = tmp_path / 'run'
  ended = launch(
    'decode',
    _CONFIG,
    f'--workdir={workdir}',
    f'--config.target={folders}/target',
    f'--config.draft={folders}/draft',
    '--config.max_prompt_tokens=40',
    '--config.adaptive=true',
  )
  assert ended.code == 0, ended.err
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  lines = [json.loads(line) for line in lines]
  chosen = [line for line in lines if line['branching'] == 'γ of 0, 2, 4']
  assert {line['temperature'] for line in chosen} == {0, 1}
  for line in chosen:
    assert len(line['num_drafted_per_round']) == line['rounds']
    assert set(line['num_drafted_per_round']) <= {0, 1, 2, 3, 4}
  report = (workdir / 'report.md').read_text()
  assert '## Draft lengths' in report


def test_own_prompts_on_the_embedded_pair(launch, tmp_path):
  prompts = tmp_path / 'prompts.txt'
  prompts.write_text('def area(width, height):\n\nimport \n')
  ended = launch(
    'decode',
    _CONFIG,
    f'--prompts_file={prompts}',
    f'--workdir={tmp_path}/run',
  )
  assert ended.code == 0, ended.err
  assert 'def area(width, height):' in ended.out
  lines = (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()
  lines = [json.loads(line) for line in lines]
  assert [line['tokens'] for line in lines] == [16, 16]
  assert [line['lossless'] for line in lines] == [True, True]
