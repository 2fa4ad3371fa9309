"""What to decode, by the names that a config has for it."""

import dataclasses
from typing import Any

from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError, describe_unknown
from specsamp.evaluation.tasks import (
  humaneval,
  instructions,
  spec_bench,
  texts,
  xsum,
)
from specsamp.evaluation.tasks.task import Question, Task, last, tokens_of
from specsamp.utils import user_modules

__all__ = ['NAMES', 'Question', 'Task', 'last', 'load', 'tokens_of']

_OF_DATA = {
  'humaneval': humaneval.load,
  'xsum': xsum.load,
  'alpaca': instructions.alpaca,
  'wmt': instructions.wmt,
}
_OF_LIBRARY = ('code', 'training_code', 'code_edits')
NAMES = (*_OF_LIBRARY, 'code_answers', *_OF_DATA, 'spec_bench')


def load(
  name: str, tokenizer: Tokenizer, count: int, max_tokens: int, data: str = ''
) -> list[Task]:
  """The tasks of a name; spec_bench has six, code_answers three, all others are
  one.

  Args:
    name: code (held-out functions of the standard library), training_code
      (others of it), code_edits, or code_answers, which is three: ends of
      calls, heads of blocks, copied lines; humaneval, xsum, alpaca, wmt,
      spec_bench or one category of it, such as spec_bench/qa; a .json or .jsonl
      file of prompts; or `my.module:Name` of a user's own, which is called with
      what follows here.
    tokenizer: of the target.
    count: prompts wanted of each; of published sets and files, at most.
    max_tokens: in a prompt. Longer prompts of published sets lose their
      beginning, those of files are passed over.
    data: folder in which the published files are.

  Raises:
    UserError: no such task, no such file, one with too few prompts, or a
      user's own that is none.
  """
  if not isinstance(name, str):
    raise UserError(f'task: got {name!r}, expected a name')
  found = [
    dataclasses.replace(task, prompts=_told_apart(task.prompts))
    for task in _load(name, tokenizer, count, max_tokens, data)
  ]
  for task in found:
    if not task.prompts:
      raise UserError(f'task: {name} has no prompt')
  return found


def _load(name, tokenizer, count, max_tokens, data) -> list[Task]:
  first, _, rest = name.partition('/')
  if first == 'spec_bench':
    return spec_bench.load(data, count, rest)
  if name in _OF_DATA:
    return [_OF_DATA[name](data, count)]
  if name in _OF_LIBRARY:
    return [getattr(texts, name)(tokenizer, count, max_tokens)]
  if name == 'code_answers':
    return texts.code_answers(tokenizer, count, max_tokens)
  if name.endswith(('.json', '.jsonl')):
    return [texts.of_file(name, tokenizer, count, max_tokens)]
  if user_modules.is_name(name):
    given = dict(
      tokenizer=tokenizer, count=count, max_tokens=max_tokens, data=data
    )
    return [_checked(name, user_modules.make('task', name, **given))]
  others = (
    ', spec_bench/CATEGORY, a .json or .jsonl file, or your own, '
    f'{user_modules.FORM}'
  )
  raise UserError(describe_unknown('task', name, NAMES, others))


def _checked(name: str, task: Any) -> Task:
  """A user's own, if it is one.

  Its score is tried on a reference, but for one that runs answers.
  """
  if not isinstance(task, Task):
    raise UserError(
      f'task {name}: made a {type(task).__name__}, expected a '
      'specsamp.evaluation.tasks.Task'
    )
  if not isinstance(task.name, str) or not task.name.strip():
    raise UserError(f'task {name}: name: got {task.name!r}, expected a text')
  for i, prompt in enumerate(task.prompts):
    if not isinstance(prompt, Question):
      raise UserError(
        f'task {name}: prompt {i}: got {prompt!r}, expected a '
        'specsamp.evaluation.tasks.Question'
      )
    for text in (prompt.name, prompt.text, *prompt.later):
      if not isinstance(text, str) or not text:
        raise UserError(
          f'task {name}: prompt {i}: got {text!r}, expected a text'
        )
  if task.score is not None and not callable(task.score):
    raise UserError(
      f'task {name}: score: got {task.score!r}, expected a function of a '
      'prompt and an answer'
    )
  if task.score and task.prompts and not task.runs_answers:
    first = task.prompts[0]
    try:
      task.scored(first, first.reference)
    except UserError:
      raise
    except Exception as error:
      raise UserError(
        f'task {name}: score failed: {user_modules.describe(error)}'
      ) from error
  return task


def _told_apart(prompts: list[Question]) -> list[Question]:
  """No two of one name: their answers are found by it."""
  seen: dict[str, int] = {}
  found = []
  for prompt in prompts:
    seen[prompt.name] = count = seen.get(prompt.name, 0) + 1
    name = f'{prompt.name} ({count})' if count > 1 else prompt.name
    found.append(prompt._replace(name=name))
  return found
