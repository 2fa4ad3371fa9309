"""HumanEval: functions to complete, which are right if their tests pass.

Chen et al. 2107.03374.
"""

from specsamp.evaluation import sandbox
from specsamp.evaluation.tasks.task import (
  Question,
  Task,
  find,
  read_lines,
  spread,
)


def load(data: str, count: int) -> Task:
  """The task.

  Args:
    data: folder with HumanEval.jsonl.gz.
    count: at most so many problems, evenly from the 164.
  """
  path = find(data, 'humaneval')
  lines = read_lines(path, 'task_id', 'prompt', 'test', 'entry_point')
  prompts = [
    Question(line['task_id'], line['prompt'], reference=_checks(line))
    for line in lines
  ]
  return Task(
    'humaneval', spread(prompts, count), score=score, runs_answers=True
  )


def score(prompt: Question, answer: str) -> dict[str, float | str]:
  """Whether the function passes its tests, and what became of it.

  The answer is run, confined as `sandbox.run` confines it.
  """
  program = f'{prompt.text}{body(answer)}\n{prompt.reference}\n'
  outcome = sandbox.run(program)
  return {'pass@1': float(outcome.passed), 'why': outcome.why}


def body(answer: str) -> str:
  """What belongs to the function: up to a line that is not indented."""
  first, *lines = answer.split('\n')
  kept = [first]
  for line in lines:
    if line and not line[0].isspace():
      break
    kept.append(line)
  return '\n'.join(kept)


def _checks(line) -> str:
  return f'{line["test"]}\ncheck({line["entry_point"]})'
