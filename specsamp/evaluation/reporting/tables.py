"""Tables of a comparison."""

from collections.abc import Sequence

import numpy as np

from specsamp.evaluation.bounds import Bound
from specsamp.evaluation.methods import Label
from specsamp.evaluation.metrics import Line, Row
from specsamp.evaluation.reporting.report import Part, Table
from specsamp.evaluation.timing import RoundCost

_NOTE = (
  'τ: block efficiency, tokens per round with the bonus token, before the '
  'budget cuts the last round. α: accepted over drafted tokens, where each '
  'depth of a tree counts as one. Speedup: over autoregressive sampling of the '
  'same target and prompts, runs interleaved, prompt pass included, compile '
  'time excluded.'
)
_LOSSY = (
  'A method that is NOT lossless emits other texts than the target would, '
  'so its figures are not a speedup of the same sampling.'
)
_BOUND = (
  'The share of rounds that accept the first drafted token, and α*, the '
  'largest share that any lossless rule accepts of the same candidates under '
  'the same distributions (2502.18779), in separate rounds.'
)
# Columns that are left out if all drafts have the same value.
_OPTIONAL = ('task', 'nodes', 'verifier', 'law', 'paths in rows')


def heads(label: Label) -> dict[str, str]:
  """Returns the first columns of most tables."""
  return {
    'sampling': label.sampling_name,
    'method': label.method_name,
    'draft': label.draft_name,
  }


def table(rows: Sequence[Row]) -> Table:
  """Returns the main table, with a column of nodes only if there are trees.

  The column of a paper has its speedup, or its speedup / τ.
  """
  has_trees = not all(row.tree.is_chain for row in rows)
  cells = [
    {
      'task': row.task,
      **heads(row),
      'nodes': row.tree.size if row.tree.depth and has_trees else None,
      'verifier': row.verifier,
      'law': row.law.replace('_', ' '),
      'paths in rows': '' if row.tree_attention else 'yes',
      'ms/token': row.ms_per_token,
      'speedup': row.speedup,
      'τ': row.block_efficiency,
      'α': row.acceptance_rate,
      'round ms': row.round_ms,
      'tokens': row.tokens,
      **row.scores,
      'paper': row.paper and str(row.paper),
    }
    for row in rows
  ]
  drafts = [c for c, row in zip(cells, rows, strict=True) if row.tree.depth]
  for name in _OPTIONAL:
    if len({cell[name] for cell in drafts}) < 2:
      for cell in cells:
        del cell[name]
  scores = {name for row in rows for name in row.scores}
  return Table(cells, column_digits=dict.fromkeys(scores, 3))


def by_task(rows: Sequence[Row]) -> Table:
  """Returns speedup / τ of every method, with a column per task."""
  cells: dict[Label, dict[str, str]] = {}
  for row in rows:
    if row.tree.depth:
      text = f'{row.speedup:.2f} / {row.block_efficiency:.2f}'
      text += f' ({row.paper})' if row.paper else ''
      cells.setdefault(row.label, heads(row))[row.task] = text
  return Table(list(cells.values()))


def spread_table(rows: Sequence[Row]) -> Table:
  """Returns confidence intervals and percentiles of latencies."""
  cells = []
  for row in rows:
    cell = _task(row, rows) | heads(row)
    for name, interval in (
      ('speedup', row.speedup_95),
      ('τ', row.block_efficiency_95),
      ('α', row.acceptance_rate_95),
    ):
      cell[f'{name}, 95%'] = '–'.join(f'{end:.2f}' for end in interval or ())
    for unit, name in (('ms/token', 'ms'), ('s/sequence', 's')):
      for percent in (50, 90, 99):
        cell[f'P{percent} {unit}'] = getattr(row, f'p{percent}_{name}')
    cells.append(cell)
  return Table(cells)


def position_table(rows: Sequence[Row]) -> Table:
  """Returns the share of rounds that accepted the token at each position."""
  drafted = [row for row in rows if row.tree.depth]
  return Table(
    [
      _task(row, drafted)
      | heads(row)
      | {str(i): p for i, p in enumerate(row.acceptance_by_position, start=1)}
      for row in sorted(drafted, key=lambda row: -row.tree.depth)
    ]
  )


def _task(row: Row, rows: Sequence[Row]) -> dict[str, str]:
  """Returns the column of tasks, if there are several."""
  return {'task': row.task} if len({row.task for row in rows}) > 1 else {}


def draft_length_section(lines: Sequence[Line]) -> list[Part]:
  """Returns the shares of the draft lengths that adaptive drafters chose."""
  groups: dict[tuple, list[int]] = {}
  for line in lines:
    if line.depths:
      key = line.task, *heads(line).values()
      groups.setdefault(key, []).extend(line.num_drafted_per_round)
  if not groups:
    return []
  lengths = sorted(set().union(*groups.values()))
  names = 'task', 'sampling', 'method', 'draft'
  cells = [
    dict(zip(names, key, strict=True))
    | {str(length): drafted.count(length) / len(drafted) for length in lengths}
    | {'mean': float(np.mean(drafted))}
    for key, drafted in groups.items()
  ]
  note = 'The share of the rounds by the number of drafted tokens.'
  return ['## Draft lengths', note, Table(cells)]


def bound_section(bounds: Sequence[Bound]) -> list[Part]:
  """Returns a section on the acceptance of first tokens and its bound."""
  cells = [
    heads(bound)
    | {
      'verifier': bound.verifier,
      'law': bound.law.replace('_', ' '),
      'accepted': bound.accepted,
      'at most': bound.at_most,
      'rounds': bound.rounds,
    }
    for bound in bounds
  ]
  return ['## The first token of a draft', _BOUND, Table(cells, digits=3)]


def cost_table(costs: Sequence[RoundCost]) -> Table:
  """Returns the costs of rounds and of their parts."""
  cells = [
    {
      'sampling': cost.sampling_name,
      'method': cost.row and cost.row.method_name,
      'draft': cost.draft_name,
      'round ms': cost.round_ms,
      'draft ms': cost.draft_ms,
      'scoring pass ms': cost.score_ms,
      'both ms': cost.both_ms,
      'round / parts': cost.overhead,
      'round / both': cost.verification,
      'speedup': cost.row and cost.row.speedup,
      'ideal speedup': cost.ideal_speedup,
    }
    for cost in costs
  ]
  return Table(cells)


def note(rows: Sequence[Row]) -> str:
  """Returns an explanation of the columns, and of lossy rows if any."""
  return _NOTE if all(row.lossless for row in rows) else f'{_NOTE} {_LOSSY}'
