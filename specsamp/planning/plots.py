"""Figures of a plan, drawn without a display."""

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib.figure

from specsamp.planning import speculation
from specsamp.planning.speculation import Point


def by_draft_length(
  curves: Mapping[str, Sequence[Point]], path: pathlib.Path
) -> None:
  """Loop time and speedup against the draft length, a line for each curve.

  The predicted half of figure 1 of Chen et al. 2302.01318. The best draft
  length of each is marked.

  Args:
    curves: by the name of the line.
    path: of the PNG.
  """
  figure = matplotlib.figure.Figure(figsize=(10, 4), layout='constrained')
  panels = figure.subplots(1, 2)
  for name, points in curves.items():
    gammas = [point.gamma for point in points]
    (line,) = panels[0].plot(
      gammas, [point.loop_ms for point in points], marker='.'
    )
    panels[1].plot(
      gammas,
      [point.speedup for point in points],
      marker='.',
      color=line.get_color(),
      label=name,
    )
    best = speculation.best(points)
    panels[1].plot(
      best.gamma, best.speedup, marker='*', markersize=12,
      color=line.get_color(),
    )  # fmt: skip
  panels[1].axhline(1, color='gray', linewidth=0.8)
  for panel, title in zip(
    panels,
    ('predicted time of a loop (ms)', 'predicted speedup (star: the best)'),
    strict=True,
  ):
    panel.set_title(title)
    panel.set_xlabel('draft length γ')
    panel.grid(alpha=0.3)
    panel.set_ylim(bottom=0)
  # Here, where no line hides another: loops of all α take the same time.
  panels[1].legend(fontsize=8, loc='lower right')
  figure.savefig(path, dpi=120)
