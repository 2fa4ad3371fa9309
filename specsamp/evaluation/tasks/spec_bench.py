"""Spec-Bench: six kinds of prompts, to measure speculation on.

Xia et al. 2401.07851. What its eight categories of MT-bench hold are
conversations of two turns: the second question is asked after the answer to the
first one.
"""

from specsamp.errors import UserError, check_name
from specsamp.evaluation.tasks.task import (
  Question,
  Task,
  find,
  read_lines,
  spread,
  turns_of,
)

CATEGORIES = (
  'mt_bench', 'translation', 'summarization', 'qa', 'math_reasoning', 'rag',
)  # fmt: skip


def load(data: str, count: int, category: str = '') -> list[Task]:
  """A task for each category.

  Args:
    data: folder with question.jsonl.
    count: at most so many prompts of each, evenly from all of them.
    category: only this one.

  Raises:
    UserError: no such category, or no such file.
  """
  if category:
    check_name('task: spec_bench', category, CATEGORIES)
  path = find(data, 'spec_bench')
  found: dict[str, list[Question]] = {name: [] for name in CATEGORIES}
  lines = read_lines(path, 'category')
  for number, line in enumerate(lines, start=1):
    first, *later = turns_of(line, f'{path}: line {number}')
    # MT-bench's own categories: writing, roleplay, ..
    kind = line['category'] if line['category'] in found else 'mt_bench'
    found[kind].append(
      Question(
        f'{kind}:{line.get("question_id", number)}',
        f'{first}\n\n',
        tuple(later),
      )
    )
  chosen = [
    Task(name, spread(prompts, count))
    for name, prompts in found.items()
    if prompts and category in ('', name)
  ]
  if not chosen:
    raise UserError(f'{path}: no question of {category}')
  return chosen
