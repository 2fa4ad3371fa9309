"""A plan of a model pair on pods: memory, times, and the best draft length."""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from specsamp.errors import UserError, check_name
from specsamp.evaluation.reporting.report import Figure, Report, Table
from specsamp.evaluation.reporting.run_log import from_plain
from specsamp.models import TransformerConfig
from specsamp.planning import (
  compile,
  latency,
  prices,
  speculation,
  topology,
  work,
)
from specsamp.planning.compile import Compiled
from specsamp.planning.config import PlanConfig
from specsamp.planning.prices import Price
from specsamp.planning.topology import Topology
from specsamp.utils import files, progress, schema

GIB = 2**30
_NOTE = (
  'τ: tokens per loop, the bonus token included. α: probability that a draft '
  'token is accepted. HBM: memory that the TPU compiler grants a program, or '
  'that the driver of a GPU reports. Contexts: GiB of a chip; "unseen" are '
  'those cache slots that no sliding window reaches, and "may cost" is the '
  'number of milliseconds per draft token above which γ of them do not pay.'
)

# Measured times replace the predicted ones of these passes.
_PASSES = dict(
  draft_ms='draft step', score_ms='scoring pass', target_ms='target step'
)
_Row = dict[str, Any]


def prepare(values: dict[str, Any], names: Sequence[str]) -> 'PlanJob':
  """Checks a plan. Compiles and writes nothing.

  Args:
    values: a `PlanConfig` as plain values.
    names: slices to compile for, in the form of `topology.parse`.

  Raises:
    UserError: a value or name is invalid, or the models do not fit into the
      memory of a slice or do not divide into its chips.
  """
  config = schema.read(PlanConfig, values)
  slices = list(dict.fromkeys(map(topology.parse, names)))
  measured = _read_measured(config.measured) if config.measured else {}
  job = PlanJob(config, slices, measured)
  for where in slices:
    job.free_bytes(where, config.context, config.batch)
  # Impossible figures of papers and models that do not divide are found here.
  job.paper_rows()
  job.implied_rows()
  if config.compile:
    for where in slices:
      where.devices()  # fails without the compiler
  return job


def _read_measured(path: str) -> dict[str, float]:
  """Returns measured milliseconds by the name of the pass."""
  what = f'measured times {path}'
  try:
    values = from_plain(dict[str, float], files.read_json(path))
  except (OSError, ValueError) as error:
    raise UserError(f'{what}: {error}') from None
  for key, ms in values.items():
    check_name(f'{what}: key', key, _PASSES)
    if ms <= 0:
      raise UserError(f'{what}: {key}: got {ms}, expected milliseconds above 0')
  return {_PASSES[key]: ms for key, ms in values.items()}


