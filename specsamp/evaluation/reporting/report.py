"""summary.json, report.md, and the table that is printed."""

import importlib.metadata
import pathlib
import platform
from collections.abc import Callable, Sequence
from typing import Any

import jax
import tabulate

from specsamp import files
from specsamp.evaluation import metrics
from specsamp.sharding import distributed

_NOTE = (
  'τ: block efficiency, tokens a round, the bonus token included, before the '
  'budget cuts the last round. α: accepted over drafted tokens, where each '
  'depth of a tree counts as one. Speedup: over autoregressive sampling of the '
  'same target and prompts, runs taking turns, prompt pass included, compile '
  'time left out.'
)
_SPREAD = (
  'Intervals: 95%, bootstrap over prompts, for others of their kind. '
  'Percentiles are over sequences, prompt pass included.'
)
_LOSSY = (
  'A method that is NOT lossless emits other texts than the target would, '
  'so its figures are no speedup of the same sampling.'
)


def _columns(row: dict[str, Any]) -> dict[str, Any]:
  return {
    'task': row['task'],
    'sampling': sampling_name(row),
    'method': method_name(row),
    'draft': row['branching'],
    'nodes': row['nodes'] if row['draft_len'] else None,
    'verifier': row['verifier'],
    'law': row['law'].replace('_', ' '),
    'paths in rows': '' if row['tree_attention'] else 'yes',
    'ms/token': row['ms_per_token'],
    'speedup': row['speedup'],
    'τ': row['block_efficiency'],
    'α': row['acceptance_rate'],
    'round ms': row['round_ms'],
    'tokens': row['tokens'],
    **row.get('scores', {}),
    'paper': row.get('paper', ''),
  }


_OPTIONAL = (
  'task', 'nodes', 'verifier', 'law', 'paths in rows', 'paper',
)  # fmt: skip


def table(rows: Sequence[dict[str, Any]], style: str = 'github') -> str:
  """The rows of `metrics.summarize` as text.

  A column of what all drafts have in common is left out, and so are the nodes
  of chains. What the paper reports is its speedup, or speedup / τ.
  """
  cells = [_columns(row) for row in rows]
  if all(cell['draft'].startswith('γ') for cell in cells if cell['draft']):
    for cell in cells:
      cell['nodes'] = None
  for name in _OPTIONAL:
    found = {cell[name] for cell in cells if cell['draft']}
    if len(found) < 2 and (name != 'paper' or not any(found)):
      for cell in cells:
        del cell[name]
  scores = {name for row in rows for name in row.get('scores', {})}
  names = dict.fromkeys(name for cell in cells for name in cell)
  return tabulate.tabulate(
    cells,
    headers='keys',
    tablefmt=style,
    floatfmt=['.3f' if name in scores else '.2f' for name in names],
  )


def by_task(rows: Sequence[dict[str, Any]], style: str = 'github') -> str:
  """Speedup / τ of every method, a column for each task, as papers have it.

  Args:
    rows: of `metrics.summarize`, of several tasks, and of `metrics.overall`;
      `paper` of each row follows in brackets.
    style: of tabulate.
  """
  cells: dict[tuple, dict[str, str]] = {}
  for row in rows:
    if not row['draft_len']:
      continue
    key = (sampling_name(row), method_name(row), row['branching'],
           row['verifier'], row['law'], row['tree_attention'])  # fmt: skip
    names = ('sampling', 'method', 'draft')
    line = cells.setdefault(key, dict(zip(names, key, strict=False)))
    text = f'{row["speedup"]:.2f} / {row["block_efficiency"]:.2f}'
    if row.get('paper'):
      text += f' ({row["paper"]})'
    line[row['task']] = text
  return tabulate.tabulate(list(cells.values()), headers='keys', tablefmt=style)


def spread_table(rows: Sequence[dict[str, Any]], style: str = 'github') -> str:
  """How sure the figures are, and how even the latencies."""

  def between(values):
    return '–'.join(f'{v:.2f}' for v in values) if values else ''

  cells = [
    {
      'task': row['task'],
      'sampling': sampling_name(row),
      'method': method_name(row),
      'draft': row['branching'],
      'speedup, 95%': between(row['speedup_95']),
      'τ, 95%': between(row['block_efficiency_95']),
      'α, 95%': between(row['acceptance_rate_95']),
      **{
        f'P{percent} {unit}': row[f'p{percent}_{key}']
        for unit, key in (('ms/token', 'ms'), ('s/sequence', 's'))
        for percent in (50, 90, 99)
      },
    }
    for row in rows
  ]
  if len({cell['task'] for cell in cells}) == 1:
    for cell in cells:
      del cell['task']
  return tabulate.tabulate(
    cells, headers='keys', tablefmt=style, floatfmt='.2f'
  )


