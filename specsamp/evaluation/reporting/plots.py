"""Figures, drawn without a display.

Bars at the markers are the report's intervals, 95 % of a bootstrap over
prompts; black diamonds are what the paper reports.
"""

import math
import pathlib
import textwrap
from collections.abc import Iterable, Mapping, Sequence

import matplotlib.figure

from specsamp.evaluation import metrics
from specsamp.evaluation.metrics import Row

_SHIFT = 0.07
_LETTERS = 17  # of a caption, in an inch
_PAPER = dict(marker='D', color='black', linestyle='', markersize=4, zorder=3)


def by_draft_length(
  rows: Sequence[Row], path: pathlib.Path, caption: str = ''
) -> None:
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
  figure, panels = _panels((11, 3.6), 3)
  titles = {
    'round_ms': 'time of a round (ms)',
    'speedup': 'speedup',
    'acceptance_rate': 'accepted share of the draft',
  }
  for i, (names, group) in enumerate(_labelled(lines)):
    # Beside each other, so that intervals can be told apart.
    shift = _SHIFT * (i - (len(lines) - 1) / 2)
    place = lambda row, shift=shift: row.tree.depth + shift
    for panel, key in zip(panels, titles, strict=True):
      _line(panel, group, place, key, names)
  for panel, title in zip(panels, titles.values(), strict=True):
    panel.set_title(title)
    panel.set_xlabel('draft length γ')
    panel.set_ylim(bottom=0)
  panels[0].legend(fontsize=8)
  save(figure, path, caption)


def by_method(
  rows: Sequence[Row], path: pathlib.Path, caption: str = ''
) -> None:
  """Speedup and block efficiency: a row for each draft, two panels for each
  sampling."""
  rows = [row for row in _whole(rows) if row.tree.depth]
  names = list(dict.fromkeys(map(_draft_name, rows)))
  samplings = list(dict.fromkeys(row.sampling_name for row in rows))
  figure = matplotlib.figure.Figure(
    figsize=(5 + 3.6 * len(samplings), 1.4 + 0.27 * len(names)),
    layout='constrained',
  )
  panels = figure.subplots(1, 2 * len(samplings), sharey=True, squeeze=False)[0]
  titles = {'speedup': 'speedup', 'block_efficiency': 'block efficiency τ'}
  for i, sampling in enumerate(samplings):
    own = [row for row in rows if row.sampling_name == sampling]
    for j, (key, title) in enumerate(titles.items()):
      panel = panels[2 * i + j]
      _bars(panel, own, names, key)
      panel.set_title(f'{sampling}: {title}', fontsize=9)
  panels[0].set_yticks(range(len(names)), names, fontsize=8)
  panels[0].set_ylim(len(names) - 0.4, -0.6)
  save(figure, path, caption)


def by_candidates(
  rows: Sequence[Row], path: pathlib.Path, caption: str = ''
) -> None:
  """Acceptance of one token against the candidates that are drafted for it.

  Figure 3 of Yang et al. 2401.06706, a line for each task, rule and
  temperature.
  """
  lines: dict[tuple, list] = {}
  for row in _single(rows):
    if row.tree.depth == 1:
      law = row.law.replace('_', ' ')
      key = (row.task, f't={row.temperature:g}', row.verifier, law)
      lines.setdefault(key, []).append(row)
  figure, (panel,) = _panels((6.5, 4.4), 1)
  for names, group in _labelled(lines):
    # The share of the first token is that of all, where one is drafted.
    _line(panel, group, lambda row: row.tree.size - 1, 'acceptance_rate', names)
  panel.set_xscale('log', base=2)
  panel.xaxis.set_major_formatter('{x:g}')
  panel.set_xlabel('candidates')
  panel.set_ylabel('acceptance rate of the first token')
  panel.legend(fontsize=8)
  save(figure, path, caption)


