"""Conversations of a chat model, as training text with its answers marked.

A file has one conversation per line: JSON with `messages`, a list of objects
with `role` and `content`. An answer with `cut: true` has no end. Lines without
messages are skipped.
"""

import collections
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from specsamp.data import corpora
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError
from specsamp.utils import files

Messages = list[dict[str, Any]]


class MarkedText(NamedTuple):
  """Tokens of conversations, one after the other.

  Attributes:
    tokens: int32 [N].
    is_answer: bool [N], True for the tokens that the model would generate: the
      text of an answer and the token that ends it.
  """

  tokens: np.ndarray
  is_answer: np.ndarray


def read(path) -> list[Messages]:
  """Returns the conversations of a file.

  Raises:
    UserError: the file cannot be read, a line is invalid, or there is no
      conversation with an answer.
  """
  conversations = []
  with files.reading(f'conversations {path}'):
    lines = pathlib.Path(path).read_text(encoding='utf-8').split('\n')
    for number, line in enumerate(lines, start=1):
      if line.strip():
        try:
          messages = _messages(files.parse_json(line))
        except ValueError as error:
          raise ValueError(f'line {number}: {error}') from None
        conversations += [messages] * any(map(_is_answer, messages))
    if not conversations:
      raise ValueError('got no conversation with an answer')
  return conversations


def _messages(value: Any) -> Messages:
  messages = value.get('messages') if isinstance(value, dict) else None
  if not isinstance(messages, list):
    raise ValueError('expected an object with a list of messages')
  for message in messages:
    is_object = isinstance(message, dict)
    texts = [is_object and message.get(key) for key in ('role', 'content')]
    if not all(isinstance(text, str) for text in texts):
      raise ValueError('expected messages with the texts role and content')
  return messages


def _is_answer(message: dict[str, Any]) -> bool:
  return message['role'] == 'assistant'


def split(
  conversations: Iterable[Messages],
) -> tuple[list[Messages], list[Messages]]:
  """Returns the conversations to train on, and one in ten that is held out.

  All conversations that begin with the same text are in the same part.

  Raises:
    UserError: one of the parts is empty.
  """
  parts = collections.defaultdict(list)
  for messages in conversations:
    users = [m['content'] for m in messages if m['role'] == 'user']
    parts[corpora.is_held_out(''.join(users[:1]))].append(messages)
  if not (parts[False] and parts[True]):
    raise UserError(
      f'conversations: {len(parts[False])} to train on and {len(parts[True])} '
      'held out; both must have at least one: use more conversations'
    )
  return parts[False], parts[True]


def encode(
  conversations: Iterable[Messages], tokenizer: Tokenizer
) -> MarkedText:
  """Encodes conversations as the model reads and writes them.

  The tokens before an answer are those of the prompt that a server would make
  of the messages before it. A template may write earlier answers in another
  form, for example without their reasoning. Then the answer has its whole
  prompt before it once more.

  Raises:
    UserError: the template refuses the messages, or no token ends an answer.
  """
  if tokenizer.eos_id < 0:
    raise UserError('conversations: the tokenizer has no token that ends them')

  def prompt_before(messages: Messages) -> list[int]:
    try:
      return tokenizer.encode(tokenizer.chat(messages), bos=False)
    except UserError as error:
      first = messages[0]['content'] if messages else ''
      raise UserError(f'conversation {first[:40]!r}: {error}') from None

  tokens, is_answer = [], []
  for messages in conversations:
    seen: list[int] = []  # the tokens of this conversation so far
    for i, message in enumerate(messages):
      if not _is_answer(message):
        continue
      prompt = prompt_before(messages[:i])
      answer = tokenizer.encode(message['content'], bos=False)
      if not message.get('cut'):
        # Some templates end a turn with another token than a document.
        after = prompt_before(messages[: i + 1])
        ends = [token for token in after if token in tokenizer.stop_ids]
        answer.append(ends[-1] if ends else tokenizer.eos_id)
      new = prompt[len(seen) :] if prompt[: len(seen)] == seen else prompt
      tokens += new + answer
      is_answer += [False] * len(new) + [True] * len(answer)
      seen = prompt + answer
  return MarkedText(np.asarray(tokens, np.int32), np.asarray(is_answer))