def position_table(
  rows: Sequence[dict[str, Any]], style: str = 'github'
) -> str:
  """The share of rounds that accepted the token drafted at each position."""
  drafted = [row for row in rows if row['draft_len']]
  cells = [
    {
      'task': row['task'],
      'sampling': sampling_name(row),
      'method': method_name(row),
      'draft': row['branching'],
    }
    | {
      f'{i}': share
      for i, share in enumerate(row['acceptance_by_position'], start=1)
    }
    for row in sorted(drafted, key=lambda row: -row['draft_len'])
  ]
  if len({cell['task'] for cell in cells}) == 1:
    for cell in cells:
      del cell['task']
  return tabulate.tabulate(
    cells, headers='keys', tablefmt=style, floatfmt='.2f'
  )


def parts_table(rows: Sequence[dict[str, Any]], style: str = 'github') -> str:
  """The rows of `parts.measure` as text."""
  cells = [
    {
      'sampling': sampling_name(row),
      'method': row.get('method'),
      'draft': row['branching'],
      'round ms': row['round_ms'],
      'draft ms': row['draft_ms'],
      'scoring pass ms': row['score_ms'],
      'both ms': row['both_ms'],
      'round / parts': row['overhead'],
      'round / both': row['verification'],
      'speedup': row.get('speedup'),
      'ideal speedup': row.get('ideal_speedup'),
    }
    for row in rows
  ]
  for name in ('method', 'speedup', 'ideal speedup'):
    if not any(cell[name] for cell in cells):
      for cell in cells:
        del cell[name]
  return tabulate.tabulate(
    cells, headers='keys', tablefmt=style, floatfmt='.2f'
  )


def method_name(row: dict[str, Any]) -> str:
  """The name of a row's method, marked where it is not lossless."""
  return row['method'] + ('' if row['lossless'] else ' (NOT lossless)')


def note(rows: Sequence[dict[str, Any]]) -> str:
  """What the columns of `table` mean, and what a lossy row is."""
  return _NOTE if all(row['lossless'] for row in rows) else f'{_NOTE} {_LOSSY}'


def sampling_name(row: dict[str, Any]) -> str:
  if row['temperature'] == 0:
    return 'greedy'
  name = f't={row["temperature"]:g}'
  return name if row['top_p'] == 1 else f'{name}, top-p {row["top_p"]:g}'


def write(
  folder: pathlib.Path,
  title: str,
  rows: Sequence[dict[str, Any]],
  parts: Sequence[dict[str, Any]],
  plot: Callable[[Sequence[dict[str, Any]], pathlib.Path], None],
  plot_name: str,
  sections: Sequence[str] = (),
  more: dict[str, Any] | None = None,
) -> None:
  """Writes summary.json, report.md and a plot into the folder.

  Of several processes the first one does.

  Args:
    folder: exists.
    title: of the report.
    rows: of `metrics.summarize`, and of `metrics.overall` behind them if there
      are several tasks.
    parts: of `parts.measure`, with temperature and top_p.
    plot: draws the rows into a file, if they hold enough; one of `plots`.
    plot_name: of its PNG.
    sections: more of the report.
    more: of the summary.
  """
  if not distributed.is_first():
    return
  summary = {
    'runs': list(rows),
    'parts': list(parts),
    'device': device(),
    'versions': versions(),
    **(more or {}),
  }
  files.replace_json(folder / 'summary.json', summary)
  whole = [row for row in rows if row['task'] == metrics.ALL]
  lines = [f'# {title}', '']
  if whole:
    single = [row for row in rows if row['task'] != metrics.ALL]
    lines += ['Speedup / τ:', '', by_task(rows), '', table(single), '']
    lines += ['All tasks together:', '']
  lines += [table(whole or rows), '', note(rows), '', f'On {device()}.']
  for section in sections:
    lines += ['', section]
  lines += [
    '',
    '## Confidence intervals and latencies',
    '',
    _SPREAD,
    '',
    spread_table(rows),
  ]
  lines += ['', '## Acceptance by position', '', position_table(rows)]
  if parts:
    lines += ['', '## A round and its parts', '', parts_table(parts)]
  plot(rows, folder / plot_name)
  if (folder / plot_name).exists():
    lines += ['', f'![{plot_name}]({plot_name})']
  files.replace(folder / 'report.md', '\n'.join(lines) + '\n')


def device() -> str:
  found = jax.devices()
  name = found[0].device_kind
  if found[0].platform == 'cpu':
    name = f'{platform.machine()} CPU'
  return f'{len(found)} x {name}'


def versions(*others: str) -> dict[str, str]:
  """Of the packages that a result depends on, and others beside."""
  return {
    name: importlib.metadata.version(name)
    for name in ('jax', 'jaxlib', 'flax', 'numpy', *others)
  } | {'python': platform.python_version()}
