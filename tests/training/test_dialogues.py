"""Dialogues that a model writes alone."""

import dataclasses
import json

import pytest
from testing import tiny

from specsamp import LanguageModel
from specsamp.training import dialogues
from specsamp.training.dialogues import DialoguesConfig

_CONFIG = DialoguesConfig(target='', count=40, slots=3, user_tokens=6)


class _Tokenizer(tiny.Letters):
  """A user's turn is between "ab" and "c", which begins the answer."""

  def chat(self, messages):
    return ''.join(f'ab{m["content"]}c' for m in messages)

  def encode(self, text, bos=True):
    return [8 if letter > 'l' else ord(letter) - 97 for letter in text]


@pytest.fixture
def target(monkeypatch):
  """A model of 12 letters, of which "d" ends a turn."""
  for name in ('_MIN_CHARACTERS', '_MIN_TOKENS'):
    monkeypatch.setattr(dialogues, name, 2)
  model = tiny.model(12, 0)
  model = LanguageModel(
    model.transformer, model.params, _Tokenizer(12, eos_id=3)
  )
  monkeypatch.setattr(dialogues.model_dir, 'load', lambda *args: model)
  return model


def _lines(workdir):
  lines = (workdir / 'dialogues.jsonl').read_text().splitlines()
  return {line['seed']: line for line in map(json.loads, lines)}


def test_dialogues_and_a_resumed_run(target, tmp_path):
  (tmp_path / 'whole').mkdir()
  whole = dataclasses.replace(_CONFIG, answer_tokens=4)
  message = dialogues.write(whole, tmp_path / 'whole')
  lines = _lines(tmp_path / 'whole')
  assert sorted(lines) == list(range(40))
  kept = [line for line in lines.values() if not line['dropped']]
  assert f': {len(kept)} of 40 dialogues kept' in message
  reasons = {line['dropped'] for line in lines.values()}
  assert {'', 'user: long'} <= reasons
  cuts = set()
  for line in kept:
    user, answer = line['messages']
    assert (user['role'], answer['role']) == ('user', 'assistant')
    assert 2 <= len(user['content']) < whole.user_tokens
    is_cut = answer.get('cut', False)
    assert (len(answer['content']) == whole.answer_tokens) == is_cut
    cuts.add(is_cut)
  assert cuts == {False, True}
  # A resumed run, with other slots, writes the same dialogues.
  first = list(lines.values())[:5]
  text = ''.join(json.dumps(line) + '\n' for line in first)
  (tmp_path / 'dialogues.jsonl').write_text(text)
  config = dataclasses.replace(whole, slots=2)
  assert dialogues.write(config, tmp_path).endswith(message.split(': ')[1])
  assert _lines(tmp_path) == lines
  assert dialogues.write(config, tmp_path).endswith(message.split(': ')[1])


def test_questions_of_a_file(target, tmp_path):
  """Answers to the lines of a file, in the place of the target's questions."""
  file = tmp_path / 'questions.txt'
  file.write_text('abc\n\nhgfedcba\n efg \nh\n')
  config = dataclasses.replace(
    _CONFIG, questions=str(file), count=3, answer_tokens=16, seed=7
  )
  message = dialogues.write(config, tmp_path)
  lines = _lines(tmp_path)
  assert 'of 3 dialogues' in message and sorted(lines) == [7, 8, 9]
  users = {
    seed: line['messages'][0]['content']
    for seed, line in lines.items()
    if not line['dropped']
  }
  # The second one has more than `user_tokens`.
  assert users and users.items() <= {7: 'abc', 8: 'efg', 9: 'h'}.items()
  # A resumed run answers the other questions alike.
  (tmp_path / 'dialogues.jsonl').write_text(json.dumps(lines[8]) + '\n')
  dialogues.write(config, tmp_path)
  assert _lines(tmp_path) == lines
  file.write_text('abcdefgh\n')
  with pytest.raises(ValueError, match='all of its 1 lines have more'):
    dialogues.write(config, tmp_path)


def test_turns_that_are_dropped():
  completion = lambda tokens, reason: dialogues.Completion(
    0, 0, [], tokens, 'a text of the user', reason
  )
  reason = lambda tokens, ended, is_answer: dialogues._reason_to_drop(
    completion(tokens, ended), is_answer
  )
  fresh, again = list(range(40)), [1, 2, 3] * 14
  assert reason(fresh, 'stop', False) == reason(fresh, 'length', True) == ''
  assert reason(fresh, 'length', False) == 'user: long'
  assert reason(again, 'stop', False) == 'user: repeats itself'
  assert reason(again, 'length', True) == 'answer: repeats itself'
  assert reason(fresh[:5], 'stop', True) == 'answer: short'


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (dict(count=0), 'count'),
    (dict(answer_tokens=15), 'answer_tokens'),
    (dict(top_p=2.0), 'top_p'),
  ],
)
def test_bad_values(change, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(_CONFIG, **change)
