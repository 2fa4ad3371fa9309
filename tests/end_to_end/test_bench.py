"""Times of a device through the launcher: written, resumed, beside plans."""

import dataclasses
import itertools
import json
import os
import runpy
import types

import jax
import pytest
from testing import launching, shallow

from specsamp import zoo
from specsamp.errors import UserError
from specsamp.evaluation import timing
from specsamp.evaluation.reporting.report import device
from specsamp.experiments.accelerator import job, report, static_cache
from specsamp.experiments.accelerator.results import Line, Program, Results
from specsamp.experiments.transformers_baseline import OURS, THEIRS
from specsamp.models import presets
from specsamp.planning import topology
from specsamp.planning.rounds import Prediction

_CONFIG = 'configs/accelerator.py'


@pytest.fixture(autouse=True)
def pair(monkeypatch):
  """In place of the embedded one: little of it is to be compiled."""
  monkeypatch.setattr(zoo, 'load', shallow.zoo_load())
  monkeypatch.setenv('XLA_FLAGS', '')


def _bench(*flags):
  return launching.run_here(
    'bench', f'--config={_CONFIG}:smoke', '--transformers=False', *flags
  )


def _lines(workdir):
  text = (workdir / 'results.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


@pytest.mark.extended
def test_a_run_goes_on_where_it_was(tmp_path):
  workdir = tmp_path / 'bench'
  ended = _bench(f'--workdir={workdir}')
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
  assert [line['tokens'] is None for line in first] == [False] * 3 + [True] * 8
  text = (workdir / 'report.md').read_text()
  assert 'No plan: none is known of' in text and '| plain decoding' in text
  # Cut off in the last line; the others stay, with their times.
  path = workdir / 'results.jsonl'
  whole = path.read_text()
  path.write_text(whole[: whole.rindex('{') + 40])
  ended = _bench(f'--workdir={workdir}')
  assert ended.code == 0, ended
  timed = [line for line in ended.out.splitlines() if line.endswith(' ms')]
  assert [line.split(':')[0] for line in timed] == [
    'specsamp, tiny llama-3.2-1b, pass over 5 tokens'
  ]
  assert _lines(workdir)[:-1] == first[:-1]
  assert _lines(workdir)[-1]['program'] == first[-1]['program']


@pytest.fixture
def prepared():
  values = runpy.run_path(_CONFIG)['get_config']('smoke').to_dict()
  return job.prepare(values, transformers=False)


def _done(programs, in_graphs, where):
  return [
    Line(program.model, program.name, OURS, in_graphs, where, 1.0, None)
    for program in programs
  ]


def test_times_in_graphs_stand_beside_the_others(prepared, tmp_path, capsys):
  programs = [p for each in prepared.models for p in each.programs(None)]
  done = _done(programs, False, device()) + _done(programs, True, device())
  other = _done(programs, True, 'another')
  (tmp_path / 'results.jsonl').write_text(
    ''.join(json.dumps(line._asdict()) + '\n' for line in [*done[:-1], *other])
  )
  prepared.run(tmp_path, graphs=True)
  printed = capsys.readouterr()
  assert f'{len(other)} lines are not of this run' in printed.err
  assert f'{done[-1].program}, loops in graphs: ' in printed.out
  runs = json.loads((tmp_path / 'summary.json').read_text())['runs']
  assert [run['ms'] for run in runs] == [1.0] * len(programs)
  assert [run['in graphs ms'] for run in runs[:-1]] == [1.0] * len(runs[:-1])
  assert runs[-1]['in graphs ms'] not in (None, 1.0)


def test_the_flag_of_graphs_is_added_to_those_given(monkeypatch):
  monkeypatch.setenv('XLA_FLAGS', '--a')
  job.put_loops_in_graphs()
  assert os.environ['XLA_FLAGS'] == (
    '--a --xla_gpu_enable_command_buffer=+WHILE,+CONDITIONAL'
  )


def _refusing(error):
  def refuse(*_):
    raise error

  return refuse


@pytest.fixture
def beside_theirs(prepared, tmp_path, monkeypatch):
  """beside_theirs(module, error) runs what has no time but of transformers,
  and a module's `decoding` fails."""
  programs = [p for each in prepared.models for p in each.programs(None)]
  done = _done(programs, False, device())
  (tmp_path / 'results.jsonl').write_text(
    ''.join(json.dumps(line._asdict()) + '\n' for line in done)
  )
  monkeypatch.setattr(static_cache, 'decoding', lambda *_: lambda: 1.0)
  monkeypatch.setattr(static_cache, 'free', lambda: None)
  models = [each._replace(transformers=True) for each in prepared.models[1:]]

  def run(module, error):
    monkeypatch.setattr(module, 'decoding', _refusing(error))
    what = 'tiny llama-3.1-8b, plain decoding beside transformers'
    problem = f'{what}: {type(error).__name__}: of two'
    with pytest.raises(UserError, match=f'not timed: {problem}'):
      prepared._replace(models=models).run(tmp_path)
    assert problem in (tmp_path / 'report.md').read_text()
    assert len(_lines(tmp_path)) == len(done) - 3  # of the models that ran

  return run


def test_what_fails_is_told_and_nothing_else_is_lost(beside_theirs):
  error = static_cache.TransformersError('of two\nlines')
  beside_theirs(static_cache, error)


def test_what_fails_of_ours_beside_transformers(beside_theirs):
  beside_theirs(timing, jax.errors.JaxRuntimeError('of two\nlines'))


def test_a_mistake_of_ours_is_no_failure_of_transformers(beside_theirs):
  with pytest.raises(ZeroDivisionError):
    beside_theirs(timing, ZeroDivisionError())


@pytest.mark.parity
def test_what_is_timed_of_transformers(monkeypatch):
  """So many of its tokens after the first few, one of which may take long."""
  untimed = static_cache.UNTIMED
  seconds = [100] * (1 + untimed) + [2, 100, 2, 2]
  stamps = itertools.accumulate(2 * seconds)
  clock = types.SimpleNamespace(perf_counter=lambda: next(stamps))
  monkeypatch.setattr(static_cache, 'time', clock)
  config = dataclasses.replace(
    presets.llama32_1b(), vocab_size=64, width=16, num_layers=1, num_heads=2,
    num_kv_heads=1, head_dim=8, mlp_width=16, dtype='float32',
  )  # fmt: skip
  step = static_cache.decoding(config, [1, 2, 3], context=32, num_tokens=4)
  assert [step(), step()] == [2e3, 2e3]
  assert next(stamps, None) is None
  # Whatever fails in it is its own.
  monkeypatch.setattr(clock, 'perf_counter', _refusing(OSError('it')))
  with pytest.raises(static_cache.TransformersError, match='OSError: it'):
    step()
  static_cache.free()


def _row(plan, *lines):
  results = Results(None, False, list(lines))
  (row,) = report.rows([Program('m', 'plain decoding', plan)], results)
  return row, report.table([row]), results


def test_measured_beside_planned():
  line = Line('m', 'plain decoding', OURS, False, 'gpu', 6.0, None)
  theirs = line._replace(package=THEIRS, ms=9.0)
  in_graphs = line._replace(graphs=True, ms=5.5)
  plan = Prediction(memory=5.0, total=4.0 * 1.25 + 1.0)
  row, table, results = _row(plan, line, theirs, in_graphs)
  assert row['ms / bytes'] == pytest.approx(1.2)
  assert row['ms / plan'] == pytest.approx(1.0)
  assert row['theirs / ours'] == pytest.approx(1.5)
  assert row['in graphs ms'] == 5.5
  assert row['τ'] is None and 'τ' not in table
  note = report.note(topology.parse('h100:1'), results)
  assert 'of h100:1' in note and 'transformers: ' in note
  assert 'float32 compute at the peak of 16 bits' in note
  assert 'no time' not in note and 'least that is possible' not in note
  # Without a plan nothing is predicted, and a pair has milliseconds a token.
  row, table, results = _row(None, line._replace(tokens=3.0))
  assert row['ms/token'] == pytest.approx(2.0)
  assert 'plan' not in table and 'transformers' not in table
  assert 'No plan: none is known of' in report.note(None, results)


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--config.nope=1'], 'nope'),
    (['--config.repeats=0'], 'repeats: got 0, expected at least 1'),
    (['--config.context=57'], 'context: got 57, expected at least 58'),
    (['--config.context=131073'], 'the 131072 positions of tiny llama-3.1-8b'),
    (['--config.shapes=({"name": 1},)'], 'which has no shape'),
    (['--config.methods=({},)'], 'which has no name'),
    (['--config.max_new_tokens=100000'], 'positions'),
    (['--config.target=/nowhere'], '/nowhere'),
  ],
)
def test_bad_input(flags, words, tmp_path):
  ended = _bench(f'--workdir={tmp_path}/bench', *flags)
  assert ended.code == 2 and not ended.out, ended
  assert ended.err.startswith('bench.py: ') and ended.err.count('\n') == 1
  assert words in ended.err
  assert not (tmp_path / 'bench').exists()
