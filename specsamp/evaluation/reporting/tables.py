"""Tables of a comparison."""

from collections.abc import Mapping, Sequence

from specsamp.evaluation.bounds import Bound
from specsamp.evaluation.methods import Label
from specsamp.evaluation.metrics import Row
from specsamp.evaluation.reporting.report import Cell, Part, Table
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
_OPTIONAL = (
  'task', 'nodes', 'verifier', 'law', 'paths in rows', 'paper',
)  # fmt: skip


def render(
  cells: Sequence[Mapping[str, Cell]], style: str = 'github', digits: int = 2
) -> str:
  """Returns a table as text; see `Table`."""
  return Table(cells, digits).render(style)


def count(number: int, what: str) -> str:
  """Returns a count such as '1 prompt' or '2 prompts'."""
  return f'{number} {what}' + ('' if number == 1 else 's')


def heads(label: Label) -> dict[str, str]:
  """Returns the first columns of most tables."""
  return {
    'sampling': label.sampling_name,
    'method': label.method_name,
    'draft': label.draft_name,
  }


def table(rows: Sequence[Row]) -> Table:
  """Returns the main table.

  Columns with the same value for all drafts are left out, and so are the nodes
  of chains. The paper's column has its speedup, or its speedup / τ.
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
      'paper': str(row.paper or ''),
    }
    for row in rows
  ]
  drafts = [c for c, row in zip(cells, rows, strict=True) if row.tree.depth]
  for name in _OPTIONAL:
    values = {cell[name] for cell in drafts}
    if len(values) < 2 and (name != 'paper' or not any(values)):
      for cell in cells:
        del cell[name]
  scores = {name for row in rows for name in row.scores}
  return Table(cells, column_digits=dict.fromkeys(scores, 3))


def by_task(rows: Sequence[Row]) -> Table:
  """Returns speedup / τ of every method, with a column per task.

  Args:
    rows: rows of several tasks, and of all of them. The paper's figures follow
      in brackets.
  """
  cells: dict[Label, dict[str, str]] = {}
  for row in rows:
    if row.tree.depth:
      text = f'{row.speedup:.2f} / {row.block_efficiency:.2f}'
      text += f' ({row.paper})' if row.paper else ''
      cells.setdefault(row.label, heads(row))[row.task] = text
  return Table(list(cells.values()))


def spread_table(rows: Sequence[Row]) -> Table:
  """Returns confidence intervals and percentiles of latencies."""

  def between(interval):
    return '–'.join(f'{v:.2f}' for v in interval) if interval else ''

  return Table(
    [
      _task(row, rows)
      | heads(row)
      | {
        'speedup, 95%': between(row.speedup_95),
        'τ, 95%': between(row.block_efficiency_95),
        'α, 95%': between(row.acceptance_rate_95),
      }
      | {
        f'P{percent} {unit}': getattr(row, f'p{percent}_{name}')
        for unit, name in (('ms/token', 'ms'), ('s/sequence', 's'))
        for percent in (50, 90, 99)
      }
      for row in rows
    ]
  )


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
      'method': cost.row.method_name if cost.row else None,
      'draft': cost.draft_name,
      'round ms': cost.round_ms,
      'draft ms': cost.draft_ms,
      'scoring pass ms': cost.score_ms,
      'both ms': cost.both_ms,
      'round / parts': cost.overhead,
      'round / both': cost.verification,
      'speedup': cost.row.speedup if cost.row else None,
      'ideal speedup': cost.ideal_speedup,
    }
    for cost in costs
  ]
  for name in ('method', 'speedup', 'ideal speedup'):
    if not any(cell[name] for cell in cells):
      for cell in cells:
        del cell[name]
  return Table(cells)


def note(rows: Sequence[Row]) -> str:
  """Returns an explanation of the columns, and of lossy rows if any."""
  return _NOTE if all(row.lossless for row in rows) else f'{_NOTE} {_LOSSY}'
