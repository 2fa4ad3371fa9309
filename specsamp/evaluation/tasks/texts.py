"""Tasks of texts to continue: held-out code, code edits, files of prompts."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from specsamp.data import code_edits as code_edits_data
from specsamp.data import prompts
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError, check_name
from specsamp.evaluation.tasks.scorers import (
  SCORERS,
  rouge,
  rouge_scorer,
  valid_python,
)
from specsamp.evaluation.tasks.task import Question, Task, read_lines, turns_of


def code(tokenizer: Tokenizer, count: int, max_tokens: int) -> Task:
  """Returns library functions that the embedded pair was not trained on.

  The score is 1 if an answer completes its function to valid Python.
  """
  functions = prompts.held_out(tokenizer, count, max_tokens)
  return _functions('held-out Python functions', functions)


def training_code(tokenizer: Tokenizer, count: int, max_tokens: int) -> Task:
  """Returns library functions that the embedded pair was trained on."""
  functions = prompts.training(tokenizer, count, max_tokens)
  return _functions('Python functions of training files', functions)


def _functions(name: str, functions: Sequence[prompts.Prompt]) -> Task:
  return Task(name, _questions(functions), ends=False, score=valid_python)


def code_edits(tokenizer: Tokenizer, count: int, max_tokens: int) -> Task:
  """Returns a task of functions to repeat with a change."""
  edits = code_edits_data.code_edits(tokenizer, count, max_tokens)
  questions = [Question(edit.name, edit.text) for edit in edits]
  return Task('code edits', questions, ends=False)


def from_file(
  path: str, tokenizer: Tokenizer, count: int, max_tokens: int
) -> Task:
  """Reads the first prompts that fit, from a file as in docs/experiments.md.

  Raises:
    UserError: the file cannot be read, a line is invalid, no prompt fits, or
      references and scorers are inconsistent.
  """
  name = pathlib.Path(path).stem
  if path.endswith('.json'):
    texts = prompts.read_json(path, tokenizer, count, max_tokens)
    return Task(name, [Question(text.name, text.text) for text in texts])
  lines = [
    {'prompt': line} if isinstance(line, str) else line
    for line in read_lines(pathlib.Path(path))
  ]
  questions = [
    _question(name, number, line, f'{path}: line {number}')
    for number, line in enumerate(lines, start=1)
  ]
  score = _scorer(path, lines)
  fitting = [
    question
    for question in questions
    if len(tokenizer.encode(question.text)) <= max_tokens
  ]
  if not fitting:
    raise UserError(
      f'prompts {path}: none of its {len(lines)} prompts has at most '
      f'{max_tokens} tokens'
    )
  return Task(name, fitting[:count], score=score)


def _question(name: str, number: int, line: Any, where: str) -> Question:
  if isinstance(line, dict) and 'prompt' in line:
    prompt = line['prompt']
    if not isinstance(prompt, str) or not prompt:
      raise UserError(f'{where}: prompt: got {prompt!r}, expected a text')
    turns = (prompt,)
  else:
    turns = turns_of(line, f"{where} has no 'prompt' and")
  id_, reference = line.get('id', number), line.get('reference', '')
  if type(id_) not in (int, str):
    raise UserError(f'{where}: id: got {id_!r}, expected a text or an integer')
  is_blank = not isinstance(reference, str) or not reference.strip()
  if is_blank and 'reference' in line:
    raise UserError(f'{where}: reference: got {reference!r}, expected a text')
  return Question(f'{name}:{id_}', turns[0], turns[1:], reference)


def _scorer(path: str, lines: Sequence[dict[str, Any]]) -> Callable | None:
  """Returns the scorer of a file; None for a file without references."""
  names = list(dict.fromkeys(line.get('scorer') for line in lines))
  if len(names) > 1:
    raise UserError(
      f'{path}: scorer: got {names}, expected the same one in all lines'
    )
  missing = [i for i, line in enumerate(lines, 1) if 'reference' not in line]
  if len(missing) == len(lines) and names == [None]:
    return None
  if missing:
    raise UserError(
      f'{path}: line {missing[0]} has no reference, expected one in every line '
      'of a file that is scored'
    )
  name = 'exact_match' if names == [None] else names[0]
  check_name(f'{path}: scorer', name, SCORERS)
  if SCORERS[name] is rouge:
    rouge_scorer()  # raises if the package is missing
  return SCORERS[name]


def _questions(found: Sequence[prompts.Prompt]) -> list[Question]:
  return [Question(p.name, p.text, reference=p.reference) for p in found]
