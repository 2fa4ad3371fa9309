"""Scores resume, and programs run only if they are allowed to."""

import dataclasses
import json

import pytest
from testing import tiny

from specsamp import LanguageModel, SamplingParams, generate
from specsamp.evaluation import runner
from specsamp.evaluation.losslessness import scores
from specsamp.evaluation.methods import Method
from specsamp.evaluation.tasks import Question, Task

_SETTINGS = runner.Settings(
  max_prompt_tokens=16, max_new_tokens=4, seed=0, samples=2
)


@pytest.fixture(scope='module')
def target():
  return tiny.model(26, seed=0)


def _lines(target, tasks, path):
  methods = [
    Method('autoregressive', None, 'token', t, 1.0) for t in (0.0, 1.0)
  ]
  return runner.compare(target, methods, tasks, _SETTINGS, path)


def test_answers_that_may_not_run_have_no_score(target, tmp_path, caplog):
  calls = []

  def score(prompt, answer):
    calls.append((prompt.name, answer))
    return {'pass@1': 1.0, 'why': 'passed'}

  prompts = [Question('a', 'abc'), Question('b', 'bcd')]
  tasks = [Task('programs', prompts, score=score, runs_answers=True)]
  lines = _lines(target, tasks, tmp_path / 'metrics.jsonl')
  assert len(lines) == 2 * (1 + 2)  # greedy answers are drawn once
  path = tmp_path / 'scores.jsonl'

  def run(allow):
    calls.clear()
    found = scores.score(target, tasks, lines, _SETTINGS, path, allow)
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(found) == sorted(line.id for line in lines)
    ids = [line['id'] for line in written]
    assert len(set(ids)) == len(ids) == len(lines)
    return found

  for allow in (True, False):
    scores.warn_of_unscored(tasks, allow)
  assert [record.args for record in caplog.records] == [('programs',)]
  found = run(False)
  assert not calls and {f.scores for f in found.values()} == {None}
  found = run(True)  # answers without a score get one
  assert len(calls) == 6
  assert all(f.scores['pass@1'] == 1 for f in found.values())
  run(True)
  run(False)  # known scores stay
  assert not calls
  # The last line was interrupted: its answer is scored again.
  whole = path.read_text()
  path.write_text(whole[: len(whole) - 30])
  assert run(True) == found and len(calls) == 1
  # Another text or another reference is scored again.
  lines[0] = dataclasses.replace(lines[0], output_tokens=[[1, 2]])
  run(True)
  assert len(calls) == 1
  prompts[1] = prompts[1]._replace(reference='other')
  run(True)
  assert {name for name, _ in calls} == {'b'} and len(calls) == 3


class _Talker(tiny.Letters):
  """Letters; blank lines have no tokens."""

  def encode(self, text, bos=True):
    return super().encode(text.replace('\n', ''))


def test_a_conversation_is_one_line(target, tmp_path):
  talker = LanguageModel(target.transformer, target.params, _Talker(26))
  tasks = [Task('talk', [Question('three turns', 'abc', ('def', 'ghi'))])]
  lines = _lines(talker, tasks, tmp_path / 'metrics.jsonl')
  for line in lines:
    assert line.cut == [False, False, True]  # 3, 10, 17 of 16 tokens
    assert [len(turn) for turn in line.output_tokens] == [4, 4, 4]
    assert line.tokens == 12 and len(line.texts) == 3
  greedy = lines[0]
  # The second question follows the first answer.
  encode = talker.tokenizer.encode
  asked = [*encode('abc'), *greedy.output_tokens[0], *encode('def')]
  again = generate(
    talker, [asked], sampling=SamplingParams(0.0), max_new_tokens=4
  )
  assert again.tokens[0] == greedy.output_tokens[1]
