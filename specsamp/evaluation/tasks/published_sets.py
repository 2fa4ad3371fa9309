"""Tasks of published sets of prompts, from files in a data folder.

Each function takes the data folder and an upper bound on the number of prompts,
which are chosen evenly from all. It raises a `UserError` if the set's file does
not exist or is damaged.
"""

import re

from specsamp.errors import UserError, check_name
from specsamp.evaluation import sandbox
from specsamp.evaluation.tasks.scorers import rouge, rouge_scorer
from specsamp.evaluation.tasks.task import (
  Question,
  Task,
  find,
  read_lines,
  spread,
  turns_of,
)
from specsamp.utils import files

SPEC_BENCH_CATEGORIES = (
  'mt_bench', 'translation', 'summarization', 'qa', 'math_reasoning', 'rag',
)  # fmt: skip


def humaneval(data: str, count: int) -> Task:
  """Returns functions to complete, scored by their tests.

  Source: Chen et al. 2107.03374.
  """
  path = find(data, 'humaneval')
  prompts = [
    Question(
      line['task_id'],
      line['prompt'],
      reference=f'{line["test"]}\ncheck({line["entry_point"]})',
    )
    for line in read_lines(path, 'task_id', 'prompt', 'test', 'entry_point')
  ]
  return Task(
    'humaneval', spread(prompts, count), score=run_tests, runs_answers=True
  )


def run_tests(prompt: Question, answer: str) -> dict[str, float | str]:
  """Runs a function's tests in `sandbox.run`; returns pass@1 and a reason."""
  program = f'{prompt.text}{function_body(answer)}\n{prompt.reference}\n'
  outcome = sandbox.run(program)
  return {'pass@1': float(outcome.passed), 'why': outcome.why}


def function_body(answer: str) -> str:
  """Returns an answer up to the first line that leaves the function."""
  leaves = re.search(r'\n\S', answer)
  return answer[: leaves.start()] if leaves else answer


def xsum(data: str, count: int) -> Task:
  """Returns articles to summarize after one example, scored by ROUGE.

  Source: Narayan et al. 1808.08745. There is one example, the first article,
  and an answer has 128 tokens, as in Chen et al. 2302.01318.
  """
  rouge_scorer()  # raises if the package is missing
  path = find(data, 'xsum', 'xsum*.jsonl')
  first, *lines = read_lines(path, 'prompt', 'completion')
  if not lines:
    raise UserError(f'{path}: only one article, which is the example')
  summary = lambda line: line['completion'].replace('<|endoftext|>', '').strip()
  shot = f'{first["prompt"]}{summary(first)}\n\n'
  prompts = [
    Question(f'xsum:{i}', f'{shot}{line["prompt"]}', reference=summary(line))
    for i, line in enumerate(lines, start=1)
  ]
  return Task('xsum', spread(prompts, count), most_new_tokens=128, score=rouge)


def alpaca(data: str, count: int) -> Task:
  """Returns instructions, some with an input, as in Yang et al. 2401.06706."""
  prompts = []
  for i, entry in enumerate(_read_list(data, 'alpaca', dict)):
    if isinstance(entry.get('instruction'), str):
      text = f'### Instruction:\n{entry["instruction"]}\n\n'
      if entry.get('input'):
        text += f'### Input:\n{entry["input"]}\n\n'
      prompts.append(Question(f'alpaca:{i}', f'{text}### Response:\n'))
  return Task('alpaca', spread(prompts, count))


def wmt(data: str, count: int) -> Task:
  """Returns English sentences to translate, as in Yang et al. 2401.06706."""
  texts = _read_list(data, 'wmt', str)
  prompts = [Question(f'wmt:{i}', text) for i, text in enumerate(texts)]
  return Task('wmt', spread(prompts, count))


def _read_list(data: str, name: str, kind: type) -> list:
  path = find(data, name)
  with files.reading(f'{path}'):
    entries = files.read_json(path)
    if not isinstance(entries, list) or not entries:
      raise ValueError('expected a JSON list')
    for i, entry in enumerate(entries):
      if not isinstance(entry, kind):
        raise ValueError(f'entry {i}: expected {kind.__name__}')
  return entries


def spec_bench(data: str, count: int, category: str = '') -> list[Task]:
  """Returns a task for each category of Spec-Bench, or for the named one.

  Source: Xia et al. 2401.07851. The eight categories of MT-bench are one task
  of conversations with two turns.
  """
  if category:
    check_name('task: spec_bench', category, SPEC_BENCH_CATEGORIES)
  path = find(data, 'spec_bench')
  questions = {name: [] for name in SPEC_BENCH_CATEGORIES}
  for number, line in enumerate(read_lines(path, 'category'), start=1):
    first, *later = turns_of(line, f'{path}: line {number}')
    kind = line['category'] if line['category'] in questions else 'mt_bench'
    name = f'{kind}:{line.get("question_id", number)}'
    questions[kind].append(Question(name, f'{first}\n\n', tuple(later)))
  tasks = [
    Task(name, spread(prompts, count))
    for name, prompts in questions.items()
    if prompts and category in ('', name)
  ]
  if not tasks:
    raise UserError(f'{path}: no question of {category}')
  return tasks