def by_budget(
  rows: Sequence[Row], path: pathlib.Path, caption: str = ''
) -> None:
  """Speedup against block efficiency of branchings, by number of paths.

  Figure 4 of Yang et al. 2401.06706.
  """
  figure, (panel,) = _panels((8, 5.4), 1)
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
    panel.errorbar(
      *point, _reach(row.speedup, row.speedup_95), fmt=marker, color=color,
      elinewidth=0.6, alpha=0.9,
    )  # fmt: skip
    panel.annotate(
      row.draft_name, point, fontsize=8, xytext=(5, 4),
      textcoords='offset points',
    )  # fmt: skip
  for budget, color in sorted(colors.items()):
    panel.plot([], [], 's', color=color, label=f'{budget} paths')
  for marker, name in (('v', 'not increasing'), ('^', 'not decreasing')):
    panel.plot([], [], marker, color='gray', label=name)
  panel.margins(0.1)
  panel.set_xlabel('block efficiency τ (tokens a round, bonus included)')
  panel.set_ylabel('speedup')
  panel.legend(fontsize=8)
  save(figure, path, caption)


def by_masks(
  rows: Sequence[Row], path: pathlib.Path, caption: str = ''
) -> None:
  """Speedup and block efficiency against the masks k of a parallel drafter.

  Figure 4 of Xiao et al. 2410.05589, a line for each task and sampling.
  """
  lines: dict[tuple, list] = {}
  for row in _single(rows):
    if row.tree.depth:
      lines.setdefault((row.task, row.sampling_name), []).append(row)
  figure, panels = _panels((9, 3.8), 2)
  titles = {
    'speedup': 'speedup',
    'block_efficiency': 'block efficiency τ (tokens a round)',
  }
  for panel, (key, title) in zip(panels, titles.items(), strict=True):
    for names, group in _labelled(lines):
      _line(panel, group, lambda row: row.tree.depth - 1, key, names)
    panel.set_title(title)
    panel.set_xlabel('masks k')
  panels[0].legend(fontsize=8)
  save(figure, path, caption)


def by_sampling(
  rows: Sequence[Row], path: pathlib.Path, caption: str = ''
) -> None:
  """Accepted share against temperature, top-p and top-k, each alone.

  A line for each task; what is not on the axis is off (temperature 1, top-p 1,
  no top-k), which is the right end of the last two.
  """
  drafts = [row for row in _single(rows) if row.tree.depth]
  is_off = dict(
    temperature=lambda row: row.temperature == 1,
    top_p=lambda row: row.top_p == 1,
    top_k=lambda row: not row.top_k,
  )
  figure, panels = _panels((11, 3.6), 3, sharey=True)
  for panel, axis in zip(panels, is_off, strict=True):
    others = [off for name, off in is_off.items() if name != axis]
    lines: dict[tuple, list] = {}
    for row in drafts:
      # Greedy decoding keeps one token, whatever else is asked for.
      shown = axis == 'temperature' or row.temperature > 0
      if shown and all(off(row) for off in others):
        key = (row.task, row.method, row.draft_name)
        lines.setdefault(key, []).append(row)
    most = 4 * max([row.top_k for row in drafts] or [1])  # where all are kept
    value = lambda row, axis=axis, most=most: (
      getattr(row, axis) or (most if axis == 'top_k' else 0)
    )
    for names, group in _labelled(lines):
      _line(panel, group, value, 'acceptance_rate', names)
    panel.set_xlabel(axis.replace('_', '-'))
  panels[2].set_xscale('log')
  panels[2].set_xlabel('top-k (right end: all tokens)')
  panels[0].set_ylabel('accepted share of the draft')
  panels[0].set_ylim(0, 1)
  panels[0].legend(fontsize=8)
  save(figure, path, caption)


def _panels(size: tuple[float, float], count: int, **options):
  figure = matplotlib.figure.Figure(figsize=size, layout='constrained')
  panels = figure.subplots(1, count, squeeze=False, **options)[0]
  for panel in panels:
    panel.grid(alpha=0.3)
  return figure, panels


