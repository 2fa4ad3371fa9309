"""The rows of a comparison as tables."""

from collections.abc import Callable, Mapping, Sequence

import tabulate

from specsamp.evaluation.bounds import Bound
from specsamp.evaluation.methods import Label
from specsamp.evaluation.metrics import Row
from specsamp.evaluation.timing import RoundCost

Cell = str | float | None
# Of a report: a text, or (style) -> text where there are tables in it.
Section = str | Callable[[str], str]

_NOTE = (
  'τ: block efficiency, tokens a round, the bonus token included, before the '
  'budget cuts the last round. α: accepted over drafted tokens, where each '
  'depth of a tree counts as one. Speedup: over autoregressive sampling of the '
  'same target and prompts, runs taking turns, prompt pass included, compile '
  'time left out.'
)
_LOSSY = (
  'A method that is NOT lossless emits other texts than the target would, '
  'so its figures are no speedup of the same sampling.'
)
_BOUND = (
  '## The first token of a draft\n\nThe share of rounds that accept it, and '
  'the most that any lossless rule accepts of the same candidates under the '
  'same distributions, α* (2502.18779), in rounds of their own.'
)
_OPTIONAL = (
  'task', 'nodes', 'verifier', 'law', 'paths in rows', 'paper',
)  # fmt: skip


def render(
  cells: Sequence[Mapping[str, Cell]], style: str = 'github', digits: int = 2
) -> str:
  """A table of cells by the names of their columns.

  Args:
    cells: a dict a row.
    style: of tabulate.
    digits: behind the point.
  """
  return tabulate.tabulate(
    cells, headers='keys', tablefmt=style, floatfmt=f'.{digits}f'
  )


def in_style(section: Section, style: str) -> str:
  """The section's text, its tables in a style of tabulate's."""
  return section if isinstance(section, str) else section(style)


def count(number: int, what: str) -> str:
  """Such as '1 prompt' and '2 prompts'."""
  return f'{number} {what}' + ('' if number == 1 else 's')


def heads(label: Label) -> dict[str, str]:
  """The columns that nearly every table begins with."""
  return {
    'sampling': label.sampling_name,
    'method': label.method_name,
    'draft': label.draft_name,
  }


def _columns(row: Row) -> dict[str, Cell]:
  return {
    'task': row.task,
    **heads(row),
    'nodes': row.tree.size if row.tree.depth else None,
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


def table(rows: Sequence[Row], style: str = 'github') -> str:
  """The rows as text.

  A column of what all drafts have in common is left out, and so are the nodes
  of chains. What the paper reports is its speedup, or speedup / τ.
  """
  cells = [_columns(row) for row in rows]
  if all(row.tree.is_chain for row in rows):
    for cell in cells:
      cell['nodes'] = None
  drafts = [c for c, row in zip(cells, rows, strict=True) if row.tree.depth]
  for name in _OPTIONAL:
    found = {cell[name] for cell in drafts}
    if len(found) < 2 and (name != 'paper' or not any(found)):
      for cell in cells:
        del cell[name]
  scores = {name for row in rows for name in row.scores}
  names = dict.fromkeys(name for cell in cells for name in cell)
  return tabulate.tabulate(
    cells,
    headers='keys',
    tablefmt=style,
    floatfmt=['.3f' if name in scores else '.2f' for name in names],
  )


def by_task(rows: Sequence[Row], style: str = 'github') -> str:
  """Speedup / τ of every method, a column for each task, as papers have it.

  Args:
    rows: of several tasks, and of all of them; what the paper reports follows
      in brackets.
    style: of tabulate.
  """
  cells: dict[Label, dict[str, str]] = {}
  for row in rows:
    if not row.tree.depth:
      continue
    line = cells.setdefault(row.label, heads(row))
    text = f'{row.speedup:.2f} / {row.block_efficiency:.2f}'
    line[row.task] = text + (f' ({row.paper})' if row.paper else '')
  return render(list(cells.values()), style)


def spread_table(rows: Sequence[Row]) -> str:
  """How sure the figures are, and how even the latencies."""

  def between(values):
    return '–'.join(f'{v:.2f}' for v in values) if values else ''

  cells = [
    {
      **heads(row),
      'speedup, 95%': between(row.speedup_95),
      'τ, 95%': between(row.block_efficiency_95),
      'α, 95%': between(row.acceptance_rate_95),
      **{
        f'P{percent} {unit}': getattr(row, f'p{percent}_{name}')
        for unit, name in (('ms/token', 'ms'), ('s/sequence', 's'))
        for percent in (50, 90, 99)
      },
    }
    for row in rows
  ]
  return render(_with_tasks(rows, cells))


def position_table(rows: Sequence[Row]) -> str:
  """The share of rounds that accepted the token drafted at each position."""
  drafted = sorted(
    (row for row in rows if row.tree.depth), key=lambda row: -row.tree.depth
  )
  cells = [
    heads(row)
    | {
      f'{i}': share
      for i, share in enumerate(row.acceptance_by_position, start=1)
    }
    for row in drafted
  ]
  return render(_with_tasks(drafted, cells))


def _with_tasks(rows, cells):
  """With a first column of tasks if there are several."""
  if len({row.task for row in rows}) < 2:
    return cells
  return [
    {'task': row.task} | cell for row, cell in zip(rows, cells, strict=True)
  ]


def bound_table(bounds: Sequence[Bound], style: str = 'github') -> str:
  """What is accepted of the first tokens, beside what could be."""
  cells = [
    heads(found)
    | {
      'verifier': found.verifier,
      'law': found.law.replace('_', ' '),
      'accepted': found.accepted,
      'at most': found.at_most,
      'rounds': found.rounds,
    }
    for found in bounds
  ]
  return f'{_BOUND}\n\n{render(cells, style, digits=3)}'


def cost_table(costs: Sequence[RoundCost], style: str = 'github') -> str:
  """What rounds cost, beside what their parts cost."""
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
  return render(cells, style)


def note(rows: Sequence[Row]) -> str:
  """What the columns of `table` mean, and what a lossy row is."""
  return _NOTE if all(row.lossless for row in rows) else f'{_NOTE} {_LOSSY}'
