"""summary.json and report.md of a comparison."""

import pathlib
from collections.abc import Mapping, Sequence

from specsamp.evaluation import metrics
from specsamp.evaluation.bounds import Bound
from specsamp.evaluation.losslessness.permutation_tests import Finding
from specsamp.evaluation.losslessness.scores import Score
from specsamp.evaluation.metrics import Line, Row
from specsamp.evaluation.reporting import plots, rounds, tables
from specsamp.evaluation.reporting.report import device, versions
from specsamp.evaluation.tasks import Task
from specsamp.evaluation.timing import RoundCost
from specsamp.utils import distributed, files

_SPREAD = (
  'Intervals: 95%, bootstrap over prompts, for others of their kind. '
  'Percentiles are over sequences, prompt pass included.'
)


def write(
  folder: pathlib.Path,
  title: str,
  rows: Sequence[Row],
  costs: Sequence[RoundCost],
  plot: str,
  sections: Sequence[tables.Section] = (),
  lossless: Sequence[Finding] = (),
  bounds: Sequence[Bound] = (),
  pair: str = '',
  command: str = '',
) -> None:
  """Writes summary.json, report.md and a plot into the folder.

  Of several processes the first one does.

  Args:
    folder: exists.
    title: of the report.
    rows: of `metrics.summarize`, and of `metrics.overall` behind them if there
      are several tasks.
    costs: of rounds.
    plot: a name of `plots.PLOTS`, which draws the rows if they hold enough.
    sections: more of the report.
    lossless: what the texts of each method tell, for the summary.
    bounds: on what is accepted, for the summary.
    pair: what decoded, for the pictures' captions.
    command: that makes it, for both.
  """
  if not distributed.is_first():
    return
  summary = {
    'runs': [row.plain() for row in rows],
    'parts': [cost.plain() for cost in costs],
    'device': device(),
    'versions': versions(),
    'lossless': [found.plain() for found in lossless],
    'bounds': [found.plain() for found in bounds],
  }
  files.replace_json(folder / 'summary.json', summary)
  whole = [row for row in rows if row.task == metrics.ALL]
  lines = [f'# {title}', '']
  if whole:
    single = [row for row in rows if row.task != metrics.ALL]
    lines += ['Speedup / τ:', '', tables.by_task(rows), '']
    lines += [tables.table(single), '', 'All tasks together:', '']
  lines += [tables.table(whole or rows), '', tables.note(rows), '']
  lines += [f'On {device()}.']
  if command:
    lines += ['', '```sh', command, '```']
  for section in sections:
    lines += ['', tables.in_style(section, 'github')]
  lines += ['', '## Confidence intervals and latencies', '', _SPREAD, '']
  lines += [tables.spread_table(rows), '', '## Acceptance by position', '']
  lines += [tables.position_table(rows)]
  told = caption(title, pair, command)
  if costs:
    lines += ['', '## A round and its parts', '', tables.cost_table(costs)]
  if any(cost.row for cost in costs):
    rounds.trace(costs, folder / rounds.IMAGE, told)
    lines += ['', f'![{rounds.IMAGE}]({rounds.IMAGE})']
  image = f'{plot}.png'
  plots.PLOTS[plot](rows, folder / image, told)
  if (folder / image).exists():
    lines += ['', f'![{image}]({image})']
  files.replace(folder / 'report.md', '\n'.join(lines) + '\n')


def caption(*what: str) -> str:
  """Of a picture: what it shows, such as a title and a pair, and on what."""
  return ', '.join(filter(None, (*what, device())))


def notes(
  tasks: Sequence[Task],
  lines: Sequence[Line],
  scored: Mapping[str, Score],
  max_prompt_tokens: int,
) -> list[str]:
  """What is not as a task's authors have it.

  Args:
    tasks: that were answered.
    lines: the answers.
    scored: those of the lines, by their ids.
    max_prompt_tokens: so many of a longer conversation were read.

  Returns:
    A sentence for each task and for each such thing.
  """
  found = []
  for task in tasks:
    own = [line for line in lines if line.task == task.name]
    if task.score and None in [scored[line.id].scores for line in own]:
      found.append(
        f'{task.name}: the answers were not run, so that they have no score; '
        '--allow_code_execution runs them, confined.'
      )
    turns = {
      (line.prompt, turn): is_cut
      for line in own
      for turn, is_cut in enumerate(line.cut)
    }
    if any(turns.values()):
      found.append(
        f'{task.name}: {sum(turns.values())} of {len(turns)} turns follow '
        f'more than {max_prompt_tokens} tokens and see the last '
        f'{max_prompt_tokens} of them.'
      )
  return found
