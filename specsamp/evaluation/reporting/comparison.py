"""The report of a comparison: report.md, summary.json and plots."""

import pathlib
from collections.abc import Mapping, Sequence

from specsamp.evaluation import metrics
from specsamp.evaluation.bounds import Bound
from specsamp.evaluation.losslessness import Finding, Score
from specsamp.evaluation.metrics import Line, Row
from specsamp.evaluation.reporting import plots, tables
from specsamp.evaluation.reporting.report import Figure, Part, Report
from specsamp.evaluation.tasks import Task
from specsamp.evaluation.timing import RoundCost


def write(
  folder: pathlib.Path,
  title: str,
  rows: Sequence[Row],
  costs: Sequence[RoundCost],
  plot: str,
  sections: Sequence[Part] = (),
  lossless: Sequence[Finding] = (),
  bounds: Sequence[Bound] = (),
  pair: str = '',
  command: str = '',
) -> Report:
  """Writes summary.json, report.md and plots into the folder.

  Args:
    folder: folder that exists.
    title: title of the report.
    rows: rows of `metrics.summarize`, followed by those of `metrics.overall` if
      there are several tasks.
    costs: costs of rounds.
    plot: a name of `plots.PLOTS`.
    sections: further parts of the report.
    lossless, bounds: findings for the summary.
    pair: name of the models, for captions.
    command: command that makes the report.
  """
  report = Report(title, command)
  overall = [row for row in rows if row.task == metrics.ALL]
  if overall:
    single = [row for row in rows if row.task != metrics.ALL]
    report.add('Speedup / τ:', tables.by_task(rows), tables.table(single))
    report.add('All tasks together:')
  report.add(tables.table(overall or rows), tables.note(rows), *sections)
  if costs:
    report.add('## A round and its parts', tables.cost_table(costs))
  report.details += [
    '## Confidence intervals and latencies',
    'Intervals: 95%, from a bootstrap over prompts. Percentiles are over '
    'sequences, prompt pass included.',
    tables.spread_table(rows),
    '## Acceptance by position',
    tables.position_table(rows),
  ]
  figures = {f'{plot}.png': plots.PLOTS[plot](rows)}
  if any(cost.row for cost in costs):
    figures['rounds.png'] = plots.trace(costs)
  caption = ', '.join(filter(None, (title, pair, command, report.device)))
  for name, figure in figures.items():
    if figure is not None:
      plots.save(figure, folder / name, caption)
      report.details.append(Figure(name))
  summary = {
    'runs': [row.plain() for row in rows],
    'parts': [cost.plain() for cost in costs],
    'lossless': [finding.plain() for finding in lossless],
    'bounds': [bound.plain() for bound in bounds],
  }
  report.write(folder, summary)
  return report


def notes(
  tasks: Sequence[Task],
  lines: Sequence[Line],
  scores: Mapping[str, Score],
  max_prompt_tokens: int,
) -> list[str]:
  """Returns a sentence for each difference between a task and its original.

  Turns after more than `max_prompt_tokens` tokens see only the last ones.
  """
  sentences = []
  for task in tasks:
    answers = [line for line in lines if line.task == task.name]
    if task.score and any(scores[line.id].scores is None for line in answers):
      sentences.append(
        f'{task.name}: the answers were not run and have no score; '
        '--allow_code_execution runs them in a subprocess.'
      )
    cuts = {line.prompt: line.cut for line in answers}.values()
    if cut := sum(map(sum, cuts)):
      sentences.append(
        f'{task.name}: {cut} of {sum(map(len, cuts))} turns follow more than '
        f'{max_prompt_tokens} tokens and see the last {max_prompt_tokens} of '
        'them.'
      )
  return sentences
