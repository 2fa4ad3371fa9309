"""Texts to go on with: held-out code, code edits, a user's own prompts."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from specsamp.data import code_answers as answers
from specsamp.data import code_edits as edits
from specsamp.data import prompts
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError, check_name
from specsamp.evaluation.tasks.scorers import (
  SCORERS,
  exact_match,
  rouge,
  rouge_scorer,
  valid_python,
)
from specsamp.evaluation.tasks.task import Question, Task, read_lines, turns_of

_MOST_ANSWER = 32  # tokens: the rest of a line, with some to spare


def code(tokenizer: Tokenizer, count: int, max_tokens: int) -> Task:
  """Functions of the library's files that the embedded pair has not seen.

  An answer is worth something if it makes of its function valid Python.
  """
  found = prompts.held_out(tokenizer, count, max_tokens)
  return _functions('held-out Python functions', found)


def training_code(tokenizer: Tokenizer, count: int, max_tokens: int) -> Task:
  """As `code`, of files that it was trained on: to go on training with."""
  found = prompts.training(tokenizer, count, max_tokens)
  return _functions('Python functions of training files', found)


def _functions(name: str, found: Sequence[prompts.Prompt]) -> Task:
  return Task(
    name,
    [Question(each.name, each.text, reference=each.head) for each in found],
    ends=False,
    score=valid_python,
  )


def code_edits(tokenizer: Tokenizer, count: int, max_tokens: int) -> Task:
  """Functions to be written once more, changed."""
  found = edits.code_edits(tokenizer, count, max_tokens)
  return Task('code edits', _questions(found), ends=False)


def code_answers(
  tokenizer: Tokenizer, count: int, max_tokens: int
) -> list[Task]:
  """Lines to end, of three kinds: what a small model gets right now and then.

  A prompt stops within a line, or before one that stands in it; the answer is
  right if it goes on as the file does to the end of that line.
  """
  return [
    Task(
      name,
      [
        Question(each.name, each.text, reference=each.rest)
        for each in find(tokenizer, count, max_tokens)
      ],
      ends=False,
      most_new_tokens=_MOST_ANSWER,
      score=exact_match,
    )
    for name, find in answers.KINDS.items()
  ]


def of_file(
  path: str, tokenizer: Tokenizer, count: int, max_tokens: int
) -> Task:
  """A JSON list of texts, or JSON lines with a `prompt`, or with `turns`.

  A line may have an `id`, and a `reference`, which its first answer is scored
  against by the file's `scorer`: exact_match if no line names another.

  Returns:
    The first `count` prompts of at most `max_tokens` tokens, or all of them.

  Raises:
    UserError: the file can't be read, is none of these, holds no prompt that
      fits, or has references or scorers that do not go together.
  """
  name = pathlib.Path(path).stem
  if path.endswith('.json'):
    texts = prompts.read_json(path, tokenizer, count, max_tokens)
    return Task(name, _questions(texts))
  found, lines = [], []
  for number, line in enumerate(read_lines(pathlib.Path(path)), start=1):
    if isinstance(line, str):
      line = {'prompt': line}
    where = f'{path}: line {number}'
    question = _question(name, number, line, where)
    lines.append(line)
    if len(tokenizer.encode(question.text)) <= max_tokens:
      found.append(question)
  score = _scorer(path, lines)
  if not found:
    raise UserError(
      f'prompts {path}: none of its {len(lines)} prompts has at most '
      f'{max_tokens} tokens'
    )
  return Task(name, found[:count], score=score)


def _question(name: str, number: int, line: Any, where: str) -> Question:
  turned = line
  if isinstance(line, dict) and 'prompt' in line:
    prompt = line['prompt']
    if not isinstance(prompt, str) or not prompt:
      raise UserError(f'{where}: prompt: got {prompt!r}, expected a text')
    turned = {'turns': [prompt]}
  first, *later = turns_of(turned, f"{where} has no 'prompt' and")
  id_, reference = line.get('id', number), line.get('reference', '')
  if type(id_) not in (int, str):
    raise UserError(f'{where}: id: got {id_!r}, expected a text or an integer')
  if not isinstance(reference, str) or not (
    reference.strip() or 'reference' not in line
  ):
    raise UserError(f'{where}: reference: got {reference!r}, expected a text')
  return Question(f'{name}:{id_}', first, tuple(later), reference)


def _scorer(path: str, lines: Sequence[dict[str, Any]]) -> Callable | None:
  """What scores a file's answers; None of one without references."""
  with_one = [i for i, line in enumerate(lines, 1) if 'reference' in line]
  without = sorted({*range(1, len(lines) + 1)} - {*with_one})
  named = list(dict.fromkeys(line.get('scorer') for line in lines))
  if len(named) > 1:
    raise UserError(f'{path}: scorer: got {named}, expected one of all lines')
  (scorer,) = named
  if without and (with_one or scorer is not None):
    raise UserError(
      f'{path}: line {without[0]} has no reference, expected one in every line '
      'of a file that is scored'
    )
  if without:
    return None
  if scorer is None:
    scorer = 'exact_match'
  check_name(f'{path}: scorer', scorer, SCORERS)
  if SCORERS[scorer] is rouge:
    rouge_scorer()  # that it is installed
  return SCORERS[scorer]


def _questions(found: Sequence[prompts.Prompt]) -> list[Question]:
  return [Question(each.name, each.text) for each in found]
