"""What a task is: prompts, when an answer ends, and how it is scored."""

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
  """A prompt, and what goes with it.

  Attributes:
    name: in files of results.
    text: of the prompt.
    later: what is asked after the answer, and after the answer to that.
    reference: what a score compares the answer with.
  """

  name: str
  text: str
  later: tuple[str, ...] = ()
  reference: str = ''


@dataclasses.dataclass(frozen=True)
class Task:
  """A set of prompts.

  Attributes:
    name: in reports.
    prompts: what to answer.
    ends: whether a stop token ends an answer; texts without an end of their own
      all get the same length.
    most_new_tokens: of an answer; None leaves it to the config.
    score: (prompt, answer) -> numbers in [0, 1] by name, and a word on them as
      text; None where there is nothing to score.
    runs_answers: whether the score runs the answer as a program.
  """

  name: str
  prompts: list[Question]
  ends: bool = True
  most_new_tokens: int | None = None
  score: Callable[[Question, str], Mapping[str, float | str]] | None = None
  runs_answers: bool = False

  def new_tokens(self, asked: int) -> int:
    return min(asked, self.most_new_tokens or asked)

  def scored(self, prompt: Question, answer: str) -> dict[str, float | str]:
    """What the score returns, its numbers as floats.

    Raises:
      UserError: something else than numbers in [0, 1] and texts by name.
    """
    found = self.score(prompt, answer)
    is_score = lambda value: (
      isinstance(value, str)
      or (isinstance(value, numbers.Real) and 0 <= value <= 1)
    )
    if not isinstance(found, Mapping) or not all(
      isinstance(name, str) and is_score(value) for name, value in found.items()
    ):
      raise UserError(
        f'task {self.name}: score: got {found!r}, expected numbers in [0, 1] '
        'by name, and maybe texts'
      )
    return {
      name: value if isinstance(value, str) else float(value)
      for name, value in found.items()
    }


def tokens_of(
  tokenizer: Tokenizer, prompt: Question, answers: Sequence[str], chat: bool
) -> list[int]:
  """The tokens that the next answer follows.

  Args:
    tokenizer: the target's.
    prompt: of one or several turns.
    answers: to its first turns.
    chat: whether to write the turns in the tokenizer's chat template. Without,
      they stand one after another, blank lines between them.

  Raises:
    UserError: chat is asked of a tokenizer without a template.
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


def last(tokens: list[int], most: int, tokenizer: Tokenizer) -> list[int]:
  """The last tokens of a conversation that is longer than `most` of them.

  What marks a beginning stays at the beginning.
  """
  if len(tokens) <= most:
    return tokens
  start = tokens[:1] if tokens[0] == tokenizer.bos_id else []
  return start + tokens[len(tokens) - most + len(start) :]


def spread(found: Sequence[Any], count: int) -> list[Any]:
  """At most so many, evenly from the whole."""
  count = min(count, len(found))
  return [found[len(found) * i // count] for i in range(count)]


def find(data: str, name: str, pattern: str = '') -> pathlib.Path:
  """The file of a published set, somewhere in the folder of data.

  Args:
    data: folder.
    name: of the set, a key of `published.SETS`.
    pattern: of the file's name, if it may have others than its authors gave it.

  Raises:
    UserError: it is not there, and what fetches it.
  """
  pattern = pattern or published.SETS[name].name
  found = sorted(pathlib.Path(data).rglob(pattern)) if data else []
  if not found:
    whole = pathlib.Path(data).resolve()
    raise UserError(
      f'data {data} ({whole}): no {pattern} in it; '
      f'{published.command(name, data)} '
      'fetches it, and --config.data=FOLDER names where it is'
    )
  return found[0]


def read_lines(path: pathlib.Path, *keys: str) -> list[Any]:
  """The objects of a file of JSON lines, compressed or not.

  Args:
    path: of the file.
    *keys: of texts that every object must have.

  Raises:
    UserError: the file can't be read, or a line is no such object.
  """
  lines, number = [], 0
  try:
    opens = gzip.open if path.suffix == '.gz' else open
    with opens(path, 'rt', encoding='utf-8') as file:
      for line in file:
        number += 1
        if line.strip():
          lines.append(files.parse_json(line))
  except json.JSONDecodeError as error:  # counts lines from the one it is given
    raise UserError(
      f'{path}: line {number} is no JSON: {error.msg} at character {error.pos}'
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
  """The `turns` of a line, a list of texts.

  Raises:
    UserError: it has none.
  """
  turns = line.get('turns') if isinstance(line, dict) else None
  if not isinstance(turns, list) or not turns:
    turns = [None]
  if not all(isinstance(turn, str) and turn for turn in turns):
    raise UserError(f"{where} has no 'turns', a list of texts")
  return tuple(turns)
