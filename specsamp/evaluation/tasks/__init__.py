"""Tasks to decode, by the names that a config has for them."""

import collections
from typing import Any

from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError, describe_unknown
from specsamp.evaluation.tasks import published_sets, texts
from specsamp.evaluation.tasks.task import Question, Task, last, tokens_of
from specsamp.utils import user_modules

__all__ = ['NAMES', 'Question', 'Task', 'last', 'load', 'tokens_of']

_OF_DATA = ('humaneval', 'xsum', 'alpaca', 'wmt')
_OF_LIBRARY = ('code', 'training_code', 'code_edits')
NAMES = (*_OF_LIBRARY, *_OF_DATA, 'spec_bench')


def load(
  name: str, tokenizer: Tokenizer, count: int, max_tokens: int, data: str = ''
) -> list[Task]:
  """Returns the tasks of a name: one, or six for spec_bench.

  Args:
    name: one of `NAMES`; spec_bench/CATEGORY; a .json or .jsonl file of
      prompts; or a user-defined `my.module:Name`, which is called with the
      arguments below.
    tokenizer: tokenizer of the target.
    count: number of prompts of each task; an upper bound for published sets and
      files.
    max_tokens: upper bound on the tokens of a prompt. Longer prompts of
      published sets lose their beginning, and longer ones of files are skipped.
    data: folder of the published files.

  Raises:
    UserError: the task or its file does not exist or is invalid, or it has too
      few prompts.
  """
  if not isinstance(name, str):
    raise UserError(f'task: got {name!r}, expected a name')
  tasks = _load(name, tokenizer, count, max_tokens, data)
  for task in tasks:
    if not task.prompts:
      raise UserError(f'task: {name} has no prompt')
    names = collections.Counter()
    for i, prompt in enumerate(task.prompts):  # answers are found by the names
      names[prompt.name] += 1
      if names[prompt.name] > 1:
        unique = f'{prompt.name} ({names[prompt.name]})'
        task.prompts[i] = prompt._replace(name=unique)
  return tasks


def _load(name, tokenizer, count, max_tokens, data) -> list[Task]:
  first, _, category = name.partition('/')
  if first == 'spec_bench':
    return published_sets.spec_bench(data, count, category)
  if name in _OF_DATA:
    return [getattr(published_sets, name)(data, count)]
  if name in _OF_LIBRARY:
    return [getattr(texts, name)(tokenizer, count, max_tokens)]
  if name.endswith(('.json', '.jsonl')):
    return [texts.from_file(name, tokenizer, count, max_tokens)]
  if user_modules.is_name(name):
    arguments = dict(
      tokenizer=tokenizer, count=count, max_tokens=max_tokens, data=data
    )
    task = user_modules.make('task', name, **arguments)
    _check(name, task)
    return [task]
  others = (
    ', spec_bench/CATEGORY, a .json or .jsonl file, or a user-defined '
    f'{user_modules.FORM}'
  )
  raise UserError(describe_unknown('task', name, NAMES, others))


def _check(name: str, task: Any) -> None:
  """Checks a user-defined task, and that it can score a reference."""
  if not isinstance(task, Task):
    raise UserError(
      f'task {name}: made a {type(task).__name__}, expected a '
      'specsamp.evaluation.tasks.Task'
    )
  named_texts = [('name', task.name)]
  for i, prompt in enumerate(task.prompts):
    if not isinstance(prompt, Question):
      raise UserError(
        f'task {name}: prompt {i}: got {prompt!r}, expected a '
        'specsamp.evaluation.tasks.Question'
      )
    for text in (prompt.name, prompt.text, *prompt.later):
      named_texts.append((f'prompt {i}', text))
  for what, text in named_texts:
    if not isinstance(text, str) or not text.strip():
      raise UserError(f'task {name}: {what}: got {text!r}, expected a text')
  if task.score and task.prompts and not task.runs_answers:
    try:
      task.scored(task.prompts[0], task.prompts[0].reference)
    except UserError:
      raise
    except Exception as error:
      raise UserError(
        f'task {name}: score failed: {user_modules.describe(error)}'
      ) from error
