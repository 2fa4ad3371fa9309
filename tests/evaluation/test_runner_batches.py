"""Prompts that are answered together: which, in what order, in what time."""

import collections
import dataclasses

import numpy as np
import pytest
from testing import tiny

from specsamp.drafting import model_drafter
from specsamp.evaluation import runner
from specsamp.evaluation.methods import Method
from specsamp.evaluation.tasks import Question, Task

_SETTINGS = runner.Settings(
  max_prompt_tokens=8, max_new_tokens=6, seed=0, batch_size=4
)
_SHUFFLED = dataclasses.replace(_SETTINGS, shuffled=True)


@pytest.fixture(scope='module')
def target():
  return tiny.model(26, 28)


@pytest.fixture(scope='module')
def methods(target):
  """With and without a draft, at two temperatures."""
  draft = model_drafter(tiny.first_layer(target), 2)
  return [
    Method(name, drafter, 'token', t, 1.0)
    for t in (0.0, 1.0)
    for name, drafter in (('autoregressive', None), ('draft', draft))
  ]


def _tasks() -> list[Task]:
  """Returns tasks of six and of five prompts."""
  return [
    Task(name, [Question(f'{name}{i}', letter * (1 + i)) for i in range(count)])
    for name, letter, count in (('first', 'a', 6), ('second', 'm', 5))
  ]


class _Call(collections.namedtuple('_Call', 'depth temperatures prompts')):
  """A batch that was decoded: draft length, and fields of its rows."""

  @property
  def letters(self) -> set[str]:
    return {prompt[0] for prompt in self.prompts}


@pytest.fixture
def calls(monkeypatch):
  """Records the batches in order; each takes 4 + 8 seconds."""
  calls, real = [], runner.complete

  def complete(request):
    out, count = real(request), request.batch
    rows = zip(request.prompts.tokens, request.prompts.length, strict=True)
    texts = [request.model.tokenizer.decode(row[:n]) for row, n in rows]
    depth = request.inputs.drafter.tree.depth
    temperatures = request.inputs.sampling.temperature[:count].tolist()
    calls.append(_Call(depth, temperatures, texts[:count]))
    return dataclasses.replace(out, prefill_seconds=4.0, decode_seconds=8.0)

  monkeypatch.setattr(runner, 'complete', complete)
  return calls


def _compare(target, methods, settings, path):
  return runner.compare(target, methods, _tasks(), settings, path)


def test_a_batch_is_of_one_task_and_method(target, methods, calls, tmp_path):
  lines = _compare(target, methods, _SETTINGS, tmp_path / 'lines.jsonl')
  assert len(lines) == 11 * 4
  # The methods are interleaved: all answer a batch before one has two.
  order = [(call.letters, len(call.prompts)) for call in calls]
  assert order == [
    batch
    for batch in (({'a'}, 4), ({'m'}, 4), ({'a'}, 2), ({'m'}, 1))
    for _ in methods
  ]
  first = [(call.depth, call.temperatures[0]) for call in calls[:4]]
  assert first == [(0, 0.0), (2, 0.0), (0, 1.0), (2, 1.0)]
  assert all(len(set(call.temperatures)) == 1 for call in calls)
  # A line has its share of the time of its batch.
  seconds = [
    (line.prefill_seconds, line.decode_seconds)
    for line in lines
    if line.method == 'draft' and line.temperature
  ]
  assert seconds == [(1, 2)] * 4 + [(2, 4)] * 2 + [(1, 2)] * 4 + [(4, 8)]


def test_texts_and_counts_do_not_depend_on_batches(target, methods, tmp_path):
  alone = dataclasses.replace(_SETTINGS, batch_size=1)
  same, batched, shuffled = (
    [
      dataclasses.replace(line, id='', prefill_seconds=0.0, decode_seconds=0.0)
      for line in _compare(target, methods, settings, tmp_path / str(i))
    ]
    for i, settings in enumerate((alone, _SETTINGS, _SHUFFLED))
  )
  assert same == batched == shuffled
  assert any(sum(line.num_accepted_per_pos) for line in same)


def test_a_shuffled_batch_is_of_all_kinds(target, methods, calls, tmp_path):
  path = tmp_path / 'lines.jsonl'
  _compare(target, methods, _SHUFFLED, path)
  plain, drafted = (
    [call for call in calls if call.depth == depth] for depth in (0, 2)
  )
  assert [len(call.prompts) for call in plain] == [4] * 5 + [2]
  assert sum(len(call.letters) == 2 for call in plain) >= 3
  assert sum(len(set(call.temperatures)) == 2 for call in plain) >= 3
  # The same batches for every method, interleaved.
  assert [call[1:] for call in plain] == [call[1:] for call in drafted]
  assert [call.depth for call in calls] == [0, 2] * 6
  rows = [
    row
    for call in plain
    for row in zip(call.temperatures, call.prompts, strict=True)
  ]
  assert len(set(rows)) == 22  # each once
  # The order depends on the seed.
  before = list(calls)
  for seed, is_same in ((0, True), (1, False)):
    path.unlink()
    calls.clear()
    settings = dataclasses.replace(_SHUFFLED, seed=seed)
    _compare(target, methods, settings, path)
    assert (calls == before) == is_same


@pytest.mark.parametrize('settings', [_SETTINGS, _SHUFFLED])
def test_an_incomplete_batch_is_decoded_again(
  target, methods, calls, tmp_path, settings
):
  path = tmp_path / 'lines.jsonl'
  lines = _compare(target, methods, settings, path)
  before = list(calls)
  written = path.read_text().splitlines(True)
  sizes = np.cumsum([len(call.prompts) for call in before])
  for kept in (1, 9, 20):
    path.write_text(''.join(written[:kept]))
    calls.clear()
    assert _compare(target, methods, settings, path) == lines
    missing = before[np.searchsorted(sizes, kept, side='right') :]
    assert sorted(calls) == sorted(missing)
  assert sorted(path.read_text().splitlines(True)) == sorted(written)


def test_lines_of_other_batches_are_decoded_again(
  target, methods, calls, tmp_path
):
  """Their times are shares of other batches."""
  path = tmp_path / 'lines.jsonl'
  larger = dataclasses.replace(_SETTINGS, batch_size=5)
  counts = []
  for settings in (_SETTINGS, _SETTINGS, _SHUFFLED, larger):
    _compare(target, methods, settings, path)
    counts.append(len(calls))
  assert counts == [16, 16, 16 + 12, 16 + 12 + 4 * 3]


def test_a_text_without_an_end_keeps_its_batch_from_ending(
  monkeypatch, target, methods, tmp_path
):
  stops, real = set(), runner.Request.make

  def make(target, rows, *, stop_tokens, **rest):
    letters = ''.join(sorted({chr(97 + row[0]) for row in rows}))
    stops.add((letters, stop_tokens))
    return real(target, rows, stop_tokens=stop_tokens, **rest)

  monkeypatch.setattr(runner.Request, 'make', make)
  first, second = _tasks()
  tasks = [first, dataclasses.replace(second, ends=False)]
  for settings, expected in (
    (_SETTINGS, {('a', None), ('m', ())}),
    (_SHUFFLED, {('am', ()), ('a', None), ('m', ())}),
  ):
    stops.clear()
    runner.compare(target, methods, tasks, settings, tmp_path / str(expected))
    assert stops == expected
