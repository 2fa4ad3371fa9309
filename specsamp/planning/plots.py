"""Figures of a plan, drawn without a display."""

import itertools
import pathlib
from collections.abc import Mapping, Sequence

import matplotlib.figure
import matplotlib.lines

from specsamp.planning import speculation
from specsamp.planning.prices import Price
from specsamp.planning.speculation import Point


def by_draft_length(
  curves: Mapping[str, Mapping[str, Sequence[Point]]], path: pathlib.Path
) -> None:
  """Loop time, then a panel of speedups for each group of curves.

  The predicted half of figure 1 of Chen et al. 2302.01318. The best draft
  length of each curve is marked.

  Args:
    curves: by the panel's title and the line's name; a name has one colour.
    path: of the PNG.
  """
  figure = matplotlib.figure.Figure(
    figsize=(3.6 * (1 + len(curves)), 3.6), layout='constrained'
  )
  first, *panels = figure.subplots(1, 1 + len(curves))
  names = list(
    dict.fromkeys(name for group in curves.values() for name in group)
  )
  colors = {name: f'C{i}' for i, name in enumerate(names)}
  for name in names:
    points = next(group[name] for group in curves.values() if name in group)
    first.plot(
      [point.gamma for point in points],
      [point.loop_ms for point in points],
      marker='.',
      color=colors[name],
      label=name,
    )
  first.set_title('loop (ms)')
  top = max(
    point.speedup
    for group in curves.values()
    for points in group.values()
    for point in points
  )
  for panel, (title, group) in zip(panels, curves.items(), strict=True):
    for name, points in group.items():
      panel.plot(
        [point.gamma for point in points],
        [point.speedup for point in points],
        marker='.',
        color=colors[name],
      )
      best = speculation.best(points)
      panel.plot(
        best.gamma, best.speedup, marker='*', markersize=12, color=colors[name]
      )
    panel.axhline(1, color='gray', linewidth=0.8)
    panel.set_title(title)
    panel.set_ylim(top=1.05 * top)
  for panel in (first, *panels):
    panel.set_xlabel('draft length γ')
    panel.grid(alpha=0.3)
    panel.set_ylim(bottom=0)
  figure.legend(loc='outside lower center', ncols=len(names), fontsize=8)
  figure.savefig(path, dpi=120)


def by_nodes(prices: Sequence[Price], path: pathlib.Path) -> None:
  """Milliseconds of a pass against its nodes, a panel for each slice.

  A line for each batch, at the longest context; a star where arithmetic begins
  to take longer than bytes.

  Args:
    prices: those of a slice one after the other.
    path: of the PNG.
  """
  slices = [
    (name, list(group))
    for name, group in itertools.groupby(prices, lambda each: each.topology)
  ]
  figure = matplotlib.figure.Figure(
    figsize=(3.2 * max(len(slices), 2), 3.2), layout='constrained'
  )
  panels = figure.subplots(1, len(slices), sharey=True, squeeze=False)[0]
  longest = max(each.context for each in prices)
  batches = list(dict.fromkeys(each.batch for each in prices))
  for panel, (name, group) in zip(panels, slices, strict=True):
    for each in group:
      if each.context < longest:
        continue
      color, ms = f'C{batches.index(each.batch)}', each.pass_ms
      panel.plot(*zip(*ms.items(), strict=True), color=color)
      if each.free_nodes in ms:
        knee = each.free_nodes
        panel.plot(knee, ms[knee], marker='*', markersize=11, color=color)
    panel.set_xscale('log', base=2)
    panel.set_yscale('log')
    panel.set_xlabel('nodes N')
    panel.set_title(name)
    panel.grid(alpha=0.3)
  panels[0].set_ylabel('pass (ms)')
  handles = [
    matplotlib.lines.Line2D([], [], color=f'C{i}', label=f'batch {batch}')
    for i, batch in enumerate(batches)
  ]
  handles.append(
    matplotlib.lines.Line2D(
      [], [], color='gray', marker='*', linestyle='', label='last free node'
    )
  )
  figure.legend(
    handles=handles, loc='outside lower center', ncols=len(handles), fontsize=8
  )
  figure.savefig(path, dpi=100)
