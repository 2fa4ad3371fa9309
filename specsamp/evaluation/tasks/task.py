"""Tasks: prompts, the end of an answer, and its score."""

import dataclasses
import gzip
import numbers
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from specsamp.data import published
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError
from specsamp.utils import files


class Question(NamedTuple):
  """A prompt and its reference.

  Attributes:
    name: name in result files.
    text: text of the prompt.
    later: further turns, each after the answer to the previous one.
    reference: text that a score compares the answer with.
  """

  name: str
  text: str
  later: tuple[str, ...] = ()
  reference: str = ''


@dataclasses.dataclass(frozen=True)
class Task:
  """A set of prompts.

  Attributes:
    name: name in reports.
    prompts: prompts to answer.
    ends: True if a stop token ends an answer. False if answers lack a natural
      end; then all of them have the same length.
    most_new_tokens: upper bound on the tokens of an answer, in addition to that
      of the config; None for no further bound.
    score: (prompt, answer) -> numbers in [0, 1] by name, and optional texts
      about them; None for answers without a score.
    runs_answers: True if the score runs the answer as a program.
  """

  name: str
  prompts: list[Question]
  ends: bool = True
  most_new_tokens: int | None = None
  score: Callable[[Question, str], Mapping[str, float | str]] | None = None
  runs_answers: bool = False

  def new_tokens(self, requested: int) -> int:
    return min(requested, self.most_new_tokens or requested)

  def scored(self, prompt: Question, answer: str) -> dict[str, float | str]:
    """Returns the score of an answer, with all numbers as floats.

    Raises:
      UserError: the score function returned an invalid score.
    """
    score, scores = self.score(prompt, answer), {}
    for name, value in score.items() if isinstance(score, Mapping) else ():
      if isinstance(value, str):
        scores[name] = value
      elif isinstance(value, numbers.Real) and 0 <= value <= 1:
        scores[name] = float(value)
    if scores != score or not all(isinstance(name, str) for name in scores):
      raise UserError(
        f'task {self.name}: score: got {score!r}, expected numbers in [0, 1] '
        'by name, and optional texts'
      )
    return scores


def tokens_of(
  tokenizer: Tokenizer,
  prompt: Question,
  answers: Sequence[str],
  chat: bool,
  variables: Mapping[str, Any] | None = None,
) -> list[int]:
  """Returns the tokens of a conversation up to the next answer.

  `answers` are those to the first turns. Turns are in the tokenizer's chat
  template if `chat` is True, else separated by blank lines. `variables` are
  variables of the template.

  Raises:
    UserError: the tokenizer lacks a chat template, or a variable is reserved.
  """
  first, *later = (prompt.text, *prompt.later)[: len(answers) + 1]
  if chat:
    messages = [{'role': 'user', 'content': first}]
    for answer, turn in zip(answers, later, strict=True):
      messages.append({'role': 'assistant', 'content': answer})
      messages.append({'role': 'user', 'content': turn})
    text = tokenizer.chat(messages, **(variables or {}))
    return tokenizer.encode(text, bos=False)
  text = first
  for answer, turn in zip(answers, later, strict=True):
    text += f'{answer}\n\n{turn}\n\n'
  return tokenizer.encode(text)


def last(tokens: list[int], count: int, tokenizer: Tokenizer) -> list[int]:
  """Returns the last `count` tokens, with the bos token kept in front."""
  if len(tokens) <= count:
    return tokens
  start = tokens[:1] if tokens[0] == tokenizer.bos_id else []
  return start + tokens[len(tokens) - count + len(start) :]


def spread(values: Sequence[Any], count: int) -> list[Any]:
  """Returns at most `count` evenly spaced values."""
  count = min(count, len(values))
  return [values[len(values) * i // count] for i in range(count)]


def find(data: str, name: str, pattern: str = '') -> pathlib.Path:
  """Finds the file of a set of `published.SETS` anywhere in the data folder.

  The pattern is that of the file name, if it may differ from the published one.

  Raises:
    UserError: the file does not exist.
  """
  pattern = pattern or published.SETS[name].name
  paths = sorted(pathlib.Path(data).rglob(pattern)) if data else []
  if not paths:
    raise UserError(
      f'data {data} ({pathlib.Path(data).resolve()}): no {pattern} in it; '
      f'{published.command(name, data)} fetches it, and --config.data=FOLDER '
      'names the folder that has it'
    )
  return paths[0]


def read_lines(path: pathlib.Path, *keys: str) -> list[Any]:
  """Reads a file of JSON lines, which may be compressed.

  Raises:
    UserError: the file cannot be read, or a line lacks one of the keys.
  """
  opens = gzip.open if path.suffix == '.gz' else open
  with files.reading(f'{path}'), opens(path, 'rt', encoding='utf-8') as file:
    texts = file.readlines()
  lines = []
  for number, text in enumerate(texts, start=1):
    if not text.strip():
      continue
    with files.reading(f'{path}: line {number}: not valid JSON'):
      lines.append(files.parse_json(text))
    for key in keys:
      if not isinstance(lines[-1], dict) or type(lines[-1].get(key)) is not str:
        raise UserError(f'{path}: line {number} has no text {key!r}')
  if not lines:
    raise UserError(f'{path}: empty')
  return lines


def turns_of(line: Any, where: str) -> tuple[str, ...]:
  """Returns the `turns` of a line, a list of texts, or raises `UserError`."""
  turns = line.get('turns') if isinstance(line, dict) else None
  is_text = lambda turn: isinstance(turn, str) and turn
  if not isinstance(turns, list) or not turns or not all(map(is_text, turns)):
    raise UserError(f"{where} has no 'turns', a list of texts")
  return tuple(turns)
