"""Tasks to decode, by the names that a config has for them."""

import collections
import dataclasses
from typing import Any

from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError, describe_unknown
from specsamp.evaluation.tasks import published_sets, texts
from specsamp.evaluation.tasks.task import Question, Task, last, tokens_of
from specsamp.utils import user_modules

__all__ = ['NAMES', 'Question', 'Task', 'last', 'load', 'tokens_of']

_OF_DATA = ('humaneval', 'xsum', 'alpaca', 'wmt')
_OF_LIBRARY = ('code', 'training_code', 'code_edits')
NAMES = (*_OF_LIBRARY, 'code_answers', *_OF_DATA, 'spec_bench')


def load(
  name: str, tokenizer: Tokenizer, count: int, max_tokens: int, data: str = ''
) -> list[Task]:
  """Returns the tasks of a name.

  spec_bench has six tasks, code_answers has three, all other names have one.

  Args:
    name: code (held-out functions of the standard library), training_code
      (other functions of it), code_edits, or code_answers (ends of calls, heads
      of blocks, copied lines); humaneval, xsum, alpaca, wmt, spec_bench or one
      category of it, such as spec_bench/qa; a .json or .jsonl file of prompts;
      or a user-defined `my.module:Name`, which is called with the arguments
      below.
    tokenizer: tokenizer of the target.
    count: number of prompts of each task; an upper bound for published sets and
      files.
    max_tokens: upper bound on the tokens of a prompt. Longer prompts of
      published sets lose their beginning, those of files are skipped.
    data: folder of the published files.

  Raises:
    UserError: the task or its file does not exist or is invalid, or it has too
      few prompts.
  """
  if not isinstance(name, str):
    raise UserError(f'task: got {name!r}, expected a name')
  tasks = _load(name, tokenizer, count, max_tokens, data)
  if not all(task.prompts for task in tasks):
    raise UserError(f'task: {name} has no prompt')
  return [
    dataclasses.replace(task, prompts=_with_unique_names(task.prompts))
    for task in tasks
  ]


def _load(name, tokenizer, count, max_tokens, data) -> list[Task]:
  first, _, category = name.partition('/')
  if first == 'spec_bench':
    return published_sets.spec_bench(data, count, category)
  if name in _OF_DATA:
    return [getattr(published_sets, name)(data, count)]
  if name in _OF_LIBRARY:
    return [getattr(texts, name)(tokenizer, count, max_tokens)]
  if name == 'code_answers':
    return texts.code_answers(tokenizer, count, max_tokens)
  if name.endswith(('.json', '.jsonl')):
    return [texts.from_file(name, tokenizer, count, max_tokens)]
  if user_modules.is_name(name):
    arguments = dict(
      tokenizer=tokenizer, count=count, max_tokens=max_tokens, data=data
    )
    return [_checked(name, user_modules.make('task', name, **arguments))]
  others = (
    ', spec_bench/CATEGORY, a .json or .jsonl file, or a user-defined '
    f'{user_modules.FORM}'
  )
  raise UserError(describe_unknown('task', name, NAMES, others))


def _checked(name: str, task: Any) -> Task:
  """Checks a user-defined task, and scores a reference with it."""

  def refuse(what: str, got: Any, expected: str) -> UserError:
    return UserError(f'task {name}: {what}: got {got!r}, expected {expected}')

  if not isinstance(task, Task):
    raise UserError(
      f'task {name}: made a {type(task).__name__}, expected a '
      'specsamp.evaluation.tasks.Task'
    )
  if not isinstance(task.name, str) or not task.name.strip():
    raise refuse('name', task.name, 'a text')
  for i, prompt in enumerate(task.prompts):
    if not isinstance(prompt, Question):
      expected = 'a specsamp.evaluation.tasks.Question'
      raise refuse(f'prompt {i}', prompt, expected)
    for text in (prompt.name, prompt.text, *prompt.later):
      if not isinstance(text, str) or not text:
        raise refuse(f'prompt {i}', text, 'a text')
  if task.score is not None and not callable(task.score):
    expected = 'a function of a prompt and an answer'
    raise refuse('score', task.score, expected)
  if task.score and task.prompts and not task.runs_answers:
    try:
      task.scored(task.prompts[0], task.prompts[0].reference)
    except UserError:
      raise
    except Exception as error:
      raise UserError(
        f'task {name}: score failed: {user_modules.describe(error)}'
      ) from error
  return task


def _with_unique_names(prompts: list[Question]) -> list[Question]:
  """Numbers equal names, because answers are found by them."""
  counts = collections.Counter()
  unique = []
  for prompt in prompts:
    counts[prompt.name] += 1
    count = counts[prompt.name]
    name = f'{prompt.name} ({count})' if count > 1 else prompt.name
    unique.append(prompt._replace(name=name))
  return unique
