"""Sections on adaptive draft lengths: their shares, and their speed."""

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib.figure
import numpy as np

from specsamp.evaluation import methods, metrics
from specsamp.evaluation.metrics import Line
from specsamp.evaluation.reporting import plots, tables
from specsamp.evaluation.reporting.report import Cell, Figure, Part, Table

IMAGE = 'draft_lengths.png'
_AGAINST = (
  'Tokens per second, prompt passes included: without a draft, with fixed '
  'draft lengths, and with adaptive ones. Best of each part: each part with '
  'its best fixed length.'
)

_Groups = Mapping[tuple[str, ...], Sequence[Line]]


def section(
  lines: Sequence[Line], folder: pathlib.Path, caption: str
) -> list[Part]:
  """Returns the share of rounds by draft length, and draws a plot.

  Args:
    lines: lines of `runner.compare`, of which those with a fixed length are
      ignored.
    folder: folder of the plot.
    caption: caption of the plot.

  Returns:
    A section, or nothing without adaptive draft lengths.
  """
  groups: dict[tuple[str, ...], list[Line]] = {}
  for line in lines:
    if line.depths:
      key = (line.task, *tables.heads(line).values())
      groups.setdefault(key, []).append(line)
  if not groups:
    return []
  plots.save(_plot(groups), folder / IMAGE, caption)
  cells = []
  for (task, *names), group in groups.items():
    drafted = _drafted(group)
    shares = {str(n): float((drafted == n).mean()) for n in _lengths(groups)}
    heads = dict(zip(('sampling', 'method', 'draft'), names, strict=True))
    mean = {'mean': float(drafted.mean())}
    cells.append({'task': task} | heads | shares | mean)
  return [
    '## Draft lengths',
    'The share of the rounds by the number of drafted tokens.',
    Table(cells),
    Figure(IMAGE),
  ]


def against_fixed(lines: Sequence[Line], by_task: bool = True) -> list[Part]:
  """Returns tokens per second of fixed and of adaptive draft lengths.

  The last rows are of everything that was decoded, at all temperatures.

  Args:
    lines: lines of `runner.compare`, where a method's fixed lengths have its
      name.
    by_task: True to add rows for each task and temperature.

  Returns:
    A section, or nothing without adaptive draft lengths.
  """
  parts: dict[tuple[str, str], list[Line]] = {}
  for line in lines if by_task else ():
    parts.setdefault((line.task, line.sampling_name), []).append(line)
  single = list(parts.values())
  if len(parts) != 1:
    parts[metrics.ALL, 'all'] = list(lines)
  cells = [
    {'task': task, 'sampling': sampling} | cell
    for (task, sampling), part in parts.items()
    for cell in _rates(part)
  ]
  for cell in cells:
    if cell['task'] == metrics.ALL and single:
      cell['best of each part'] = _best_of_each(single, cell['method'])
  return ['## Chosen and fixed lengths', _AGAINST, Table(cells)] * bool(cells)


def _rates(lines: Sequence[Line]) -> list[dict[str, Cell]]:
  """Returns a row per adaptive method, with its fixed lengths."""
  groups: dict[tuple, list[Line]] = {}
  for line in lines:
    groups.setdefault((line.method, line.draft_name), []).append(line)
  rates = {key: _rate(group) for key, group in groups.items()}
  plain = rates.get((methods.BASELINE, ''))
  cells = []
  for (method, draft), group in groups.items():
    if not group[0].depths:
      continue
    fixed = {
      name: rates[method, name]
      for (other, name), others in groups.items()
      if other == method and not others[0].depths
    }
    rate, best = rates[method, draft], max(fixed.values(), default=None)
    cells.append(
      {'method': method, 'none': plain}
      | fixed
      | {'chosen': rate, 'over best fixed': best and rate / best}
      | {'over none': plain and rate / plain}
    )
  return cells


def _best_of_each(parts: Sequence[Sequence[Line]], method: str) -> float | None:
  """Returns a method's rate with the best fixed length of each part."""
  best = []
  for lines in parts:
    fixed: dict[str, list[Line]] = {}
    for line in lines:
      if line.method == method and not line.depths:
        fixed.setdefault(line.draft_name, []).append(line)
    best += max(fixed.values(), key=_rate, default=[])
  return _rate(best) if best else None


def _rate(lines: Sequence[Line]) -> float:
  """Returns tokens per second."""
  return sum(line.tokens for line in lines) / sum(
    line.seconds for line in lines
  )


def _drafted(lines: Sequence[Line]) -> np.ndarray:
  return np.concatenate([line.num_drafted_per_round for line in lines])


def _lengths(groups: _Groups) -> list[int]:
  return np.unique(np.concatenate([*map(_drafted, groups.values())])).tolist()


def _plot(groups: _Groups) -> matplotlib.figure.Figure:
  figure = matplotlib.figure.Figure(figsize=(7, 3.6), layout='constrained')
  panel = figure.subplots()
  several = len({key[2:] for key in groups}) > 1
  names = [
    ', '.join((*key[:2], *key[2:]) if several else dict.fromkeys(key[:2]))
    for key in groups
  ]
  left = np.zeros(len(names))
  lengths = _lengths(groups)
  shades = matplotlib.colormaps['viridis'](np.linspace(0.9, 0.1, len(lengths)))
  for length, shade in zip(lengths, shades, strict=True):
    share = np.asarray(
      [np.mean(_drafted(group) == length) for group in groups.values()]
    )
    panel.barh(names, share, left=left, color=shade, label=str(length))
    left += share
  panel.invert_yaxis()
  panel.set_xlim(0, 1)
  panel.set_title('share of the rounds, by tokens drafted')
  panel.legend(fontsize=8, ncols=len(lengths), loc='lower right')
  return figure
