"""Figures, drawn without a display."""

import math
import pathlib
from collections.abc import Mapping, Sequence

import matplotlib.figure

from specsamp.evaluation import metrics
from specsamp.evaluation.metrics import Row


def by_draft_length(rows: Sequence[Row], path: pathlib.Path) -> None:
  """Round time, speedup and accepted share against the draft length.

  Figure 1 of Chen et al. 2302.01318, a line for each task and sampling.

  Draws nothing of fewer than two draft lengths.
  """
  lines: dict[tuple, list] = {}
  for row in _single(rows):
    if row.tree.is_chain and row.tree.depth and not row.depths:
      key = (row.task, row.sampling_name, row.method, row.verifier)
      lines.setdefault(key, []).append(row)
  if max(map(len, lines.values()), default=0) < 2:
    return
  figure = matplotlib.figure.Figure(figsize=(11, 3.4), layout='constrained')
  panels = figure.subplots(1, 3)
  parts = [len(set(names)) > 1 for names in zip(*lines, strict=True)]
  for names, group in lines.items():
    # What tells a line from the others, and always its sampling.
    label = [n for i, n in enumerate(names) if parts[i] or i == 1]
    group = sorted(group, key=lambda row: row.tree.depth)
    for panel, name in zip(
      panels, ('round_ms', 'speedup', 'acceptance_rate'), strict=True
    ):
      points = [(row.tree.depth, getattr(row, name)) for row in group]
      points = [point for point in points if point[1] is not None]
      if points:
        panel.plot(*zip(*points, strict=True), marker='o',
                   label=', '.join(label))  # fmt: skip
  for panel, title in zip(
    panels,
    ('time of a round (ms)', 'speedup', 'accepted share of the draft'),
    strict=True,
  ):
    panel.set_title(title)
    panel.set_xlabel('draft length γ')
    panel.grid(alpha=0.3)
    panel.set_ylim(bottom=0)
  panels[0].legend(fontsize=8)
  figure.savefig(path, dpi=120)


def by_method(rows: Sequence[Row], path: pathlib.Path) -> None:
  """Speedup and block efficiency of every method, a bar for each."""
  rows = [row for row in _whole(rows) if row.tree.depth]
  names = [
    f'{row.method_name}, {row.draft_name}, t={row.temperature:g}'
    for row in rows
  ]
  figure = matplotlib.figure.Figure(
    figsize=(11, 1.2 + 0.3 * len(rows)), layout='constrained'
  )
  panels = figure.subplots(1, 2, sharey=True)
  for panel, key, title in zip(
    panels,
    ('speedup', 'block_efficiency'),
    ('speedup', 'block efficiency τ'),
    strict=True,
  ):
    values = [getattr(row, key) for row in rows]
    bars = panel.barh(range(len(rows)), values, color=[
      'tab:orange' if row.temperature else 'tab:blue' for row in rows
    ])  # fmt: skip
    panel.bar_label(bars, fmt='%.2f', fontsize=8, padding=2)
    panel.axvline(1, color='gray', linewidth=0.8)
    panel.set_title(title)
    panel.margins(x=0.1)
  panels[0].set_yticks(range(len(rows)), names, fontsize=8)
  panels[0].set_ylim(len(rows) - 0.4, -0.6)
  figure.savefig(path, dpi=120)


def by_candidates(rows: Sequence[Row], path: pathlib.Path) -> None:
  """Acceptance of one token against the candidates that are drafted for it.

  Figure 3 of Yang et al. 2401.06706, a line for each task, rule and
  temperature.
  """
  lines: dict[str, list] = {}
  for row in _single(rows):
    if row.tree.depth == 1:
      law = row.law.replace('_', ' ')
      name = f'{row.verifier}, {law}, t={row.temperature:g}'
      if len({row.task for row in _single(rows)}) > 1:
        name = f'{row.task}, {name}'
      point = (row.tree.size - 1, row.acceptance_by_position[0])
      lines.setdefault(name, []).append(point)
  figure = matplotlib.figure.Figure(figsize=(6.5, 4.2), layout='constrained')
  panel = figure.subplots()
  for name, points in lines.items():
    panel.plot(*zip(*sorted(points), strict=True), marker='o', label=name)
  panel.set_xscale('log', base=2)
  panel.xaxis.set_major_formatter('{x:g}')
  panel.set_xlabel('candidates')
  panel.set_ylabel('acceptance rate of the first token')
  panel.grid(alpha=0.3)
  panel.legend(fontsize=8)
  figure.savefig(path, dpi=120)


