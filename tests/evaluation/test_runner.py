"""Methods side by side: warmed, in turns, and gone on with."""

import collections
import dataclasses
import re

import numpy as np
import pytest
from testing import tiny

from specsamp.decoding import Generation, programs
from specsamp.decoding.request import Request
from specsamp.drafting import (
  model_drafter,
  ngram_drafter,
  ngram_or_model,
  trained_drafter,
)
from specsamp.evaluation import line_head, runner
from specsamp.evaluation.methods import Method
from specsamp.evaluation.tasks import Question, Task

_SETTINGS = runner.Settings(max_prompt_tokens=8, max_new_tokens=1, seed=0)


@pytest.fixture(autouse=True)
def kept(monkeypatch):
  """Programs as in a new process; none is really compiled."""
  kept = collections.OrderedDict()
  monkeypatch.setattr(programs, '_kept', kept)

  def compile(self):
    self.programs.is_compiled = True

  monkeypatch.setattr(Request, 'compile', compile)
  return kept


def _record(monkeypatch, target) -> list[tuple]:
  """What is compiled, (draft length,), and what is answered, in order.

  An answer is (first letter of the prompt, draft length, temperature).
  """
  calls = []

  def compile(self):
    self.programs.is_compiled = True
    calls.append((self.inputs.drafter.tree.depth,))

  def complete(request):
    assert request.is_compiled
    calls.append(_asked(request))
    one = np.ones((1, calls[-1][1]), np.int32)
    drafted = [[0]]
    return Generation(
      [[1]], ['x'], np.ones(1, int), drafted, one, one, one, one, 0.0, 1.0
    )

  monkeypatch.setattr(Request, 'compile', compile)
  monkeypatch.setattr(runner, 'complete', complete)
  return calls


def _asked(request) -> tuple[str, int, float]:
  """First letter of the prompt, draft length, temperature."""
  letter = request.model.tokenizer.decode(request.prompts.tokens[0, :1])
  temperature = request.inputs.sampling.temperature.flat[0]
  return letter, request.inputs.drafter.tree.depth, float(temperature)


def _methods(target) -> list[Method]:
  draft = model_drafter(tiny.first_layer(target), 2)
  return [
    Method(name, drafter, 'token', t, 1.0)
    for t in (0.0, 1.0)
    for name, drafter in (('autoregressive', None), ('draft', draft))
  ]


def test_every_program_is_compiled_before_one_is_timed(
  monkeypatch, kept, tmp_path
):
  """When a run that was cut off goes on, too; temperatures share programs."""
  prompts = [Question(name, name * 10) for name in 'abc']
  target = tiny.model(26, 0)
  calls = _record(monkeypatch, target)
  run = lambda: runner.compare(
    target,
    _methods(target),
    [Task('letters', prompts)],
    _SETTINGS,
    tmp_path / 'metrics.jsonl',
  )
  lines = run()
  every = [(name, n, t) for name in 'abc' for t in (0.0, 1.0) for n in (0, 2)]
  assert calls == [(0,), (2,), *every]
  path = tmp_path / 'metrics.jsonl'
  path.write_text(''.join(path.read_text().splitlines(True)[:3]))
  kept.clear()
  calls.clear()
  assert run() == lines
  assert sorted(calls[:2]) == [(0,), (2,)] and calls[2:] == every[3:]
  # Another text by the same name is another line.
  prompts[0] = Question('a', 'z' * 10)
  calls.clear()
  run()
  assert calls == [('z', n, t) for t in (0.0, 1.0) for n in (0, 2)]


def test_a_program_that_was_let_go_is_not_timed(monkeypatch, tmp_path):
  """Methods take turns: with one program too few each compiles every time."""
  target = tiny.model(26, 0)
  calls = _record(monkeypatch, target)
  monkeypatch.setattr(programs, '_MAX_KEPT', 1)
  runner.compare(
    target,
    _methods(target)[:2],
    [Task('letters', [Question(name, name * 10) for name in 'ab'])],
    _SETTINGS,
    tmp_path / 'metrics.jsonl',
  )
  at_once = [(0,), (2,)]
  in_turn = [[(n,), (name, n, 0.0)] for name in 'ab' for n in (0, 2)]
  assert calls == at_once + sum(in_turn, [])


