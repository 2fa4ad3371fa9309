"""summary.json, report.md, and the table that is printed."""

import importlib.metadata
import json
import pathlib
import platform
from collections.abc import Sequence
from typing import Any

import jax
import tabulate

from specsamp.evaluation import plots

_COLUMNS = {
  'sampling': None,
  'method': None,
  'γ': None,
  'ms/token': '.2f',
  'speedup': '.2f',
  'τ': '.2f',
  'α': '.2f',
  'round ms': '.2f',
  'tokens': None,
}
NOTE = (
  'τ: block efficiency, tokens a round, the bonus token included, before the '
  'budget cuts the last round. α: accepted '
  'over drafted tokens. Speedup: over autoregressive sampling of the same '
  'target, runs taking turns in one process, prompt pass included, compile '
  'time left out.'
)


def table(rows: Sequence[dict[str, Any]], style: str = 'github') -> str:
  """The rows of `metrics.summarize` as text."""
  cells = [
    [
      sampling_name(row),
      row['method'],
      row['draft_len'] or '',
      row['ms_per_token'],
      row['speedup'],
      row['block_efficiency'],
      row['acceptance_rate'],
      row['round_ms'],
      row['tokens'],
    ]
    for row in rows
  ]
  formats = tuple(f or 'g' for f in _COLUMNS.values())
  return tabulate.tabulate(
    cells, headers=list(_COLUMNS), tablefmt=style, floatfmt=formats
  )


def parts_table(rows: Sequence[dict[str, Any]], style: str = 'github') -> str:
  """The rows of `parts.measure` as text."""
  cells = [
    [
      sampling_name(row),
      row['draft_len'],
      row['round_ms'],
      row['draft_ms'],
      row['score_ms'],
      row['both_ms'],
      row['overhead'],
      row['verification'],
    ]
    for row in rows
  ]
  headers = [
    'sampling',
    'γ',
    'round ms',
    'γ draft steps ms',
    'scoring pass ms',
    'both ms',
    'round / parts',
    'round / both',
  ]
  return tabulate.tabulate(
    cells, headers=headers, tablefmt=style, floatfmt='.2f'
  )


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
) -> None:
  """Writes summary.json, report.md and the plots into the folder.

  Args:
    folder: exists.
    title: of the report.
    rows: of `metrics.summarize`.
    parts: of `parts.measure`, with temperature and top_p.
  """
  summary = {
    'runs': list(rows),
    'parts': list(parts),
    'device': device(),
    'versions': versions(),
  }
  (folder / 'summary.json').write_text(json.dumps(summary, indent=2) + '\n')
  lines = [f'# {title}', '', table(rows), '', NOTE, '', f'On {device()}.']
  lines += ['', '## A round and its parts', '', parts_table(parts)]
  if plots.by_draft_length(rows, folder / 'draft_length.png'):
    lines += ['', '![by draft length](draft_length.png)']
  (folder / 'report.md').write_text('\n'.join(lines) + '\n')


def device() -> str:
  found = jax.devices()
  name = found[0].device_kind
  if found[0].platform == 'cpu':
    name = f'{platform.machine()} CPU'
  return f'{len(found)} x {name}'


def versions() -> dict[str, str]:
  return {
    name: importlib.metadata.version(name)
    for name in ('jax', 'jaxlib', 'flax', 'numpy')
  } | {'python': platform.python_version()}
