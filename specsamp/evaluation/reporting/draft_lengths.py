"""How deep a method drafted that chooses anew in every round."""

import itertools
import pathlib
from collections.abc import Sequence

import matplotlib.figure
import numpy as np

from specsamp.evaluation import methods, metrics
from specsamp.evaluation.metrics import Line
from specsamp.evaluation.reporting import plots, tables

IMAGE = 'draft_lengths.png'
_HEAD = (
  '## Draft lengths\n\nThe share of the rounds that drafted so many tokens, '
  'chosen anew in each round.'
)
_AGAINST = (
  '## Chosen and fixed lengths\n\nTokens a second, prompt passes included: '
  'without a draft, with fixed draft lengths, and with those chosen in each '
  'round. Best of each part: if each part were told its best fixed length.'
)


def section(
  lines: Sequence[Line], folder: pathlib.Path, caption: str
) -> tables.Section:
  """The shares of all lengths by task, and a plot; '' if no line is left.

  Args:
    lines: of `runner.compare`; those of a fixed length are left out.
    folder: the plot goes here.
    caption: of the plot.
  """
  groups = _groups(lines)
  if not groups:
    return ''
  _plot(groups, folder / IMAGE, caption)
  cells = []
  for (task, *names), group in groups.items():
    found = np.asarray(
      [n for line in group for n in line.num_drafted_per_round]
    )
    shares = {str(n): float((found == n).mean()) for n in _lengths(groups)}
    head = dict(zip(('sampling', 'method', 'draft'), names, strict=True))
    cells.append({'task': task} | head | shares | {'mean': float(found.mean())})
  return lambda style: (
    f'{_HEAD}\n\n{tables.render(cells, style)}\n\n![{IMAGE}]({IMAGE})'
  )


def against_fixed(
  lines: Sequence[Line], by_task: bool = True
) -> tables.Section:
  """Tokens a second of every length, and of the one chosen in each round.

  The last rows are of all that was decoded, whatever the temperature.

  Args:
    lines: of `runner.compare`; a method's fixed lengths have its name.
    by_task: whether tasks and temperatures have rows of their own.

  Returns:
    '' where no length was chosen.
  """
  parts: dict[tuple[str, str], list[Line]] = {}
  for line in lines if by_task else ():
    parts.setdefault((line.task, line.sampling_name), []).append(line)
  single = list(parts.values())
  if len(parts) != 1:
    parts[metrics.ALL, 'all'] = list(lines)
  cells = [
    {'task': task, 'sampling': sampling} | cell
    for (task, sampling), own in parts.items()
    for cell in _rates(own)
  ]
  for cell in cells:
    if cell['task'] == metrics.ALL and single:
      cell['best of each part'] = _best_of_each(single, cell['method'])
  if not cells:
    return ''
  # Columns in one order, whichever row has them first.
  names = list(dict.fromkeys(name for cell in cells for name in cell))
  cells = [{name: cell.get(name) for name in names} for cell in cells]
  return lambda style: f'{_AGAINST}\n\n{tables.render(cells, style)}'


def _rates(lines: Sequence[Line]) -> list[dict[str, tables.Cell]]:
  """A row for each method that chooses, beside its fixed lengths."""
  groups: dict[tuple, list[Line]] = {}
  for line in lines:
    groups.setdefault((line.method, line.draft_name), []).append(line)
  rates = {key: _rate(own) for key, own in groups.items()}
  plain = rates.get((methods.BASELINE, ''))
  cells = []
  for (method, draft), own in groups.items():
    if not own[0].depths:
      continue
    fixed = {
      name: rates[method, name]
      for (other, name), each in groups.items()
      if other == method and not each[0].depths
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
  """Tokens a second of a method with the best fixed length of each part."""
  best = []
  for lines in parts:
    fixed: dict[str, list[Line]] = {}
    for line in lines:
      if line.method == method and not line.depths:
        fixed.setdefault(line.draft_name, []).append(line)
    best += max(fixed.values(), key=_rate, default=[])
  return _rate(best) if best else None


def _rate(lines: Sequence[Line]) -> float:
  """Tokens a second."""
  return sum(line.tokens for line in lines) / sum(
    line.seconds for line in lines
  )


def _groups(lines: Sequence[Line]) -> dict[tuple[str, ...], list[Line]]:
  """By task and the columns that name a method."""
  groups: dict[tuple[str, ...], list[Line]] = {}
  for line in lines:
    if line.depths:
      key = (line.task, *tables.heads(line).values())
      groups.setdefault(key, []).append(line)
  return groups


def _lengths(groups) -> list[int]:
  """All that there were."""
  every = [line.num_drafted_per_round for g in groups.values() for line in g]
  return sorted(set(itertools.chain.from_iterable(every)))


def _plot(groups, path: pathlib.Path, caption: str) -> None:
  """Shares as bars, and the mean length over the rounds of a text."""
  figure = matplotlib.figure.Figure(figsize=(11, 3.6), layout='constrained')
  bars, times = figure.subplots(1, 2)
  names = [', '.join(dict.fromkeys(key[:2])) for key in groups]
  methods = {key[2:] for key in groups}
  if len(methods) > 1:
    names = [', '.join((*key[:2], *key[2:])) for key in groups]
  left = np.zeros(len(names))
  lengths = _lengths(groups)
  shades = matplotlib.colormaps['viridis'](np.linspace(0.9, 0.1, len(lengths)))
  for length, shade in zip(lengths, shades, strict=True):
    share = np.asarray([
      np.mean([n == length for line in g for n in line.num_drafted_per_round])
      for g in groups.values()
    ])  # fmt: skip
    bars.barh(names, share, left=left, color=shade, label=str(length))
    left += share
  bars.invert_yaxis()
  bars.set_xlim(0, 1)
  bars.set_title('share of the rounds, by tokens drafted')
  bars.legend(fontsize=8, ncols=len(lengths), loc='lower right')
  for name, group in zip(names, groups.values(), strict=True):
    longest = max(line.rounds for line in group)
    padded = np.full((len(group), longest), np.nan)
    for row, line in zip(padded, group, strict=True):
      row[: line.rounds] = line.num_drafted_per_round
    # Where half of the texts still go on.
    enough = np.isfinite(padded).sum(axis=0) * 2 >= len(group)
    times.plot(np.nanmean(padded[:, enough], axis=0), label=name)
  times.set_title('mean tokens drafted')
  times.set_xlabel('round of a text')
  times.set_ylim(bottom=0)
  times.grid(alpha=0.3)
  times.legend(fontsize=8)
  plots.save(figure, path, caption)
