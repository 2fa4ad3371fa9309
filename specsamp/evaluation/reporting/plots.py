"""Figures of a comparison, drawn without a display.

Error bars are the 95% intervals of the report, from a bootstrap over prompts.
Black diamonds are figures that a paper reports.
"""

import itertools
import math
import pathlib
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence

import matplotlib.figure

from specsamp.evaluation import metrics
from specsamp.evaluation.metrics import Row
from specsamp.evaluation.timing import RoundCost
from specsamp.utils import distributed

_LETTERS = 17  # letters of a caption per inch
_PAPER = dict(marker='D', color='black', linestyle='', markersize=4, zorder=3)
_TRACED_ROUNDS = 2
_PARTS = {'draft': 'tab:orange', 'score': 'tab:blue', 'verify': 'tab:green'}


def by_draft_length(rows: Sequence[Row]) -> matplotlib.figure.Figure | None:
  """Draws round time, speedup and acceptance against the draft length.

  The plot is figure 1 of Chen et al. 2302.01318, a line per task and sampling.
  Returns None for fewer than two draft lengths.
  """
  is_chain = lambda row: row.tree.is_chain and row.tree.depth and not row.depths
  lines = _lines(
    filter(is_chain, _single(rows)),
    lambda row: (row.task, row.sampling_name, row.method, row.verifier),
  )
  if max(map(len, lines.values()), default=0) < 2:
    return None
  titles = {
    'round_ms': 'time of a round (ms)',
    'speedup': 'speedup',
    'acceptance_rate': 'accepted share of the draft',
  }
  depth = lambda row: row.tree.depth
  figure = _against(lines, depth, 'draft length γ', titles, (11, 3.6))
  for panel in figure.axes:
    panel.set_ylim(bottom=0)
  return figure


def by_method(rows: Sequence[Row]) -> matplotlib.figure.Figure:
  """Draws speedup and block efficiency of each draft, for each sampling."""
  rows = [row for row in _whole(rows) if row.tree.depth]
  names = list(dict.fromkeys(map(_draft_name, rows)))
  samplings = list(dict.fromkeys(row.sampling_name for row in rows))
  size = (5 + 3.6 * len(samplings), 1.4 + 0.27 * len(names))
  figure, panels = _panels(size, [''] * 2 * len(samplings), sharey=True)
  keys = {'speedup': 'speedup', 'block_efficiency': 'block efficiency τ'}
  for panel, (sampling, key) in zip(
    panels, itertools.product(samplings, keys), strict=True
  ):
    group = [row for row in rows if row.sampling_name == sampling]
    _bars(panel, group, names, key)
    panel.set_title(f'{sampling}: {keys[key]}', fontsize=9)
  panels[0].set_yticks(range(len(names)), names, fontsize=8)
  panels[0].set_ylim(len(names) - 0.4, -0.6)
  return figure


def by_candidates(rows: Sequence[Row]) -> matplotlib.figure.Figure:
  """Draws the acceptance of one token against its number of candidates.

  The plot is figure 3 of Yang et al. 2401.06706, with a line per task, rule and
  temperature.
  """
  lines = _lines(
    (row for row in _single(rows) if row.tree.depth == 1),
    lambda row: (
      row.task,
      f't={row.temperature:g}',
      row.verifier,
      row.law.replace('_', ' '),
    ),
  )
  titles = {'acceptance_rate': 'acceptance rate of the first token'}
  count = lambda row: row.tree.size - 1
  figure = _against(lines, count, 'candidates', titles, (6.5, 4.4))
  (panel,) = figure.axes
  panel.set_xscale('log', base=2)
  panel.xaxis.set_major_formatter('{x:g}')
  return figure


