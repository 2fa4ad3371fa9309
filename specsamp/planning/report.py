"""report.md, summary.json and plots of a plan, and the tables to print."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import tabulate

from specsamp.evaluation.reporting.report import versions
from specsamp.planning import plots, prices, speculation
from specsamp.planning.latency import Time
from specsamp.planning.prices import Price
from specsamp.planning.speculation import Point
from specsamp.planning.topology import Topology
from specsamp.planning.work import Collective, Part
from specsamp.utils import files

GIB = 2**30
_SMALL = 1024  # bytes

NOTE = (
  'τ: tokens a loop, the bonus token included. α: chance that a drafted token '
  'is accepted. HBM: what the compiler lets a program have, or what the driver '
  'of a GPU reports.'
)


def table(rows: Sequence[dict[str, Any]], style: str = 'github') -> str:
  """Rows of this module as text."""
  return tabulate.tabulate(
    [{key: _cell(value) for key, value in row.items()} for row in rows],
    headers='keys',
    tablefmt=style,
    floatfmt='.2f',
    missingval='-',
  )


def _cell(value):
  return ('no', 'yes')[value] if isinstance(value, bool) else value


def memory_rows(plan: 'Plan') -> list[dict[str, Any]]:
  """GiB a chip of every compiled part, and whether it fits."""
  return [
    {
      'topology': plan.topology.name,
      'part': part.name,
      'weights': part.weights / GIB,
      'caches': part.caches / GIB,
      'temporaries': part.temporaries / GIB,
      'other': part.other / GIB,
      'total GiB': part.total / GIB,
      'HBM GiB': plan.topology.chip.hbm_bytes / GIB,
      'fits': part.total <= plan.topology.chip.hbm_bytes,
      'compile s': part.seconds,
    }
    # A TPU has none.
    | ({'kernels': part.kernels.total} if part.kernels.total else {})
    for part in plan.parts
  ]


def collective_rows(plan: 'Plan') -> list[dict[str, Any]]:
  """The collectives of every compiled part by kind and size, and per layer.

  Those of sampling, few and small, share a line for each kind.
  """
  rows = []
  for part in plan.parts:
    groups: dict[tuple[str, str], list[Collective]] = {}
    for each in part.collectives:
      size = f'at most {_SMALL}' if each.num_bytes <= _SMALL else each.num_bytes
      groups.setdefault((each.kind, size), []).append(each)
    for (kind, size), group in groups.items():
      count = sum(each.count for each in group)
      sent = sum(each.count * each.num_bytes for each in group)
      rows.append(
        {
          'topology': plan.topology.name,
          'part': part.name,
          'kind': kind,
          'count': count,
          'bytes each': size,
          'a layer': count / part.num_layers,
          'kB a layer': sent / part.num_layers / 1e3,
        }
      )
  return rows


def launch_rows(plan: 'Plan') -> list[dict[str, Any]]:
  """The kernels of every compiled part, and how they are launched."""
  return [
    {
      'topology': plan.topology.name,
      'part': part.name,
      'kernels': part.kernels.total,
      'in CUDA graphs': part.kernels.in_graphs,
      'graphs': part.kernels.graphs,
      'host branches': part.kernels.host_branches,
      'a layer': part.kernels.total / part.num_layers,
    }
    for part in plan.parts
    if part.kernels.total
  ]


def time_rows(plan: 'Plan') -> list[dict[str, Any]]:
  """Predicted milliseconds of every part, and the measured in their place."""
  return [
    {
      'topology': plan.topology.name,
      'part': name,
      'memory ms': time.memory,
      'compute ms': time.compute,
      'collectives ms': time.collectives,
      'step ms': time.step,
      'predicted ms': time.total,
    }
    # An empty column tells nothing.
    | ({'measured ms': plan.measured.get(name)} if plan.measured else {})
    for name, time in plan.times.items()
  ]


def speedup_rows(plans: Sequence['Plan']) -> list[dict[str, Any]]:
  """Predicted speedups, a row for each slice and α, the best of it last."""
  rows = []
  for plan in plans:
    for alpha, points in plan.curves.items():
      best = speculation.best(points)
      rows.append(
        {'topology': plan.topology.name, 'α': alpha}
        | {f'γ={point.gamma}': point.speedup for point in points}
        | {'best γ': best.gamma, 'ms/token': best.ms_per_token}
      )
  return rows


def paper_rows(
  times: Sequence[tuple[str, str, float, float]],
) -> list[dict[str, Any]]:
  """What a paper reports beside what the plan predicts.

  Args:
    times: what, the name of the slice, the paper's milliseconds, the plan's.
  """
  return [
    {
      'what': what,
      'topology': topology,
      'paper ms': paper,
      'plan ms': plan,
      'plan / paper': plan / paper,
    }
    for what, topology, paper, plan in times
  ]


def implied_rows(
  speedups: Mapping[str, float], loop_ms: float, target_ms: float, gamma: int
) -> list[dict[str, Any]]:
  """The tokens a loop that published speedups take, and the α of these.

  Args:
    speedups: by task; table 1 of Chen et al. 2302.01318.
    loop_ms: milliseconds of a loop of γ drafted tokens.
    target_ms: milliseconds of an autoregressive token.
    gamma: drafted tokens of the published runs.

  Raises:
    ValueError: a speedup that no α gives.
  """
  rows = []
  for task, speedup in speedups.items():
    tau = speculation.implied_tau(speedup, loop_ms, target_ms)
    rows.append(
      {
        'task': task,
        'speedup': speedup,
        'γ': gamma,
        'loop ms': loop_ms,
        'implied τ': tau,
        'implied α': speculation.alpha_of(tau, gamma),
      }
    )
  return rows


def curve_rows(curves: Mapping[str, Sequence[Point]]) -> list[dict[str, Any]]:
  """Loop time and speedup against γ, one row for each γ."""
  rows: dict[int, dict[str, Any]] = {}
  for name, points in curves.items():
    best = speculation.best(points)
    for point in points:
      row = rows.setdefault(
        point.gamma, {'γ': point.gamma, 'loop ms': point.loop_ms}
      )
      row[name] = f'{point.speedup:.2f}' + ' (best)' * (point is best)
  return list(rows.values())


_HEADINGS = {
  'memory': 'Memory of a chip',
  'collectives': 'Collectives',
  'launches': 'Kernels of a GPU',
  'times': 'Times',
  'speedups': 'Speedups',
  'paper': 'Paper and plan',
  'implied': 'Published speedups, inverted',
  'figure': 'Draft lengths at the implied α: speedup',
  'alternatives': 'The draft and its alternative',
  'prices': 'Price list',
  'drafts': 'Best chain and best static tree',
}


def write(
  folder: pathlib.Path,
  title: str,
  plans: Sequence['Plan'],
  paper: Sequence[dict[str, Any]] = (),
  implied: Sequence[dict[str, Any]] = (),
  figure: Mapping[str, Sequence[Point]] | None = None,
  alternatives: Sequence[dict[str, Any]] = (),
  sections: Sequence[str] = (),
  listed: Sequence[Price] = (),
  nodes: Sequence[int] = (),
) -> str:
  """Writes summary.json, report.md and the plots into the folder.

  Args:
    folder: exists.
    title: of the report.
    plans: one for each slice.
    paper: of `paper_rows`.
    implied: of `implied_rows`.
    figure: loops at the implied α, by task.
    alternatives: the draft and another one, each on its slices.
    sections: more of the report.
    listed: prices, by slice.
    nodes: sizes of the price list.

  Returns:
    What to print: the tables of the report.
  """
  found = {
    'memory': [row for plan in plans for row in memory_rows(plan)],
    'collectives': [row for plan in plans for row in collective_rows(plan)],
    'launches': [row for plan in plans for row in launch_rows(plan)],
    'times': [row for plan in plans for row in time_rows(plan)],
    'speedups': speedup_rows(plans),
    'paper': list(paper),
    'implied': list(implied),
    'figure': curve_rows(figure or {}),
    'alternatives': list(alternatives),
    'prices': prices.price_rows(listed, nodes),
    'drafts': prices.draft_rows(listed),
  }
  drawn = _drawn(plans, figure)
  for name, curves in drawn.items():
    plots.by_draft_length(curves, folder / f'{name}.png')
  fitting = [each for each in listed if each.pass_ms]
  if fitting:
    plots.by_nodes(fitting, folder / 'prices.png')
  lines, printed = [f'# {title}', ''], []
  for key, rows in found.items():
    if rows:
      lines += [f'## {_HEADINGS[key]}', '', table(rows), '']
      printed.append(f'{_HEADINGS[key]}\n\n{table(rows, "simple")}')
      if key in drawn or (key == 'prices' and fitting):
        lines += [f'![{key}]({key}.png)', '']
  notes = [*dict.fromkeys(plan.topology.note for plan in plans), NOTE]
  notes += [prices.note()] if listed else []
  lines += [' '.join(notes)]
  for section in sections:
    lines += ['', section]
  files.replace(folder / 'report.md', '\n'.join(lines) + '\n')
  summary = found | {
    'curves': {
      title: {
        name: [point._asdict() for point in points]
        for name, points in curves.items()
      }
      for group in drawn.values()
      for title, curves in group.items()
    },
    'trees': prices.tree_rows(listed),
    'constants': {
      plan.topology.name: plan.topology.constants._asdict() for plan in plans
    },
    'versions': versions(),
  }
  files.replace_json(folder / 'summary.json', summary)
  return '\n\n'.join([*printed, ' '.join(notes), *sections])


def _drawn(
  plans: Sequence['Plan'], figure: Mapping[str, Sequence[Point]] | None
) -> dict[str, Mapping[str, Mapping[str, Sequence[Point]]]]:
  """The curves of each plot, by the title of a panel and the name of a line."""
  alphas = {alpha for plan in plans for alpha in plan.curves}
  drawn = {
    'speedups': {
      f'speedup at α={alpha:g}': {
        plan.topology.name: plan.curves[alpha]
        for plan in plans
        if alpha in plan.curves
      }
      for alpha in sorted(alphas)
    },
    'figure': {'speedup at the implied α': figure} if figure else {},
  }
  return {name: curves for name, curves in drawn.items() if curves}


@dataclasses.dataclass(frozen=True)
class Plan:
  """What is planned for one slice.

  Attributes:
    topology: the slice.
    parts: that were compiled: draft step, scoring pass, speculative loop.
    times: predicted, by name of the part, the target's step among them.
    measured: milliseconds that were planned with in place of these, by name
      of the part.
    curves: loops of each draft length, by α.
  """

  topology: Topology
  parts: tuple[Part, ...]
  times: Mapping[str, Time]
  measured: Mapping[str, float]
  curves: Mapping[float, Sequence[Point]]
