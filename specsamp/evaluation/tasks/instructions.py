"""Alpaca's instructions and WMT's sentences, as in Yang et al. 2401.06706."""

from specsamp.errors import UserError
from specsamp.evaluation.tasks.task import Question, Task, find, spread
from specsamp.utils import files


def alpaca(data: str, count: int) -> Task:
  """Instructions, some with an input, after which a response is due.

  Args:
    data: folder with alpaca_data.json: a list of `instruction`, `input`.
    count: at most so many, evenly from all.
  """
  prompts = [
    Question(f'alpaca:{i}', _instruction(entry))
    for i, entry in enumerate(_read(data, 'alpaca', dict))
    if isinstance(entry.get('instruction'), str)
  ]
  return Task('alpaca', spread(prompts, count))


def wmt(data: str, count: int) -> Task:
  """English sentences to be translated to German.

  Args:
    data: folder with wmt_ende.json: a list of texts.
    count: at most so many, evenly from all.
  """
  prompts = [
    Question(f'wmt:{i}', text) for i, text in enumerate(_read(data, 'wmt', str))
  ]
  return Task('wmt', spread(prompts, count))


def _instruction(entry) -> str:
  text = f'### Instruction:\n{entry["instruction"]}\n\n'
  if entry.get('input'):
    text += f'### Input:\n{entry["input"]}\n\n'
  return f'{text}### Response:\n'


def _read(data: str, name: str, kind: type) -> list:
  path = find(data, name)
  try:
    found = files.read_json(path)
  except (OSError, ValueError) as error:
    raise UserError(f'{path}: {error}') from None
  if not isinstance(found, list) or not found:
    raise UserError(f'{path}: expected a JSON list')
  for i, entry in enumerate(found):
    if not isinstance(entry, kind):
      raise UserError(f'{path}: entry {i} is no {kind.__name__}')
  return found
