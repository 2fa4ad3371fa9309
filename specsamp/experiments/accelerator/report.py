"""What was timed on a device beside what the plan predicts of it."""

import pathlib
from collections.abc import Sequence

from specsamp.evaluation.methods import Json
from specsamp.evaluation.reporting import report, tables
from specsamp.experiments.accelerator import static_cache
from specsamp.experiments.accelerator.results import Program, Results
from specsamp.experiments.transformers_baseline import OURS, THEIRS
from specsamp.planning.gpu import Nodes
from specsamp.utils import files

_NOTE = (
  'ms: measured, of a round or a pass; of texts the mean of all their rounds, '
  'else medians over turns. τ: tokens a round; models with random weights have '
  'none, and of these plain decoding makes a token a round. in graphs: with '
  'loops and branches in CUDA graphs too.'
)
_PLANNED = (
  'plan: what launch/plan.py predicts of {name}, from none of these times; it '
  'has models in float32 compute at the peak of 16 bits, which they do not '
  'reach. bytes: weights, and caches with all their slots, over the published '
  'bandwidth.'
)
_THEIRS = (
  'transformers: `generate` with a static cache, which it compiles on a GPU, '
  'and other random weights of the same shape; the two took turns, unless one '
  'has its time of an earlier run. Of a turn it has the median over tokens, '
  f'ours the mean, without its first {static_cache.UNTIMED} passes after the '
  "prompt's, in which it may record CUDA graphs anew."
)


def rows(
  programs: Sequence[Program], results: Results
) -> list[dict[str, Json]]:
  """A row for each program that was timed; None where there is no figure."""
  found = {line.key: line for line in results.lines}
  made = []
  for program in programs:
    plain, graphs, theirs = (
      found.get((program.model, program.name, package, in_graphs))
      for package, in_graphs in ((OURS, False), (OURS, True), (THEIRS, False))
    )
    if not any((plain, graphs, theirs)):
      continue
    plan, ms = program.plan, plain and plain.ms
    tau = (plain or graphs or theirs).tokens
    over = lambda value, by: value and by and value / by
    made.append(
      {
        'model': program.model,
        'program': program.name,
        'ms': ms,
        'in graphs ms': graphs and graphs.ms,
        'τ': tau,
        'ms/token': over(ms, tau),
        'plan ms': plan and plan.total,
        'ms / plan': over(ms, plan and plan.total),
        'bytes ms': plan and plan.memory,
        'ms / bytes': over(ms, plan and plan.memory),
        'transformers ms': theirs and theirs.ms,
        'theirs / ours': over(theirs and theirs.ms, ms),
      }
    )
  return made


def table(rows: Sequence[dict[str, Json]], style: str = 'github') -> str:
  """The rows; columns without a figure are left out."""
  names = list(rows[0]) if rows else []
  shown = [name for name in names if any(row[name] for row in rows)]
  cells = [{name: row[name] for name in shown} for row in rows]
  return tables.render(cells, style, digits=3)


def note(topology: Nodes | None, results: Results) -> str:
  """What the columns mean."""
  parts = [_NOTE]
  if topology:
    parts.append(_PLANNED.format(name=topology.name))
  else:
    parts.append(f'No plan: none is known of {report.device()}.')
  if results.has_theirs:
    parts.append(_THEIRS)
  return '\n\n'.join(parts)


def write(
  folder: pathlib.Path,
  title: str,
  programs: Sequence[Program],
  results: Results,
  topology: Nodes | None,
) -> None:
  """Writes summary.json and report.md.

  Args:
    folder: exists.
    title: of the report.
    programs: in their order.
    results: what was timed of them.
    topology: of the predictions; None if there are none.
  """
  found = rows(programs, results)
  files.replace_json(
    folder / 'summary.json',
    {
      'runs': found,
      'device': report.device(),
      'topology': topology and topology.name,
      'versions': report.versions(*[THEIRS, 'torch'] * results.has_theirs),
      'problems': results.problems,
    },
  )
  parts = [f'# {title}', table(found), note(topology, results)]
  parts += [f'Not timed: {problem}' for problem in results.problems]
  parts.append(f'On {report.device()}.')
  files.replace(folder / 'report.md', '\n\n'.join(parts) + '\n')
