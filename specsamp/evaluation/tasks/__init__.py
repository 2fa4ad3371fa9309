"""What to decode, by the names that a config has for it."""

import dataclasses

from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError
from specsamp.evaluation.tasks import (
  humaneval,
  instructions,
  spec_bench,
  texts,
  xsum,
)
from specsamp.evaluation.tasks.task import Question, Task, last, tokens_of

__all__ = ['NAMES', 'Question', 'Task', 'last', 'load', 'tokens_of']

_OF_DATA = {
  'humaneval': humaneval.load,
  'xsum': xsum.load,
  'alpaca': instructions.alpaca,
  'wmt': instructions.wmt,
}
NAMES = ('code', 'code_edits', *_OF_DATA, 'spec_bench')


def load(
  name: str, tokenizer: Tokenizer, count: int, max_tokens: int, data: str = ''
) -> list[Task]:
  """The tasks of a name; spec_bench has six, all others are one.

  Args:
    name: code (held-out functions of the standard library) or code_edits;
      humaneval, xsum, alpaca, wmt, spec_bench or one category of it, such as
      spec_bench/qa; or a .json or .jsonl file of prompts.
    tokenizer: of the target.
    count: prompts wanted of each; of published sets, at most.
    max_tokens: in a prompt. Longer prompts of published sets lose their
      beginning, those of files are passed over.
    data: folder in which the published files are.

  Raises:
    UserError: no such task, no such file, or one with too few prompts.
  """
  if not isinstance(name, str):
    raise UserError(f'tasks: got {name!r}, expected a name')
  found = [
    dataclasses.replace(task, prompts=_told_apart(task.prompts))
    for task in _load(name, tokenizer, count, max_tokens, data)
  ]
  for task in found:
    if not task.prompts:
      raise UserError(f'tasks: {name} has no prompt')
  return found


def _load(name, tokenizer, count, max_tokens, data) -> list[Task]:
  first, _, rest = name.partition('/')
  if first == 'spec_bench':
    return spec_bench.load(data, count, rest)
  if name in _OF_DATA:
    return [_OF_DATA[name](data, count)]
  if name in ('code', 'code_edits'):
    return [getattr(texts, name)(tokenizer, count, max_tokens)]
  if name.endswith(('.json', '.jsonl')):
    return [texts.of_file(name, tokenizer, count, max_tokens)]
  raise UserError(
    f'tasks: got {name!r}, expected one of {", ".join(NAMES)}, '
    'spec_bench/CATEGORY, or a .json or .jsonl file'
  )


def _told_apart(prompts: list[Question]) -> list[Question]:
  """No two of one name: their answers are found by it."""
  seen: dict[str, int] = {}
  found = []
  for prompt in prompts:
    seen[prompt.name] = count = seen.get(prompt.name, 0) + 1
    name = f'{prompt.name} ({count})' if count > 1 else prompt.name
    found.append(prompt._replace(name=name))
  return found
