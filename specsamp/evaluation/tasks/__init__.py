"""What to decode, by the names that a config has for it."""

from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError
from specsamp.evaluation.tasks import (
  humaneval,
  instructions,
  spec_bench,
  texts,
  xsum,
)
from specsamp.evaluation.tasks.task import Question, Task, tokens_of

__all__ = ['NAMES', 'Question', 'Task', 'load', 'tokens_of']

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