def test_the_fastest_draft_goes_on(monkeypatch, tmp_path, capsys):
  """For each temperature its own, and the same when a run goes on."""
  target = tiny.model(26, 0)
  draft = tiny.first_layer(target)
  methods = [
    Method(name, drafter, 'token', temperature, 1.0)
    for temperature in (0.0, 1.0)
    for name, drafter in (
      ('autoregressive', None),
      *(('speculative', model_drafter(draft, n)) for n in (1, 2, 3)),
    )
  ]
  seconds = {(0.0, 2): 1.0, (1.0, 3): 1.0}  # others are slower
  calls = []

  def complete(request):
    name, depth, temperature = _asked(request)
    calls.append(name)
    one = np.ones((1, depth), np.int32)
    # Behind the sweep all change places, which changes no choice.
    took = seconds.get((temperature, depth), 2.0) if name in 'ab' else 9.0
    drafted = [[0]]
    return Generation(
      [[1]], ['x'], np.ones(1, int), drafted, one, one, one, one, 0.0, took
    )

  monkeypatch.setattr(runner, 'complete', complete)
  path = tmp_path / 'metrics.jsonl'
  run = lambda sweep: runner.compare(
    target,
    methods,
    [Task('letters', [Question(name, name * 10) for name in 'abcd'])],
    dataclasses.replace(_SETTINGS, sweep_prompts=sweep),
    path,
  )
  lines = run(2)
  phases = re.findall('decoding(.*): 100%', capsys.readouterr().err)
  assert len(set(phases)) == 2  # each has its name
  found = [(ln.prompt, ln.temperature, ln.tree.depth) for ln in lines]
  few = [(0.0, 0), (0.0, 2), (1.0, 0), (1.0, 3)]
  assert found == [
    *((name, t, n) for name in 'ab' for t in (0.0, 1.0) for n in range(4)),
    *((name, *each) for name in 'cd' for each in few),
  ]
  assert len(calls) == len(lines)
  written = path.read_text().splitlines(True)
  for kept in (3, 18, 23):
    path.write_text(''.join(written[:kept]))
    calls.clear()
    assert run(2) == lines
    assert {name for name in calls if name in 'ab'} <= set('ab'[kept // 8 :])
  path.unlink()
  assert len(run(None)) == len(run(9)) == 4 * len(methods)


def test_another_drafter_is_decoded_anew(monkeypatch, tmp_path):
  """Of the same name and shape, in a folder that was trained again."""
  one = np.ones((1, 2), np.int32)
  answer = Generation(
    [[1]], ['x'], np.ones(1, int), [[0]], one, one, one, one, 0.0, 1.0
  )
  calls = []
  monkeypatch.setattr(
    runner, 'complete', lambda request: calls.append(request) or answer
  )
  target = tiny.model(26, 0)

  def compare(drafter):
    calls.clear()
    runner.compare(
      target,
      [Method('chain', drafter, 'token', 1.0, 1.0)],
      [Task('letters', [Question('a', 'abc')])],
      _SETTINGS,
      tmp_path / 'metrics.jsonl',
    )
    return len(calls)

  first, other = (
    trained_drafter(tiny.trained(target, 'medusa', seed=seed), target, 2)
    for seed in (1, 2)
  )
  assert [compare(d) for d in (first, first, other)] == [1, 0, 1]


def test_another_setting_is_decoded_anew():
  """Of drafters of the same name, shape and weights."""
  target = tiny.model(26, 0)
  model = model_drafter(tiny.first_layer(target), 2)
  settings = ((3, 1), (4, 1), (3, 2))
  alone = [ngram_drafter(2, *n) for n in settings]
  either = [ngram_or_model(ngram, model) for ngram in alone]

  def identify(drafter):
    method = Method('lookup', drafter, 'naive', 1.0, 1.0)
    task = Task('letters', [Question('a', 'abc')])
    return line_head.of(method, [], task, task.prompts[0], 0, 0, []).id

  for drafters in (alone, either):
    assert len({identify(drafter) for drafter in drafters}) == len(settings)
  assert identify(ngram_drafter(2, 4, 1)) == identify(alone[1])