def _labelled(
  lines: dict[tuple[str, ...], list[Row]],
) -> Iterable[tuple[str, list[Row]]]:
  """Each line with what tells it from the others, and always its second
  name."""
  parts = [len(set(names)) > 1 for names in zip(*lines, strict=True)]
  for names, group in lines.items():
    own = [name for i, name in enumerate(names) if parts[i] or i == 1]
    yield ', '.join(own), group


def _line(panel, rows: Sequence[Row], x, key: str, label: str) -> None:
  """A line with its intervals, and the paper's points."""
  rows = sorted((r for r in rows if getattr(r, key) is not None), key=x)
  if not rows:
    return
  values = [getattr(row, key) for row in rows]
  reaches = [
    _reach(v, getattr(row, f'{key}_95', None))
    for v, row in zip(values, rows, strict=True)
  ]
  panel.errorbar(
    [x(row) for row in rows], values,
    [[low[0] for low, _ in reaches], [high[0] for _, high in reaches]],
    marker='o', markersize=4, elinewidth=0.8, capsize=2, label=label,
  )  # fmt: skip
  papers = [(x(row), of) for row in rows if (of := _of_paper(row, key))]
  if papers:
    panel.plot(*zip(*papers, strict=True), **_PAPER)


def _bars(panel, rows: Sequence[Row], names: list[str], key: str) -> None:
  """A bar for each row at its name's place."""
  places = [names.index(_draft_name(row)) for row in rows]
  values = [getattr(row, key) for row in rows]
  reaches = [
    _reach(v, getattr(row, f'{key}_95'))
    for v, row in zip(values, rows, strict=True)
  ]
  ends = [
    value + high[0] for value, (_, high) in zip(values, reaches, strict=True)
  ]
  panel.barh(
    places, values, color='tab:blue', alpha=0.8, ecolor='0.35',
    xerr=[[low[0] for low, _ in reaches], [high[0] for _, high in reaches]],
    error_kw=dict(elinewidth=0.8),
  )  # fmt: skip
  papers = [_of_paper(row, key) for row in rows]
  width = 1.22 * max([*ends, *filter(None, papers)])
  for place, value, end, paper in zip(
    places, values, ends, papers, strict=True
  ):
    if paper and end - 0.03 * width < paper < end + 0.2 * width:
      end = paper + 0.02 * width  # the marker would lie on the number
    panel.annotate(
      f'{value:.2f}', (end, place), fontsize=8, xytext=(4, 0), va='center',
      textcoords='offset points',
      bbox=dict(facecolor='white', edgecolor='none', pad=0.4, alpha=0.8),
    )  # fmt: skip
  marks = [mark for mark in zip(papers, places, strict=True) if mark[0]]
  if marks:
    panel.plot(*zip(*marks, strict=True), **_PAPER)
  panel.axvline(1, color='gray', linewidth=0.8, zorder=0)
  panel.set_xlim(0, width)


def _draft_name(row: Row) -> str:
  rows = '' if row.tree_attention else ' (paths in rows)'
  return f'{row.method_name}, {row.draft_name}{rows}'


def _of_paper(row: Row, key: str) -> float | None:
  if row.paper is None:
    return None
  return {'speedup': row.paper.speedup, 'block_efficiency': row.paper.tau}.get(
    key
  )


def _reach(
  value: float, interval: Sequence[float] | None
) -> tuple[list[float], list[float]]:
  """How far an interval reaches below and above, as matplotlib takes it."""
  low, high = interval or (value, value)
  return [max(value - low, 0)], [max(high - value, 0)]


def save(
  figure: matplotlib.figure.Figure, path: pathlib.Path, caption: str
) -> None:
  """As PNG, and beside it as SVG, for a paper; the caption in lines."""
  if caption:
    width = int(_LETTERS * figure.get_figwidth())
    caption = textwrap.fill(caption, width, break_on_hyphens=False)
    figure.supxlabel(caption, fontsize=7, color='0.35')
  figure.savefig(path, dpi=120)
  figure.savefig(path.with_suffix('.svg'))


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
  'by_sampling': by_sampling,
}
