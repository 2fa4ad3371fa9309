"""Tasks: prompts, the end of an answer, and its score."""

import dataclasses
import gzip
import json
import numbers
import pathlib
import zlib
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
    later: questions that follow, each after the answer to the previous one.
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
    ends: True if a stop token ends an answer. False if answers have no natural
      end; then all of them have the same length.
    most_new_tokens: upper bound on the tokens of an answer, below that of the
      config; None for no further bound.
    score: (prompt, answer) -> numbers in [0, 1] by name, and optional texts
      about them; None if answers have no score.
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
    score = self.score(prompt, answer)
    is_valid = lambda value: (
      isinstance(value, str)
      or (isinstance(value, numbers.Real) and 0 <= value <= 1)
    )
    if not isinstance(score, Mapping) or not all(
      isinstance(name, str) and is_valid(value) for name, value in score.items()
    ):
      raise UserError(
        f'task {self.name}: score: got {score!r}, expected numbers in [0, 1] '
        'by name, and optional texts'
      )
    return {
      name: value if isinstance(value, str) else float(value)
      for name, value in score.items()
    }


def tokens_of(
  tokenizer: Tokenizer, prompt: Question, answers: Sequence[str], chat: bool
) -> list[int]:
  """Returns the tokens before the next answer.

  Args:
    tokenizer: tokenizer of the target.
    prompt: prompt of one or several turns.
    answers: answers to its first turns.
    chat: True to write the turns in the tokenizer's chat template; False to
      separate them with blank lines.

  Raises:
    UserError: the tokenizer has no chat template.
  """
  turns = (prompt.text, *prompt.later)
  if chat:
    messages = []
    for i, turn in enumerate(turns[: len(answers) + 1]):
      messages.append({'role': 'user', 'content': turn})
      if i < len(answers):
        messages.append({'role': 'assistant', 'content': answers[i]})
    return tokenizer.encode(tokenizer.chat(messages), bos=False)
  text = turns[0]
  for answer, turn in zip(answers, turns[1:], strict=False):
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
  """Finds the file of a published set in the data folder.

  Args:
    data: folder, searched recursively.
    name: name of the set, a key of `published.SETS`.
    pattern: pattern of the file name, if it may differ from the published one.

  Raises:
    UserError: there is no such file.
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

  Args:
    path: path of the file.
    *keys: names of texts that every line must have.

  Raises:
    UserError: the file cannot be read, or a line is invalid.
  """
  lines, number = [], 0
  try:
    opens = gzip.open if path.suffix == '.gz' else open
    with opens(path, 'rt', encoding='utf-8') as file:
      for line in file:
        number += 1
        if line.strip():
          lines.append(files.parse_json(line))
  except json.JSONDecodeError as error:
    raise UserError(
      f'{path}: line {number}: not valid JSON: {error.msg} at character '
      f'{error.pos}'
    ) from None
  except OSError as error:
    raise UserError(f'{path}: {error.strerror or error}') from None
  except (EOFError, ValueError, zlib.error) as error:
    raise UserError(f'{path}: {error}') from None
  for number, line in enumerate(lines, start=1):
    for key in keys:
      if not isinstance(line, dict) or not isinstance(line.get(key), str):
        raise UserError(f'{path}: line {number} has no text {key!r}')
  if not lines:
    raise UserError(f'{path}: empty')
  return lines


def turns_of(line: Any, where: str) -> tuple[str, ...]:
  """Returns the `turns` of a line, a list of texts.

  Raises:
    UserError: the line has no turns.
  """
  turns = line.get('turns') if isinstance(line, dict) else None
  if (
    not isinstance(turns, list)
    or not turns
    or not all(isinstance(turn, str) and turn for turn in turns)
  ):
    raise UserError(f"{where} has no 'turns', a list of texts")
  return tuple(turns)