def by_budget(rows: Sequence[Row]) -> matplotlib.figure.Figure:
  """Draws speedup against block efficiency of branchings, by number of paths.

  The plot is figure 4 of Yang et al. 2401.06706.
  """
  figure, (panel,) = _panels((8, 5.4), [''])
  colors = {}
  for row in _whole(rows):
    factors = list(row.tree.factors or ())
    if row.tree.is_chain or len(factors) < 2:
      continue
    color = colors.setdefault(math.prod(factors), f'C{len(colors)}')
    markers = {tuple(sorted(factors)): '^', tuple(sorted(factors)[::-1]): 'v'}
    point = (row.block_efficiency, row.speedup)
    panel.errorbar(
      *point, _reaches([row], 'speedup'), color=color, elinewidth=0.6,
      fmt=markers.get(tuple(factors), 'o'), alpha=0.9,
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
  panel.set_xlabel('block efficiency τ (tokens per round, bonus included)')
  panel.set_ylabel('speedup')
  panel.legend(fontsize=8)
  return figure


def by_masks(rows: Sequence[Row]) -> matplotlib.figure.Figure:
  """Draws speedup and block efficiency against a parallel drafter's masks k.

  The plot is figure 4 of Xiao et al. 2410.05589, a line per task and sampling.
  """
  lines = _lines(
    (row for row in _single(rows) if row.tree.depth),
    lambda row: (row.task, row.sampling_name),
  )
  titles = {
    'speedup': 'speedup',
    'block_efficiency': 'block efficiency τ (tokens per round)',
  }
  masks = lambda row: row.tree.depth - 1
  return _against(lines, masks, 'masks k', titles, (9, 3.8))


def by_sampling(rows: Sequence[Row]) -> matplotlib.figure.Figure:
  """Draws acceptance against temperature, top-p and top-k, each alone.

  There is a line per task. Settings that are not on the axis are neutral
  (temperature 1, top-p 1, no top-k), as at the right end of the last two axes.
  """
  drafts = [row for row in _single(rows) if row.tree.depth]
  all_tokens = 4 * max([row.top_k for row in drafts] or [1])
  value_of = dict(
    temperature=lambda row: row.temperature,
    top_p=lambda row: row.top_p,
    top_k=lambda row: row.top_k or all_tokens,
  )
  neutral = dict(temperature=1, top_p=1, top_k=all_tokens)
  figure, panels = _panels((11, 3.6), [''] * 3, sharey=True)
  for panel, axis in zip(panels, value_of, strict=True):
    others = value_of.keys() - {axis}
    lines = _lines(
      (
        row
        for row in drafts
        # Greedy decoding keeps one token, whatever the other settings.
        if (axis == 'temperature' or row.temperature > 0)
        and all(value_of[name](row) == neutral[name] for name in others)
      ),
      lambda row: (row.task, row.method, row.draft_name),
    )
    for name, group in lines.items():
      _line(panel, group, value_of[axis], 'acceptance_rate', name)
    panel.set_xlabel(axis.replace('_', '-'))
  panels[2].set_xscale('log')
  panels[2].set_xlabel('top-k (right end: all tokens)')
  panels[0].set_ylabel('accepted share of the draft')
  panels[0].set_ylim(0, 1)
  panels[0].legend(fontsize=8)
  return figure


def trace(costs: Sequence[RoundCost]) -> matplotlib.figure.Figure:
  """Draws two rounds of each method: draft, score, and the rest as verify.

  The plot is the right half of figure 1 of Xiao et al. 2410.05589. The parts
  are medians, each timed in a separate loop.
  """
  costs = [cost for cost in costs if cost.row]
  figure = matplotlib.figure.Figure(
    figsize=(10, 1.3 + 0.3 * len(costs)), layout='constrained'
  )
  panel = figure.subplots()
  for place, cost in enumerate(costs):
    rest = max(cost.round_ms - cost.draft_ms - cost.score_ms, 0)
    lengths = [cost.draft_ms, cost.score_ms, rest] * _TRACED_ROUNDS
    ends = list(itertools.accumulate(lengths))
    bars = panel.barh(
      [place] * len(ends), lengths, left=[0, *ends[:-1]], height=0.6,
      color=[*_PARTS.values()] * _TRACED_ROUNDS,
    )  # fmt: skip
    rounds = ends[len(_PARTS) - 1 :: len(_PARTS)]
    panel.vlines(rounds, place - 0.42, place + 0.42, color='black')
    tokens = _TRACED_ROUNDS * cost.row.block_efficiency
    panel.annotate(
      f'{tokens:.1f} tokens', (ends[-1], place), fontsize=8, xytext=(4, 0),
      va='center', textcoords='offset points',
    )  # fmt: skip
  names = [
    f'{c.row.method_name}, {c.draft_name}, {c.sampling_name}' for c in costs
  ]
  panel.set_yticks(range(len(costs)), names, fontsize=8)
  panel.set_ylim(len(costs) - 0.4, -0.6)
  panel.margins(x=0.12)
  panel.set_xlabel(f'ms, {_TRACED_ROUNDS} rounds')
  # Outside of the panel: a long round reaches all of its corners.
  figure.legend(
    bars[: len(_PARTS)], _PARTS, fontsize=8, loc='outside upper right',
    ncols=len(_PARTS),
  )  # fmt: skip
  return figure


def save(
  figure: matplotlib.figure.Figure, path: pathlib.Path, caption: str
) -> None:
  """Writes a PNG with a caption; the first process writes."""
  if distributed.is_first():
    width = int(_LETTERS * figure.get_figwidth())
    caption = textwrap.fill(caption, width, break_on_hyphens=False)
    figure.supxlabel(caption, fontsize=7, color='0.35')
    figure.savefig(path, dpi=120)


def _against(
  lines: Mapping[str, Sequence[Row]],
  x: Callable[[Row], float],
  xlabel: str,
  titles: Mapping[str, str],
  size: tuple[float, float],
) -> matplotlib.figure.Figure:
  """Draws lines in a panel for each field in `titles`."""
  figure, panels = _panels(size, list(titles.values()))
  for panel, key in zip(panels, titles, strict=True):
    for name, rows in lines.items():
      _line(panel, rows, x, key, name)
    panel.set_xlabel(xlabel)
  panels[0].legend(fontsize=8)
  return figure


def _panels(size: tuple[float, float], titles: Sequence[str], **options):
  figure = matplotlib.figure.Figure(figsize=size, layout='constrained')
  panels = figure.subplots(1, len(titles), squeeze=False, **options)[0]
  for panel, title in zip(panels, titles, strict=True):
    panel.set_title(title)
    panel.grid(alpha=0.3)
  return figure, panels


def _lines(
  rows: Iterable[Row], names: Callable[[Row], tuple[str, ...]]
) -> dict[str, list[Row]]:
  """Groups rows by their names.

  A group's key joins the names that differ between groups, and always has the
  second name.
  """
  groups: dict[tuple[str, ...], list[Row]] = {}
  for row in rows:
    groups.setdefault(names(row), []).append(row)
  differs = [len(set(column)) > 1 for column in zip(*groups, strict=True)]
  return {
    ', '.join(n for i, n in enumerate(key) if differs[i] or i == 1): group
    for key, group in groups.items()
  }


def _line(
  panel, rows: Sequence[Row], x: Callable[[Row], float], key: str, label: str
) -> None:
  """Draws a line with its intervals, and the paper's points."""
  rows = sorted((r for r in rows if getattr(r, key) is not None), key=x)
  if not rows:
    return
  panel.errorbar(
    [x(row) for row in rows], [getattr(row, key) for row in rows],
    _reaches(rows, key), marker='o', markersize=4, elinewidth=0.8, capsize=2,
    label=label,
  )  # fmt: skip
  points = [
    (x(row), paper)
    for row in rows
    if (paper := _paper_value(row, key)) is not None
  ]
  if points:
    panel.plot(*zip(*points, strict=True), **_PAPER)


def _bars(panel, rows: Sequence[Row], names: list[str], key: str) -> None:
  """Draws a bar for each row at the place of its name."""
  places = [names.index(_draft_name(row)) for row in rows]
  bars = panel.barh(
    places, [getattr(row, key) for row in rows], color='tab:blue', alpha=0.8,
    xerr=_reaches(rows, key), ecolor='0.35', error_kw=dict(elinewidth=0.8),
  )  # fmt: skip
  panel.bar_label(bars, fmt='%.2f', fontsize=8, padding=4)
  papers = [_paper_value(row, key) for row in rows]
  marks = [mark for mark in zip(papers, places, strict=True) if mark[0]]
  if marks:
    panel.plot(*zip(*marks, strict=True), **_PAPER)
  panel.axvline(1, color='gray', linewidth=0.8, zorder=0)
  panel.set_xlim(0, 1.22 * panel.dataLim.x1)


def _draft_name(row: Row) -> str:
  rows = '' if row.tree_attention else ' (paths in rows)'
  return f'{row.method_name}, {row.draft_name}{rows}'


def _paper_value(row: Row, key: str) -> float | None:
  names = {'speedup': 'speedup', 'block_efficiency': 'tau'}
  return getattr(row.paper, names[key], None) if key in names else None


def _reaches(rows: Sequence[Row], key: str) -> list[list[float]]:
  """Returns the lengths of error bars, [below, above], in matplotlib's form."""
  reaches = [[], []]
  for row in rows:
    value = getattr(row, key)
    low, high = getattr(row, f'{key}_95', None) or (value, value)
    reaches[0].append(max(value - low, 0))
    reaches[1].append(max(high - value, 0))
  return reaches


def _whole(rows: Sequence[Row]) -> Sequence[Row]:
  """Returns the rows of all tasks together, or of the only task."""
  return [row for row in rows if row.task == metrics.ALL] or rows


def _single(rows: Sequence[Row]) -> list[Row]:
  """Returns the rows of single tasks, without rows of all tasks together."""
  return [row for row in rows if row.task != metrics.ALL]


#: Plots of a comparison by their names. One without content is None.
PLOTS = {
  'by_method': by_method,
  'by_draft_length': by_draft_length,
  'by_candidates': by_candidates,
  'by_budget': by_budget,
  'by_masks': by_masks,
  'by_sampling': by_sampling,
}
