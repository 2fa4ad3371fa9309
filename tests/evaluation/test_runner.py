"""Methods side by side: compiled first, interleaved, resumed, in batches."""

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
from specsamp.evaluation import runner
from specsamp.evaluation.methods import Method
from specsamp.evaluation.tasks import Question, Task

_SETTINGS = runner.Settings(max_prompt_tokens=8, max_new_tokens=1, seed=0)


@pytest.fixture
def target():
  return tiny.model(26, 0)


@pytest.fixture(autouse=True)
def calls(monkeypatch):
  """Records what is compiled and answered; nothing is computed.

  A program is (draft length,), an answer is that of `_answer`. `seconds` of the
  list maps an answer to its time. A batch takes 4 + 8 seconds.
  """
  calls = _Calls()
  monkeypatch.setattr(programs, '_kept', collections.OrderedDict())

  def compile(request):
    request.programs.widths.add(request.width)
    calls.append((request.inputs.drafter.tree.depth,))

  def complete(request):
    assert request.is_compiled
    count, depth = request.batch, request.inputs.drafter.tree.depth
    calls.append(_answer(request))
    ones = np.ones((count, depth), np.int32)
    seconds = (0.0, calls.seconds(calls[-1])) if count == 1 else (4.0, 8.0)
    return Generation(
      [[1]] * count, ['x'] * count, np.ones(count, int), [[0]] * count, ones,
      ones, ones, ones, *seconds,
    )  # fmt: skip

  monkeypatch.setattr(Request, 'compile', compile)
  monkeypatch.setattr(runner, 'complete', complete)
  return calls


class _Calls(list):
  seconds = staticmethod(lambda answer: 1.0)


def _answer(request) -> tuple[str, int, float]:
  """Returns the prompts' first letters, draft length and temperature."""
  first = request.prompts.tokens[: request.batch, 0]
  letters = request.model.tokenizer.decode(first)
  temperature = request.inputs.sampling.temperature.flat[0]
  return letters, request.inputs.drafter.tree.depth, float(temperature)


def _methods(target, lengths=(2,)) -> list[Method]:
  drafters = [model_drafter(tiny.first_layer(target), n) for n in lengths]
  return [
    Method('draft' if drafter else 'autoregressive', drafter, 'token', t, 1.0)
    for t in (0.0, 1.0)
    for drafter in (None, *drafters)
  ]


def _task(letters, name='letters', ends=True):
  prompts = [Question(letter, letter * 10) for letter in letters]
  return Task(name, prompts, ends)


def test_programs_are_compiled_before_one_is_timed(target, calls, tmp_path):
  """Also when a run resumes. Temperatures share programs."""
  path, task = tmp_path / 'metrics.jsonl', _task('abc')
  run = lambda: runner.compare(
    target, _methods(target), [task], _SETTINGS, path
  )
  lines = run()
  answers = [(name, n, t) for t in (0.0, 1.0) for name in 'abc' for n in (0, 2)]
  assert calls == [(0,), (2,), *answers]
  path.write_text(''.join(path.read_text().splitlines(True)[:3]))
  programs._kept.clear()
  calls.clear()
  assert run() == lines
  assert sorted(calls[:2]) == [(0,), (2,)] and calls[2:] == answers[3:]
  # Another text with the same name is another line.
  task.prompts[0] = Question('a', 'z' * 10)
  calls.clear()
  run()
  assert calls == [('z', n, t) for t in (0.0, 1.0) for n in (0, 2)]


def test_a_line_depends_on_variables_of_the_template(
  target, calls, tmp_path, monkeypatch
):
  chat = lambda _, messages, **variables: variables.get('end', 'a')
  monkeypatch.setattr(tiny.Letters, 'chat', chat, raising=False)
  encode = lambda _, text, bos: [ord(letter) - ord('a') for letter in text]
  monkeypatch.setattr(tiny.Letters, 'encode', encode)
  path, task = tmp_path / 'metrics.jsonl', _task('x')
  for variables, letter in ((None, 'a'), ({'end': 'b'}, 'b')):
    settings = dataclasses.replace(
      _SETTINGS, chat=True, chat_template_kwargs=variables
    )
    calls.clear()
    runner.compare(target, _methods(target), [task], settings, path)
    assert {call[0] for call in calls if len(call) == 3} == {letter}


def test_an_evicted_program_is_not_timed(target, calls, tmp_path):
  calls.seconds = lambda answer: programs._kept.clear() or 1.0
  path = tmp_path / 'metrics.jsonl'
  methods = _methods(target)[:2]
  runner.compare(target, methods, [_task('ab')], _SETTINGS, path)
  first, *others = [(name, n, 0.0) for name in 'ab' for n in (0, 2)]
  compiled = [[(answer[1],), answer] for answer in others]
  assert calls == [(0,), (2,), first] + sum(compiled, [])


