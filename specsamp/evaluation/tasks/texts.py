"""Texts to go on with: held-out code, code edits, a user's own prompts."""

import pathlib
from collections.abc import Sequence

from specsamp.data import code_edits as edits
from specsamp.data import prompts
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError
from specsamp.evaluation.tasks.task import Question, Task, read_lines, turns_of


def code(tokenizer: Tokenizer, count: int, max_tokens: int) -> Task:
  """Functions of the library's files that the embedded pair has not seen."""
  found = prompts.held_out(tokenizer, count, max_tokens)
  return Task('held-out Python functions', _questions(found), ends=False)


def code_edits(tokenizer: Tokenizer, count: int, max_tokens: int) -> Task:
  """Functions to be written once more, changed."""
  found = edits.code_edits(tokenizer, count, max_tokens)
  return Task('code edits', _questions(found), ends=False)


def of_file(
  path: str, tokenizer: Tokenizer, count: int, max_tokens: int
) -> Task:
  """A JSON list of texts, or JSON lines with a `prompt`, or with `turns`.

  Raises:
    UserError: the file can't be read, is none of these, or holds fewer prompts
      that fit.
  """
  name = pathlib.Path(path).stem
  if path.endswith('.json'):
    texts = prompts.read_json(path, tokenizer, count, max_tokens)
    return Task(name, _questions(texts))
  found = []
  for number, line in enumerate(read_lines(pathlib.Path(path)), start=1):
    if isinstance(line, str):
      line = {'prompt': line}
    if isinstance(line, dict) and 'prompt' in line:
      line = {'turns': [line['prompt']]}
    turns = turns_of(line, f"{path}: line {number} has no 'prompt' and")
    if len(tokenizer.encode(turns[0])) <= max_tokens:
      found.append(Question(f'{name}:{number}', turns[0], tuple(turns[1:])))
  if len(found) < count:
    raise UserError(
      f'prompts {path}: {count} asked for, but it holds {len(found)} of at '
      f'most {max_tokens} tokens'
    )
  return Task(name, found[:count])


def _questions(found: Sequence[prompts.Prompt]) -> list[Question]:
  return [Question(name, text) for name, text in found]