def by_budget(rows: Sequence[Row], path: pathlib.Path) -> None:
  """Speedup against block efficiency of branchings, by number of paths.

  Figure 4 of Yang et al. 2401.06706.
  """
  figure = matplotlib.figure.Figure(figsize=(7.5, 5), layout='constrained')
  panel = figure.subplots()
  colors = {}
  for row in _whole(rows):
    factors = list(row.tree.factors or ())
    if row.tree.is_chain or len(factors) < 2:
      continue
    budget = math.prod(factors)
    color = colors.setdefault(budget, f'C{len(colors)}')
    marker = 'v' if factors == sorted(factors, reverse=True) else (
      '^' if factors == sorted(factors) else 'o'
    )  # fmt: skip
    point = (row.block_efficiency, row.speedup)
    panel.plot(*point, marker, color=color)
    panel.annotate(
      row.draft_name, point, fontsize=8, xytext=(4, 4),
      textcoords='offset points',
    )  # fmt: skip
  for budget, color in sorted(colors.items()):
    panel.plot([], [], 's', color=color, label=f'{budget} paths')
  for marker, name in (('v', 'not increasing'), ('^', 'not decreasing')):
    panel.plot([], [], marker, color='gray', label=name)
  panel.margins(0.1)
  panel.set_xlabel('block efficiency τ (tokens a round, bonus included)')
  panel.set_ylabel('speedup')
  panel.grid(alpha=0.3)
  panel.legend(fontsize=8)
  figure.savefig(path, dpi=120)


def by_masks(rows: Sequence[Row], path: pathlib.Path) -> None:
  """Speedup and block efficiency against the masks k of a parallel drafter.

  Figure 4 of Xiao et al. 2410.05589, a line for each task and sampling.
  """
  lines: dict[str, list] = {}
  for row in _single(rows):
    if row.tree.depth:
      name = row.sampling_name
      if len({row.task for row in _single(rows)}) > 1:
        name = f'{row.task}, {name}'
      lines.setdefault(name, []).append(row)
  figure = matplotlib.figure.Figure(figsize=(9, 3.6), layout='constrained')
  panels = figure.subplots(1, 2)
  for panel, key, title in zip(
    panels,
    ('speedup', 'block_efficiency'),
    ('speedup', 'block efficiency τ (tokens a round, bonus included)'),
    strict=True,
  ):
    for name, group in lines.items():
      points = sorted((row.tree.depth - 1, getattr(row, key)) for row in group)
      panel.plot(*zip(*points, strict=True), marker='o', label=name)
    panel.set_title(title)
    panel.set_xlabel('masks k')
    panel.grid(alpha=0.3)
  panels[0].legend(fontsize=8)
  figure.savefig(path, dpi=120)


def curves(
  panels: Mapping[str, Mapping[str, Sequence[float]]],
  along: str,
  path: pathlib.Path,
) -> None:
  """What changes while a run goes on, panels side by side.

  Args:
    panels: title -> label -> a value for each step, counted from 1.
    along: what a step is.
    path: of the picture.
  """
  figure = matplotlib.figure.Figure(
    figsize=(3.7 * len(panels), 3.4), layout='constrained'
  )
  row = figure.subplots(1, len(panels), squeeze=False)[0]
  for panel, (title, lines) in zip(row, panels.items(), strict=True):
    for label, values in lines.items():
      at = range(1, len(values) + 1)
      marker = 'o' if len(values) < 50 else None
      panel.plot(at, values, marker=marker, label=label)
    panel.set_title(title)
    panel.set_xlabel(along)
    panel.grid(alpha=0.3)
    panel.set_ylim(0, 1.1 * max(map(max, lines.values())) or 1)
    if len(lines) > 1:
      panel.legend(fontsize=8)
  figure.savefig(path, dpi=120)


def _whole(rows):
  """Rows of all tasks together, or of the only one."""
  return [row for row in rows if row.task == metrics.ALL] or rows


def _single(rows):
  """Rows of single tasks."""
  return [row for row in rows if row.task != metrics.ALL]


PLOTS = {
  'by_method': by_method,
  'by_draft_length': by_draft_length,
  'by_candidates': by_candidates,
  'by_budget': by_budget,
  'by_masks': by_masks,
}
