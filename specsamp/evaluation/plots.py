"""Figures, drawn without a display."""

import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib.figure


def by_draft_length(rows: Sequence[dict[str, Any]], path: pathlib.Path) -> bool:
  """Round time, speedup and accepted share against the draft length.

  Figure 1 of Chen et al. 2302.01318, a line for each sampling.

  Returns:
    Whether there was anything to draw: two draft lengths at least.
  """
  lines: dict[tuple, list] = {}
  for row in rows:
    if row['draft_len']:
      key = (row['temperature'], row['top_p'], row['verifier'])
      lines.setdefault(key, []).append(row)
  if max(map(len, lines.values()), default=0) < 2:
    return False
  figure = matplotlib.figure.Figure(figsize=(11, 3.4), layout='constrained')
  panels = figure.subplots(1, 3)
  for (temperature, top_p, verifier), group in lines.items():
    group = sorted(group, key=lambda row: row['draft_len'])
    name = 'greedy' if temperature == 0 else f't={temperature:g}, p={top_p:g}'
    for panel, key in zip(
      panels, ('round_ms', 'speedup', 'acceptance_rate'), strict=True
    ):
      points = [(r['draft_len'], r[key]) for r in group if r[key] is not None]
      if points:
        panel.plot(*zip(*points, strict=True), marker='o',
                   label=f'{name}, {verifier}')  # fmt: skip
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
  return True
