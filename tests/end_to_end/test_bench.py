"""Times of a device through the launcher: written, resumed, next to plans."""

import dataclasses
import json

import jax
import pytest
from testing import launching, shallow

from specsamp import zoo
from specsamp.errors import UserError
from specsamp.evaluation.reporting.report import device
from specsamp.planning import topology
from specsamp.planning.latency import Time

_CONFIG = 'configs/accelerator.py'


@pytest.fixture(autouse=True)
def pair(monkeypatch):
  """Replaces the embedded pair by one that compiles faster."""
  monkeypatch.setattr(zoo, 'load', shallow.zoo_load())
  monkeypatch.setenv('XLA_FLAGS', '')


@pytest.fixture(scope='module')
def bench():
  return launching.load('bench')


def _run(*flags):
  return launching.run_here(
    'bench', f'--config={_CONFIG}:smoke', '--transformers=False', *flags
  )


def _lines(workdir):
  text = (workdir / 'results.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_a_run_resumes(tmp_path):
  workdir = tmp_path / 'bench'
  ended = _run(f'--workdir={workdir}')
  assert ended.code == 0, ended
  first = _lines(workdir)
  assert [(line['model'], line['program']) for line in first] == [
    ('pycode', 'autoregressive, greedy'),
    ('pycode', 'draft γ=4, greedy'),
    ('pycode', 'EAGLE 4x2x1x1, greedy'),
    ('tiny llama-3.1-8b', 'plain decoding'),
    ('tiny llama-3.1-8b', 'pass over 1 token'),
    ('tiny llama-3.1-8b', 'pass over 5 tokens'),
    ('tiny llama-3.1-8b', 'EAGLE draft step'),
    ('tiny llama-3.1-8b', 'EAGLE round γ=4'),
    ('tiny llama-3.2-1b', 'plain decoding'),
    ('tiny llama-3.2-1b', 'pass over 1 token'),
    ('tiny llama-3.2-1b', 'pass over 5 tokens'),
  ]
  assert all(line['ms'] > 0 and not line['graphs'] for line in first)
  tokens = [line['tokens'] for line in first]
  assert all(tokens[:3]) and tokens[3:] == [*[None] * 4, 3.0, *[None] * 3]
  text = (workdir / 'report.md').read_text()
  assert 'No plan: ' in text and '| plain decoding' in text
  # Interrupted in the last line, and with a line of another device.
  path = workdir / 'results.jsonl'
  whole = path.read_text()
  other = json.dumps(first[0] | dict(device='another'))
  path.write_text(f'{other}\n{whole[: whole.rindex("{") + 40]}')
  ended = _run(f'--workdir={workdir}')
  assert ended.code == 0, ended
  timed = [line for line in ended.out.splitlines() if line.endswith(' ms')]
  assert [line.split(':')[0] for line in timed] == [
    'specsamp, tiny llama-3.2-1b, pass over 5 tokens'
  ]
  assert '1 lines do not belong to this run' in ended.err
  assert _lines(workdir)[:-1] == first[:-1]
  assert _lines(workdir)[-1]['program'] == first[-1]['program']


def _time_all(bench, workdir, measures):
  """Times programs named by numbers, measured by the functions in a list."""
  groups = [
    bench.Group('m', {str(i): None}, measure)
    for i, measure in enumerate(measures)
  ]
  bench.time_all('T', groups, None, workdir, False)
  return json.loads((workdir / 'summary.json').read_text())['runs']


def test_a_failure_is_noted_and_nothing_else_is_lost(bench, tmp_path):
  def fails():
    raise jax.errors.JaxRuntimeError('of two\nlines')

  times = [fails, lambda: [('specsamp', '1', 1.0, None)]]
  with pytest.raises(
    UserError, match='m, 0, specsamp: JaxRuntimeError: of two'
  ):
    _time_all(bench, tmp_path, times)
  assert 'Not timed: m, 0' in (tmp_path / 'report.md').read_text()
  assert [line['program'] for line in _lines(tmp_path)] == ['1']
  with pytest.raises(ZeroDivisionError):  # a bug is not a failed measurement
    _time_all(bench, tmp_path, [lambda: 1 / 0])


def test_measured_times_next_to_planned_ones(bench):
  line = bench.Line('m', 'p', 'specsamp', False, device(), 6.0, None)
  theirs = dataclasses.replace(line, package='transformers', ms=9.0)
  in_graphs = dataclasses.replace(line, graphs=True, ms=5.5)

  def report(plan, *lines, topology=None):
    groups = [bench.Group('m', {'p': plan}, list)]
    (row,) = bench.make_rows(groups, {line.key: line for line in lines})
    return row, bench.make_report('T', [row], topology).markdown()

  plan = Time(memory=5.0, compute=0.0, collectives=0.0, step=1.0, total=6.0)
  where = topology.parse('h100:1')
  row, text = report(plan, line, theirs, in_graphs, topology=where)
  assert row['ms / bytes'] == pytest.approx(1.2)
  assert row['ms / plan'] == pytest.approx(1.0)
  assert row['theirs / ours'] == pytest.approx(1.5)
  assert row['in graphs ms'] == 5.5
  assert row['τ'] is None and '| τ' not in text
  assert 'for h100:1' in text and 'transformers: ' in text
  # Without a plan there is no prediction; a pair has milliseconds a token.
  row, text = report(None, dataclasses.replace(line, tokens=3.0))
  assert row['ms/token'] == pytest.approx(2.0)
  assert '| plan' not in text and 'transformers' not in text
  assert 'No plan: ' in text
