"""Conversations as training text, with the tokens of answers marked."""

import json

import pytest

from specsamp.data import conversations
from specsamp.errors import UserError


def _turn(role, content, **others):
  return {'role': role, 'content': content, **others}


class _Tokenizer:
  """Words are tokens; earlier answers lose their text before a colon."""

  def __init__(self, cuts_thoughts=False, eos_id=0):
    self.cuts_thoughts = cuts_thoughts
    self.eos_id = eos_id  # of documents; a "." ends a turn
    self.stop_ids = (eos_id, 0)

  def chat(self, messages):
    words = []
    for message in messages:
      content = message['content']
      if message['role'] == 'assistant' and self.cuts_thoughts:
        content = content.partition(':')[2]
      words += [message['role'][0], *content.split()]
      words += ['.'] * (message['role'] == 'assistant')
    return ' '.join([*words, 'a'])

  def encode(self, text, bos):
    assert not bos
    return [0 if w == '.' else ord(w[0]) for w in text.split()]

  def show(self, text):
    return [
      ''.join(chr(t or 46) for t in text.tokens[text.is_answer == answers])
      for answers in (False, True)
    ]


_TWO_ANSWERS = [
  _turn('user', 'v w'), _turn('assistant', 't: x'), _turn('user', 'y'),
  _turn('assistant', 'z'),
]  # fmt: skip


@pytest.mark.parametrize(
  ('messages', 'cuts_thoughts', 'prompts', 'answers'),
  [
    ([_turn('user', 'q'), _turn('assistant', 'x y')], False, 'uqa', 'xy.'),
    (
      [_turn('user', 'q'), _turn('assistant', 'x', cut=True)],
      False,
      'uqa',
      'x',
    ),
    # The prompt of the second answer continues the first one.
    (_TWO_ANSWERS, False, 'uvwauya', 'tx.z.'),
    # It does not: the answer before it has lost its thoughts.
    (_TWO_ANSWERS, True, 'uvwauvwax.uya', 'tx.z.'),
    ([*_TWO_ANSWERS, _turn('user', 'q')], False, 'uvwauya', 'tx.z.'),
  ],
)
def test_answers_follow_the_prompts_of_a_server(
  messages, cuts_thoughts, prompts, answers
):
  tokenizer = _Tokenizer(cuts_thoughts)
  text = conversations.encode([messages], tokenizer)
  assert tokenizer.show(text) == [prompts, answers]
  twice = conversations.encode([messages, messages], tokenizer)
  assert tokenizer.show(twice) == [2 * prompts, 2 * answers]


def test_answers_end_as_the_template_ends_them():
  """Gemma ends a turn with another token than a document."""
  tokenizer = _Tokenizer(eos_id=1)
  text = conversations.encode([_TWO_ANSWERS], tokenizer)
  assert tokenizer.show(text) == ['uvwauya', 'tx.z.']


def test_a_conversation_that_the_template_refuses_is_named():
  class Refusing(_Tokenizer):
    def chat(self, messages):
      raise UserError('chat template: no user')

  with pytest.raises(UserError, match="^conversation 'v w': chat template"):
    conversations.encode([_TWO_ANSWERS], Refusing())


def test_files_and_their_held_out_part(tmp_path):
  file = tmp_path / 'dialogues.jsonl'
  made = [
    [_turn('user', f'{i % 40}'), _turn('assistant', f'{i}')] for i in range(80)
  ]
  lines = [json.dumps({'messages': messages}) for messages in made]
  file.write_text('\n'.join([*lines, '', json.dumps({'messages': []}), '']))
  read = conversations.read(file)
  assert read == made
  parts = conversations.split(read)
  assert sorted(map(str, parts[0] + parts[1])) == sorted(map(str, made))
  train, held_out = ({m[0]['content'] for m in part} for part in parts)
  assert not train & held_out and 0 < len(held_out) < 12


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    ('{', 'line 1: Expecting'),
    ('[]', 'line 1: expected an object with a list of messages'),
    ('{"messages": [1]}', 'line 1: expected messages with the texts role'),
    ('{"messages": [{"role": "user"}]}', 'line 1: expected messages with the'),
    ('{"messages": [{"role": "user", "content": ""}]}', 'no conversation with'),
  ],
)
def test_bad_files(line, message, tmp_path):
  file = tmp_path / 'dialogues.jsonl'
  file.write_text(line + '\n')
  with pytest.raises(UserError, match=message):
    conversations.read(file)
