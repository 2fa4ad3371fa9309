"""Report of a plan: rows of its tables, and the plot of its price list."""

import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.figure
import matplotlib.lines

from specsamp.evaluation.reporting.report import Figure, Report, Table
from specsamp.planning import prices, speculation
from specsamp.planning.compile import Compiled
from specsamp.planning.latency import Time
from specsamp.planning.prices import Price
from specsamp.planning.speculation import Point
from specsamp.planning.topology import Topology

GIB = 2**30

NOTE = (
  'τ: tokens per loop, the bonus token included. α: probability that a draft '
  'token is accepted. HBM: memory that the TPU compiler grants a program, or '
  'that the driver of a GPU reports.'
)
_HEADINGS = {
  'memory': 'Memory of a chip',
  'collectives': 'Collectives',
  'times': 'Times',
  'speedups': 'Speedups',
  'paper': 'Paper and plan',
  'implied': 'Published speedups, inverted',
  'alternatives': 'The draft and its alternative',
  'prices': 'Price list',
  'drafts': 'Best chain and best static tree',
}


def memory_row(compiled: Compiled) -> dict[str, Any]:
  """Returns GiB per chip of a compiled program, and whether it fits."""
  hbm_bytes = compiled.topology.chip.hbm_bytes
  return {
    'topology': compiled.topology.name,
    'part': compiled.program.name,
    'weights': compiled.weights / GIB,
    'caches': compiled.caches / GIB,
    'temporaries': compiled.temporaries / GIB,
    'other': compiled.other / GIB,
    'total GiB': compiled.total / GIB,
    'HBM GiB': hbm_bytes / GIB,
    'fits': 'yes' if compiled.total <= hbm_bytes else 'no',
    'compile s': compiled.seconds,
  }


def collective_rows(compiled: Compiled) -> list[dict[str, Any]]:
  """Returns the collectives of a compiled program by kind and size."""
  return [
    {
      'topology': compiled.topology.name,
      'part': compiled.program.name,
      'kind': each.kind,
      'count': each.count,
      'bytes each': each.num_bytes,
      'a layer': each.count / compiled.num_layers,
    }
    for each in compiled.collectives
  ]


def time_row(
  topology: Topology, name: str, time: Time, measured_ms: float | None
) -> dict[str, Any]:
  """Returns the predicted milliseconds of a pass, and the measured ones."""
  row = {
    'topology': topology.name,
    'part': name,
    'memory ms': time.memory,
    'compute ms': time.compute,
    'collectives ms': time.collectives,
    'step ms': time.step,
    'predicted ms': time.total,
  }
  return row | ({'measured ms': measured_ms} if measured_ms else {})


def speedup_row(
  topology: Topology, alpha: float, points: Sequence[Point]
) -> dict[str, Any]:
  """Returns predicted speedups by γ, and the best γ."""
  best = speculation.best(points)
  return (
    {'topology': topology.name, 'α': alpha}
    | {f'γ={point.gamma}': point.speedup for point in points}
    | {'best γ': best.gamma, 'ms/token': best.ms_per_token}
  )


def write(
  folder: pathlib.Path,
  title: str,
  tables: Mapping[str, Sequence[Mapping[str, Any]]],
  topologies: Sequence[Topology],
  listed: Sequence[Price] = (),
  notes: Sequence[str] = (),
) -> None:
  """Writes report.md, summary.json and prices.png, and prints the report.

  Args:
    folder: folder that exists.
    title: title of the report.
    tables: rows by the key of a heading.
    topologies: the slices of the plan.
    listed: prices, by slice.
    notes: further paragraphs.
  """
  fitting = [price for price in listed if price.pass_ms]
  report = Report(title, device='')
  for name, rows in tables.items():
    if rows:
      report.add(f'## {_HEADINGS[name]}', Table(rows))
    if name == 'prices' and fitting:
      plot_prices(fitting, folder / 'prices.png')
      report.add(Figure('prices.png'))
  paragraph = [*dict.fromkeys(topology.note for topology in topologies), NOTE]
  paragraph += [prices.NOTE] if listed else []
  report.add(' '.join(paragraph), *notes)
  summary = dict(
    tables,
    trees=prices.tree_rows(listed),
    constants={each.name: each.constants._asdict() for each in topologies},
  )
  report.write(folder, summary)
  report.show(folder)


def plot_prices(listed: Sequence[Price], path: pathlib.Path) -> None:
  """Draws milliseconds of a pass by nodes, a panel for each slice.

  A panel has a line for each batch at the longest context. A star marks the
  last node whose arithmetic is hidden by reads.

  Args:
    listed: prices that fit, by slice.
    path: file of the PNG.
  """
  slices = [
    (name, list(group))
    for name, group in itertools.groupby(listed, lambda price: price.topology)
  ]
  figure = matplotlib.figure.Figure(
    figsize=(3.2 * max(len(slices), 2), 3.2), layout='constrained'
  )
  panels = figure.subplots(1, len(slices), sharey=True, squeeze=False)[0]
  longest = max(price.context for price in listed)
  batches = list(dict.fromkeys(price.batch for price in listed))
  for panel, (name, group) in zip(panels, slices, strict=True):
    for price in group:
      if price.context < longest:
        continue
      color, ms = f'C{batches.index(price.batch)}', price.pass_ms
      panel.plot(*zip(*ms.items(), strict=True), color=color)
      if price.free_nodes in ms:
        knee = price.free_nodes
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
  star = dict(color='gray', marker='*', linestyle='', label='last free node')
  handles.append(matplotlib.lines.Line2D([], [], **star))
  figure.legend(
    handles=handles, loc='outside lower center', ncols=len(handles), fontsize=8
  )
  figure.savefig(path, dpi=100)