@dataclasses.dataclass(frozen=True)
class PlanJob:
  """A checked plan.

  Attributes:
    config: its config.
    slices: slices to plan for.
    measured: measured milliseconds by name of the pass.
  """

  config: PlanConfig
  slices: list[Topology]
  measured: dict[str, float]

  def run(self, workdir: pathlib.Path) -> None:
    """Compiles, and writes report.md, summary.json and prices.png."""
    compiled = self._compile() if self.config.compile else []
    listed, unlisted = self.prices()
    collectives = [
      {'topology': each.topology.name, 'part': each.kind}
      | {'kind': sent.kind, 'count': sent.count, 'bytes each': sent.num_bytes}
      for each in compiled
      for sent in each.collectives
    ]
    speedups = itertools.product(self.slices, self.config.alphas)
    tables = {
      'memory': ('Memory of a chip', [memory_row(each) for each in compiled]),
      'collectives': ('Collectives', collectives),
      'times': ('Times', sum(map(self.time_rows, self.slices), [])),
      'contexts': (
        'Contexts',
        sum(map(self.context_rows, self.slices), []),
      ),
      'speedups': ('Speedups', [self.speedup_row(*pair) for pair in speedups]),
      'paper': ('Paper and plan', self.paper_rows()),
      'implied': ('Published speedups, inverted', self.implied_rows()),
      'prices': (
        'Price list',
        prices.price_rows(listed, self.config.prices.nodes),
      ),
      'drafts': ('Best chain and best static tree', prices.draft_rows(listed)),
    }
    report = Report(self.config.title, device='')
    for heading, rows in tables.values():
      if rows:
        report.add(f'## {heading}', Table(rows))
    if listed:
      prices.plot(listed, workdir / 'prices.png')
      report.add(Figure('prices.png'), prices.NOTE)
    report.add(*dict.fromkeys(where.note for where in self.slices))
    report.add(_NOTE, *unlisted)
    report.write(workdir, {name: rows for name, (_, rows) in tables.items()})
    report.show(workdir)

  def model(self, name: str, where: Topology) -> TransformerConfig:
    """Returns a model of the config in the dtype of a slice."""
    model = topology.as_computed(getattr(self.config, name), where)
    kind = {'target': self.config.weights, 'draft': self.config.draft_weights}
    if not kind.get(name):
      return model
    return work.quantized_config(model, kind[name])

  def free_bytes(self, where: Topology, context: int, batch: int) -> int:
    """Returns the bytes of a chip that weights and caches leave free.

    Raises:
      UserError: the models do not fit, or do not divide into the chips.
    """
    needed = 0
    for name in ('target', 'draft'):
      try:
        model = self.model(name, where)
        shapes = work.shapes(model, where.num_chips, context, batch)
      except UserError as error:
        raise UserError(f'{where.name}, {name}: {error}') from None
      needed += work.num_bytes(shapes)
    if needed > where.chip.hbm_bytes:
      raise UserError(
        f'{where.name}: weights and caches take {needed / GIB:.2f} GiB of each '
        f'of {where.num_chips} chips, a chip has '
        f'{where.chip.hbm_bytes / GIB:.2f} GiB'
      )
    return where.chip.hbm_bytes - needed

  def _compile(self) -> list[Compiled]:
    config = self.config
    kinds = compile.KINDS + (compile.PREFILL,) * config.prefill
    programs = itertools.product(self.slices, kinds)
    return [
      compile.compile_program(
        kind,
        self.model('target', where),
        self.model('draft', where),
        where,
        gamma=config.gamma,
        context=config.context,
        batch=config.batch,
      )
      for where, kind in progress.bar(
        'compiling', list(programs), unit='program'
      )
    ]

  def prices(self) -> tuple[list[Price], list[str]]:
    """Returns the price list of all slices, and reasons for missing entries."""
    listed, misfits = [], []
    config = self.config.prices
    shapes = itertools.product(self.slices, config.batches, config.contexts)
    for where, batch, context in shapes if config.nodes else ():
      target, draft = self.model('target', where), self.model('draft', where)
      try:
        free = self.free_bytes(where, context, batch)
        listed.append(
          prices.price(target, draft, where, config, context, batch, free)
        )
      except UserError as error:
        misfits.append(f'No price of {batch} x {context} slots: {error}.')
    return listed, misfits

  def times(self, where: Topology) -> dict[str, latency.Time]:
    """Returns the predicted times of the passes on a slice."""
    return {
      'target step': self._predict('target', where),
      'scoring pass': self._predict('target', where, self.config.gamma + 1),
      'draft step': self._predict('draft', where),
    }

  def _predict(
    self,
    name: str,
    where: Topology,
    tokens: int = 1,
    context: int | None = None,
  ) -> latency.Time:
    model_pass = work.of_pass(
      self.model(name, where),
      shards=where.num_chips,
      tokens=tokens,
      context=context or self.config.context,
      batch=self.config.batch,
    )
    return latency.predict(model_pass, where)

  def _milliseconds(
    self, where: Topology
  ) -> tuple[float, Callable[[int], float], float]:
    """Returns the arguments of `speculation.curve` after `alpha`."""
    times = {name: time.total for name, time in self.times(where).items()}
    times |= self.measured
    base = self._predict('target', where, self.config.gamma + 1).total

    def score_ms(gamma: int) -> float:
      # A measured pass is taken to grow with γ like the predicted one.
      grown = self._predict('target', where, gamma + 1).total
      return times['scoring pass'] * grown / base

    return times['draft step'], score_ms, times['target step']

  def time_rows(self, where: Topology) -> list[_Row]:
    """Returns the predicted milliseconds of the passes, and measured ones."""
    rows = []
    for name, time in self.times(where).items():
      causes = ('memory', 'compute', 'collectives', 'step')
      row = {'topology': where.name, 'part': name}
      row |= {f'{cause} ms': getattr(time, cause) for cause in causes}
      row['predicted ms'] = time.total
      if name in self.measured:
        row['measured ms'] = self.measured[name]
      rows.append(row)
    return rows

  def context_rows(self, where: Topology) -> list[_Row]:
    """Returns what caches cost by context, and what a draft token may cost.

    The cost is the draft step at which gamma draft tokens do not pay.
    """
    config, rows = self.config, []
    for context in sorted({config.context, *config.prices.contexts}):
      shape = dict(context=context, batch=config.batch)
      row = {'topology': where.name, 'context': context}
      for name in ('target', 'draft'):
        model = self.model(name, where)
        weights, cache = work.shapes(model, where.num_chips, **shape)
        outside = work.unseen_bytes(model, where.num_chips, **shape)
        row |= {
          f'{name} weights': work.num_bytes(weights) / GIB,
          f'{name} cache': work.num_bytes(cache) / GIB,
          f'{name} unseen': outside / GIB,
        }
      predict = functools.partial(self._predict, where=where, context=context)
      target_ms, draft_ms = predict('target').total, predict('draft').total
      score_ms = predict('target', tokens=config.gamma + 1).total
      row |= {'target ms': target_ms, 'draft ms': draft_ms}
      for alpha in config.alphas:
        tau = speculation.expected_tokens(alpha, config.gamma)
        may_cost = (tau * target_ms - score_ms) / config.gamma
        row[f'α={alpha} may cost'] = may_cost
      rows.append(row)
    return rows

  def speedup_row(self, where: Topology, alpha: float) -> _Row:
    """Returns predicted speedups by γ, and the best γ."""
    points = speculation.curve(alpha, *self._milliseconds(where))
    best = speculation.best(points)
    return (
      {'topology': where.name, 'α': alpha}
      | {f'γ={point.gamma}': point.speedup for point in points}
      | {'best γ': best.gamma, 'ms/token': best.ms_per_token}
    )

  def paper_rows(self) -> list[_Row]:
    """Returns reported milliseconds compared with the plan's."""
    rows = []
    for name, slice_name, paper_ms in self.config.paper_ms:
      ms = self._predict(name, topology.parse(slice_name)).total
      rows.append(
        {
          'what': name,
          'topology': slice_name,
          'paper ms': paper_ms,
          'plan ms': ms,
          'plan / paper': ms / paper_ms,
        }
      )
    return rows

  def implied_rows(self) -> list[_Row]:
    """Returns the τ and α that reported speedups imply, and the best γ there.

    Raises:
      UserError: some reported speedup is not reached at any α.
    """
    rows, gamma = [], self.config.gamma
    for task, speedup in self.config.paper_speedups:
      where = topology.parse(self.config.paper_ms[0][1])
      draft_ms, score_ms, target_ms = self._milliseconds(where)
      loop_ms = gamma * draft_ms + score_ms(gamma)
      tau = loop_ms / (target_ms / speedup)
      alpha = speculation.alpha_of(tau, gamma)
      points = speculation.curve(alpha, draft_ms, score_ms, target_ms)
      rows.append(
        {
          'task': task,
          'speedup': speedup,
          'γ': gamma,
          'loop ms': loop_ms,
          'implied τ': tau,
          'implied α': alpha,
          'best γ': speculation.best(points).gamma,
        }
      )
    return rows


def memory_row(compiled: Compiled) -> _Row:
  """Returns GiB per chip of a compiled program, and whether it fits."""
  hbm_bytes = compiled.topology.chip.hbm_bytes
  return {
    'topology': compiled.topology.name,
    'part': compiled.kind,
    **{
      name: getattr(compiled, name) / GIB
      for name in ('weights', 'caches', 'temporaries', 'other')
    },
    'total GiB': compiled.total / GIB,
    'HBM GiB': hbm_bytes / GIB,
    'fits': 'yes' if compiled.total <= hbm_bytes else 'no',
    'compile s': compiled.seconds,
  }
