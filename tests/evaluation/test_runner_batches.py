"""Prompts that are answered together: which, in what order, what it took."""

import collections
import dataclasses
import json

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
  """Of six and of five prompts."""
  return [
    Task(name, [Question(f'{name}{i}', letter * (1 + i)) for i in range(count)])
    for name, letter, count in (('first', 'a', 6), ('second', 'm', 5))
  ]


class _Call(collections.namedtuple('_Call', 'depth temperatures prompts')):
  """A batch that was decoded: draft length, and of each row what it was."""

  @property
  def letters(self) -> set[str]:
    return {prompt[0] for prompt in self.prompts}


@pytest.fixture
def calls(monkeypatch):
  """A list of what is decoded, in order; each batch takes 8 + 4 seconds."""
  found, real = [], runner.complete

  def complete(request):
    made = real(request)
    count = request.batch
    rows = zip(request.prompts.tokens, request.prompts.length, strict=True)
    texts = [request.model.tokenizer.decode(row[:n]) for row, n in rows]
    found.append(
      _Call(
        request.inputs.drafter.tree.depth,
        request.inputs.sampling.temperature[:count].tolist(),
        texts[:count],
      )
    )
    return dataclasses.replace(made, prefill_seconds=4.0, decode_seconds=8.0)

  monkeypatch.setattr(runner, 'complete', complete)
  return found


def _compare(target, methods, settings, path):
  return runner.compare(target, methods, _tasks(), settings, path)


def test_a_batch_is_of_one_task_and_method(target, methods, calls, tmp_path):
  lines = _compare(target, methods, _SETTINGS, tmp_path / 'lines.jsonl')
  assert len(lines) == 11 * 4
  # The methods take turns: all have answered a batch before one has two.
  order = [(call.letters, len(call.prompts)) for call in calls]
  assert order == [
    *[({'a'}, 4), ({'a'}, 4), ({'a'}, 4), ({'a'}, 4)],
    *[({'m'}, 4), ({'m'}, 4), ({'m'}, 4), ({'m'}, 4)],
    *[({'a'}, 2), ({'a'}, 2), ({'a'}, 2), ({'a'}, 2)],
    *[({'m'}, 1), ({'m'}, 1), ({'m'}, 1), ({'m'}, 1)],
  ]
  whole = [(call.depth, call.temperatures[0]) for call in calls[:4]]
  assert whole == [(0, 0.0), (2, 0.0), (0, 1.0), (2, 1.0)]
  assert all(len(set(call.temperatures)) == 1 for call in calls)
  # A line has its share of what its batch took.
  seconds = [
    (line.prefill_seconds, line.decode_seconds)
    for line in lines
    if line.method == 'draft' and line.temperature
  ]
  assert seconds == [(1, 2)] * 4 + [(2, 4)] * 2 + [(1, 2)] * 4 + [(4, 8)]


def test_texts_and_counts_are_those_of_each_alone(target, methods, tmp_path):
  alone = dataclasses.replace(_SETTINGS, batch_size=1)
  names = (
    'task', 'prompt', 'temperature', 'method', 'seed', 'output_tokens', 'texts',
    'tokens', 'rounds', 'num_drafted_per_round', 'num_drafted_per_pos',
    'num_accepted_per_pos',
  )  # fmt: skip
  each, batched, shuffled = (
    [
      {name: getattr(line, name) for name in names}
      for line in _compare(target, methods, settings, tmp_path / str(i))
    ]
    for i, settings in enumerate((alone, _SETTINGS, _SHUFFLED))
  )
  assert each == batched == shuffled
  assert any(sum(line['num_accepted_per_pos']) for line in each)


def test_a_shuffled_batch_is_of_all_kinds(target, methods, calls, tmp_path):
  path = tmp_path / 'lines.jsonl'
  _compare(target, methods, _SHUFFLED, path)
  own = {
    depth: [call for call in calls if call.depth == depth] for depth in (0, 2)
  }
  for batches in own.values():
    assert [len(call.prompts) for call in batches] == [4] * 5 + [2]
    assert sum(len(call.letters) == 2 for call in batches) >= 3
    assert sum(len(set(call.temperatures)) == 2 for call in batches) >= 3
  # The same ones, for every method, which take turns.
  assert [call[1:] for call in own[0]] == [call[1:] for call in own[2]]
  assert [call.depth for call in calls] == [0, 2] * 6
  rows = [
    row
    for call in own[0]
    for row in zip(call.temperatures, call.prompts, strict=True)
  ]
  assert len(set(rows)) == 22  # each once
  # Another seed, another order; the same seed, the same.
  before = list(calls)
  for seed, same in ((0, True), (1, False)):
    path.unlink()
    calls.clear()
    settings = dataclasses.replace(_SHUFFLED, seed=seed)
    _compare(target, methods, settings, path)
    assert (calls == before) == same


@pytest.mark.parametrize('settings', [_SETTINGS, _SHUFFLED])
def test_a_batch_that_was_cut_off_is_decoded_whole(
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
    # Those batches of which a line was missing, and no other.
    missing = before[np.searchsorted(sizes, kept, side='right') :]
    assert sorted(calls) == sorted(missing)
  ids = [json.loads(line)['id'] for line in path.read_text().splitlines()]
  assert len(ids) == len(set(ids)) == len(lines)


def test_lines_of_other_batches_are_decoded_anew(
  target, methods, calls, tmp_path
):
  """Their times are no share of these."""
  path = tmp_path / 'lines.jsonl'
  count = lambda settings: (
    _compare(target, methods, settings, path) and len(calls)
  )
  assert count(_SETTINGS) == 16
  assert count(_SETTINGS) == 16
  assert count(_SHUFFLED) == 16 + 12
  other = dataclasses.replace(_SETTINGS, batch_size=5)
  assert count(other) == 28 + 4 * 3


def test_where_one_text_has_no_end_none_ends_early(
  monkeypatch, target, methods, tmp_path
):
  """Of a batch; one of a single task ends as its task says."""
  asked = []
  real = runner.Request.make

  def make(target, rows, *, stop_tokens, **rest):
    letters = ''.join(sorted({chr(97 + row[0]) for row in rows}))
    asked.append((letters, stop_tokens))
    return real(target, rows, stop_tokens=stop_tokens, **rest)

  monkeypatch.setattr(runner.Request, 'make', make)
  first, second = _tasks()
  tasks = [first, dataclasses.replace(second, ends=False)]
  for settings, wanted in (
    (_SETTINGS, {('a', None), ('m', ())}),
    (_SHUFFLED, {('am', ()), ('a', None), ('m', ())}),
  ):
    asked.clear()
    runner.compare(target, methods, tasks, settings, tmp_path / str(wanted))
    assert set(asked) == wanted
