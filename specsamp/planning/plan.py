"""A plan of a model pair on pods: memory, times, and the best draft length."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from specsamp.drafting.draft import TokenTree
from specsamp.errors import UserError
from specsamp.models import TransformerConfig
from specsamp.planning import (
  compile,
  latency,
  prices,
  report,
  speculation,
  topology,
  work,
)
from specsamp.planning.compile import Compiled, Program
from specsamp.planning.config import PlanConfig
from specsamp.planning.prices import Price
from specsamp.planning.report import GIB
from specsamp.planning.topology import Topology
from specsamp.planning.work import Collective
from specsamp.utils import progress, schema

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
  slices = [topology.parse(name) for name in names]
  if len(set(slices)) < len(slices):
    raise UserError(f'topology: got a slice twice in {list(names)}')
  measured = latency.measured(config.measured) if config.measured else {}
  measured = {_PASSES[key]: ms for key, ms in measured.items()}
  job = PlanJob(config, slices, [], measured, [])
  for where in slices:
    job.room(where)
  for where in map(topology.parse, config.compare):
    try:
      job.room(where)
    except UserError as error:
      job.misfits.append(str(error))
    else:
      if where not in slices:
        job.compared.append(where)
  # Impossible figures of papers and models that do not divide are found here.
  job.paper_rows()
  job.implied_rows()
  job.alternative_rows()
  if config.compile:
    for where in slices:
      where.devices()  # fails without the compiler
  return job


@dataclasses.dataclass(frozen=True)
class PlanJob:
  """A checked plan.

  Attributes:
    config: its config.
    slices: slices to compile for.
    compared: slices to predict only.
    measured: measured milliseconds by name of the pass.
    misfits: reasons why slices are not compared.
  """

  config: PlanConfig
  slices: list[Topology]
  compared: list[Topology]
  measured: dict[str, float]
  misfits: list[str]

  def run(self, workdir: pathlib.Path) -> None:
    """Compiles, and writes report.md, summary.json and prices.png."""
    slices = [*self.slices, *self.compared]
    compiled = self._compile() if self.config.compile else []
    listed, unlisted = self.prices()
    tables = {
      'memory': [report.memory_row(each) for each in compiled],
      'collectives': [
        row for each in compiled for row in report.collective_rows(each)
      ],
      'times': [
        report.time_row(where, name, time, self.measured.get(name))
        for where in slices
        for name, time in self.times(where).items()
      ],
      'speedups': [
        report.speedup_row(where, alpha, self.curve(where, alpha))
        for where in slices
        for alpha in self.config.alphas
      ],
      'paper': self.paper_rows(),
      'implied': self.implied_rows(),
      'alternatives': self.alternative_rows(),
      'prices': prices.price_rows(listed, self.config.prices.nodes),
      'drafts': prices.draft_rows(listed),
    }
    notes = [
      self._compare_collectives(each)
      for each in compiled
      if each.program.kind in (compile.SCORING_PASS, compile.TREE_PASS)
    ]
    notes += [*self.misfits, *unlisted]
    report.write(workdir, self.config.title, tables, slices, listed, notes)

  def model(self, name: str, where: Topology) -> TransformerConfig:
    """Returns a model of the config in the dtype of a slice."""
    return topology.as_computed(getattr(self.config, name), where)

  def room(
    self, where: Topology, context: int | None = None, batch: int | None = None
  ) -> int:
    """Returns the bytes of a chip that weights and caches leave free.

    Args:
      where: slice.
      context: cache slots; by default the config's.
      batch: rows; by default the config's.

    Raises:
      UserError: the models do not fit, or do not divide into the chips.
    """
    needed = 0
    for name in ('target', 'draft'):
      try:
        shapes = work.shapes(
          self.model(name, where),
          where.num_chips,
          context or self.config.context,
          batch or self.config.batch,
        )
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

  def programs(self, where: Topology) -> list[Program]:
    """Returns the programs to compile, without trees that do not fit."""
    config = self.config
    chain = TokenTree.chain(config.gamma)
    programs = [
      Program(kind, chain, config.context, config.batch)
      for kind in compile.KINDS
    ]
    for tree, context, batch in config.prices.trees():
      try:
        self.room(where, context, batch)
      except UserError:
        continue
      programs.append(Program(compile.TREE_PASS, tree, context, batch))
    return programs

  def _compile(self) -> list[Compiled]:
    programs = [
      (program, self.model('target', where), self.model('draft', where), where)
      for where in self.slices
      for program in self.programs(where)
    ]
    return [
      compile.compile_program(*arguments)
      for arguments in progress.bar('compiling', programs, unit='program')
    ]

  def _compare_collectives(self, compiled: Compiled) -> str:
    """Reports if a compiled pass sends what the prediction assumes."""
    program, where = compiled.program, compiled.topology
    predicted = work.of_pass(
      self.model('target', where),
      shards=where.num_chips,
      tokens=program.tree.size,
      context=program.context,
      batch=program.batch,
    ).collectives
    line = f'{where.name}: the compiled {program.name} runs the collectives'
    sent = _listed(compiled.collectives)
    if compiled.collectives == predicted:
      return f'{line} as predicted: {sent}.'
    return f'{line} UNLIKE predicted: {sent} against {_listed(predicted)}.'

  def prices(self) -> tuple[list[Price], list[str]]:
    """Returns the price list of all slices, and reasons for missing entries."""
    listed, misfits = [], []
    for where in (*self.slices, *self.compared):
      target, draft = self.model('target', where), self.model('draft', where)
      for batch, context in self.config.prices.shapes():
        try:
          room = self.room(where, context, batch)
        except UserError as error:
          misfits.append(f'No price of {batch} x {context} slots: {error}.')
          continue
        price = prices.price(
          target, draft, where, self.config.prices, context, batch, room
        )
        listed.append(price)
    return listed, misfits

  def times(self, where: Topology) -> dict[str, latency.Time]:
    """Returns the predicted times of the passes on a slice."""
    return {
      'target step': self._predict('target', where),
      'scoring pass': self._predict('target', where, self.config.gamma + 1),
      'draft step': self._predict('draft', where),
    }

  def _predict(
    self, name: str, where: Topology, tokens: int = 1
  ) -> latency.Time:
    try:
      model_pass = work.of_pass(
        self.model(name, where),
        shards=where.num_chips,
        tokens=tokens,
        context=self.config.context,
        batch=self.config.batch,
      )
    except UserError as error:
      raise UserError(f'{where.name}, {name}: {error}') from None
    return latency.predict(model_pass, where)

  def _milliseconds(
    self, where: Topology
  ) -> tuple[float, Callable[[int], float], float]:
    """Returns the arguments of `speculation.curve` behind α."""
    times = {name: time.total for name, time in self.times(where).items()}
    times |= self.measured
    base = self._predict('target', where, self.config.gamma + 1).total

    def score_ms(gamma: int) -> float:
      # A measured pass is taken to grow with γ like the predicted one.
      grown = self._predict('target', where, gamma + 1).total
      return times['scoring pass'] * grown / base

    return times['draft step'], score_ms, times['target step']

  def curve(self, where: Topology, alpha: float) -> list[speculation.Point]:
    """Returns the predicted loops of 1 to 10 draft tokens on a slice."""
    return speculation.curve(alpha, *self._milliseconds(where))

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
      UserError: no α gives a speedup.
    """
    rows, gamma = [], self.config.gamma
    for task, speedup in self.config.paper_speedups:
      where = topology.parse(self.config.paper_ms[0][1])
      draft_ms, score_ms, target_ms = self._milliseconds(where)
      loop_ms = speculation.loop_ms(draft_ms, score_ms(gamma), gamma)
      tau = speculation.implied_tau(speedup, loop_ms, target_ms)
      try:
        alpha = speculation.alpha_of(tau, gamma)
      except ValueError as error:
        raise UserError(f'paper_speedups: {error}') from None
      rows.append(
        {
          'task': task,
          'speedup': speedup,
          'γ': gamma,
          'loop ms': loop_ms,
          'implied τ': tau,
          'implied α': alpha,
          'best γ': speculation.best(self.curve(where, alpha)).gamma,
        }
      )
    return rows

  def alternative_rows(self) -> list[_Row]:
    """Returns step times of the draft and of the alternative, per slice."""
    if not self.config.alternative_on:
      return []
    runs = [('draft', self.slices[0])]
    runs += [
      ('alternative', topology.parse(name))
      for name in self.config.alternative_on
    ]
    return [
      {
        'model': name,
        'topology': where.name,
        'layers': getattr(self.config, name).num_layers,
        'width': getattr(self.config, name).width,
        'step ms': self._predict(name, where).total,
      }
      for name, where in runs
    ]


def _listed(collectives: Sequence[Collective]) -> str:
  lines = [
    f'{each.count} {each.kind} of {each.num_bytes} bytes'
    for each in collectives
  ]
  return ', '.join(lines) or 'none'
