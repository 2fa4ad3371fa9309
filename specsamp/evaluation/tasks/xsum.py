"""XSum: a summary of one sentence after one example, scored by ROUGE.

Narayan et al. 1808.08745; one shot and 128 tokens as in Chen et al. 2302.01318.
"""

from specsamp.errors import UserError
from specsamp.evaluation.tasks.scorers import rouge, rouge_scorer
from specsamp.evaluation.tasks.task import (
  Question,
  Task,
  find,
  read_lines,
  spread,
)

_FILES = 'xsum*.jsonl'


def load(data: str, count: int) -> Task:
  """The task.

  Args:
    data: folder with xsum*.jsonl: an article is a `prompt`, its summary a
      `completion`.
    count: at most so many articles, evenly from all but the first, which is
      the example.

  Raises:
    UserError: no such file, or the package rouge-score is not installed.
  """
  rouge_scorer()
  path = find(data, 'xsum', _FILES)
  first, *lines = read_lines(path, 'prompt', 'completion')
  if not lines:
    raise UserError(f'{path}: one article only, which is the example')
  shot = f'{first["prompt"]}{_summary(first)}\n\n'
  prompts = [
    Question(f'xsum:{i}', f'{shot}{line["prompt"]}', reference=_summary(line))
    for i, line in enumerate(lines, start=1)
  ]
  return Task('xsum', spread(prompts, count), most_new_tokens=128, score=rouge)


def _summary(line) -> str:
  return line['completion'].replace('<|endoftext|>', '').strip()