def test_the_fastest_draft_answers_the_rest(target, calls, tmp_path, capsys):
  """Each temperature has its fastest draft, also when a run resumes."""
  fastest = {2: 0.0, 3: 1.0}
  calls.seconds = lambda answer: (
    # After the sweep other drafts are faster, which changes no choice.
    9.0 if answer[0] in 'cd' else 1.0 + (fastest.get(answer[1]) != answer[2])
  )
  path = tmp_path / 'metrics.jsonl'
  methods = _methods(target, (1, 2, 3))
  run = lambda sweep: runner.compare(
    target,
    methods,
    [_task('abcd')],
    dataclasses.replace(_SETTINGS, sweep_prompts=sweep),
    path,
  )
  lines = run(2)
  phases = re.findall('decoding(.*): 100%', capsys.readouterr().err)
  assert len(set(phases)) == len(phases) == 4  # each has a name
  few = [(0.0, 0), (0.0, 2), (1.0, 0), (1.0, 3)]
  assert [(ln.prompt, ln.temperature, ln.tree.depth) for ln in lines] == [
    *((name, t, n) for name in 'ab' for t in (0.0, 1.0) for n in range(4)),
    *((name, *rest) for name in 'cd' for rest in few),
  ]
  written = path.read_text().splitlines(True)
  for kept in (3, 18, 23):
    path.write_text(''.join(written[:kept]))
    calls.clear()
    assert run(2) == lines
    answered = {call[0] for call in calls if len(call) == 3}
    assert answered & set('ab') <= set('ab'[kept // 8 :])
  path.unlink()
  assert len(run(None)) == len(run(9)) == 4 * len(methods)


def test_another_drafter_is_decoded_again(target, calls, tmp_path):
  """The drafters have the same name and shape."""
  model = model_drafter(tiny.first_layer(target), 2)
  alone = [ngram_drafter(2, *n) for n in ((4, 1), (4, 1), (3, 1), (4, 2))]
  either = [ngram_or_model(ngram, model) for ngram in alone]
  weights = [
    trained_drafter(tiny.trained(target, 'medusa', seed=seed), target, 2)
    for seed in (1, 1, 2, 3)
  ]
  for i, drafters in enumerate((alone, either, weights)):
    answered, path = [], tmp_path / f'{i}'
    for drafter in drafters:
      calls.clear()
      rule = 'token' if drafter.law == 'iid' else 'naive'
      method = Method('chain', drafter, rule, 1.0, 1.0)
      runner.compare(target, [method], [_task('a')], _SETTINGS, path)
      answered.append(sum(len(call) == 3 for call in calls))
    assert answered == [1, 0, 1, 1]


_BATCHES = dataclasses.replace(_SETTINGS, batch_size=4)
_TASKS = [_task('abcdef', 'first'), _task('mnopq', 'second', ends=False)]


def test_a_batch_is_of_one_task_and_method(target, calls, tmp_path):
  path, methods = tmp_path / 'metrics.jsonl', _methods(target)
  run = lambda settings: runner.compare(target, methods, _TASKS, settings, path)
  lines = run(_BATCHES)
  # The methods of a temperature are interleaved: all answer a batch before one
  # has two.
  batches = [
    (letters, n, t) for t in (0.0, 1.0)
    for letters in ('abcd', 'mnop', 'ef', 'q') for n in (0, 2)
  ]  # fmt: skip
  assert [call for call in calls if len(call) == 3] == batches
  # A line has its share of the time of its batch.
  seconds = [
    (line.prefill_seconds, line.decode_seconds)
    for line in lines
    if line.method == 'draft' and line.temperature
  ]
  assert seconds == [(1, 2)] * 4 + [(2, 4)] * 2 + [(1, 2)] * 4 + [(0, 1)]
  # An incomplete batch is decoded again.
  written = path.read_text().splitlines(True)
  for kept, missing in ((1, batches), (9, batches[2:]), (20, batches[6:])):
    path.write_text(''.join(written[:kept]))
    calls.clear()
    assert run(_BATCHES) == lines
    answered = [call for call in calls if len(call) == 3]
    assert sorted(answered) == sorted(missing)
  # The times of other batches are other shares.
  calls.clear()
  run(dataclasses.replace(_BATCHES, batch_size=5))
  assert {call[0] for call in calls if len(call) == 3} == {
    'abcde',
    'f',
    'mnopq',
  }


def test_prompts_of_a_batch_have_similar_lengths(target, calls, tmp_path):
  prompts = [
    Question(letter, letter * length)
    for letter, length in zip('abcdef', (3, 9, 4, 8, 3, 9), strict=True)
  ]
  lines = runner.compare(
    target,
    _methods(target),
    [Task('letters', prompts, True)],
    dataclasses.replace(_BATCHES, batch_size=3),
    tmp_path / 'metrics.jsonl',
  )
  answered = [call[0] for call in calls if len(call) == 3]
  assert answered == 2 * (['bfd'] * 2 + ['cae'] * 2)
  assert [line.prompt for line in lines[::4]] == list('abcdef')


def test_texts_and_counts_do_not_depend_on_batches(
  target, monkeypatch, tmp_path
):
  monkeypatch.undo()  # decodes
  settings = dataclasses.replace(_BATCHES, max_new_tokens=6, batch_size=2)
  alone = dataclasses.replace(settings, batch_size=1)
  tasks = [_task('abc', 'first'), _task('mn', 'second', ends=False)]
  same, batched = (
    [
      dataclasses.replace(line, id='', prefill_seconds=0.0, decode_seconds=0.0)
      for line in runner.compare(
        target, _methods(target), tasks, settings, tmp_path / str(i)
      )
    ]
    for i, settings in enumerate((alone, settings))
  )
  assert same == batched
  assert any(sum(line.num_accepted_per_pos) for line in same)
  # Without an end all texts have the same length.
  assert {line.tokens for line in same if line.task == 'second'} == {6}
