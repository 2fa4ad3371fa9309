"""A pod planned: what fits, what it costs, which draft length is best."""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from specsamp.drafting.draft import TokenTree
from specsamp.errors import UserError
from specsamp.planning import (
  compile,
  latency,
  parts,
  prices,
  report,
  speculation,
  topology,
  work,
)
from specsamp.planning.config import PlanConfig
from specsamp.planning.prices import Price
from specsamp.planning.report import GIB, Plan
from specsamp.planning.topology import Topology
from specsamp.planning.work import Collective, Part
from specsamp.utils import schema

# Names of the programs by those of measured times.
_MEASURED = dict(
  draft_ms='draft step', score_ms='scoring pass', target_ms='target step'
)


def prepare(values: dict[str, Any], names: Sequence[str]) -> 'Job':
  """Checks a plan; compiles and writes nothing.

  Args:
    values: a `PlanConfig` as plain values.
    names: slices to compile for, as `topology.parse` reads them.

  Raises:
    UserError: a value or name that does not fit, or models that do not fit
      into the memory of the slice's chips or divide into them.
  """
  config = schema.read(PlanConfig, values)
  slices = [topology.parse(name) for name in names]
  if not slices or len(set(slices)) < len(slices):
    raise UserError(f'topology: got {list(names)}, expected one or more, once')
  for each in slices:
    _check_fit(config, each, config.context, config.batch)
  compared, misfits = [], []
  for each in map(topology.parse, config.compare):
    try:
      _check_fit(config, each, config.context, config.batch)
    except UserError as error:
      misfits.append(str(error))
    else:
      compared += [] if each in slices else [each]
  for where in map(topology.parse, config.alternative_on):
    _arrays(config, 'alternative', where, config.context, config.batch)
  measured = latency.measured(config.measured) if config.measured else {}
  job = Job(
    config,
    slices,
    compared,
    {_MEASURED[key]: ms for key, ms in measured.items()},
    misfits,
  )
  job.papers()  # that what they report can be
  if config.compile:
    for each in slices:
      each.devices()  # that there is a compiler
  return job


def _model(config: PlanConfig, name: str, where: Topology):
  """A model of the config as it is computed on a slice."""
  return topology.as_computed(getattr(config, name), where)


def _arrays(config: PlanConfig, model: str, where: Topology, context, batch):
  """`work.shapes` of a model of the config on a slice."""
  shape = _model(config, model, where)
  try:
    return work.shapes(shape, where.num_chips, context, batch)
  except UserError as error:
    raise UserError(f'{where.name}, {model}: {error}') from None


def _check_fit(config: PlanConfig, where: Topology, context, batch) -> int:
  """Refuses weights and caches beyond a chip; the bytes beside them."""
  needed = sum(
    work.num_bytes(_arrays(config, model, where, context, batch))
    for model in ('target', 'draft')
  )
  if needed > where.chip.hbm_bytes:
    raise UserError(
      f'{where.name}: weights and caches take {needed / GIB:.2f} GiB of each '
      f'of {where.num_chips} chips, a chip has '
      f'{where.chip.hbm_bytes / GIB:.2f} GiB'
    )
  return where.chip.hbm_bytes - needed


class Job(NamedTuple):
  """A checked plan.

  Attributes:
    config: what was asked for.
    slices: to compile for.
    compared: to predict beside them.
    measured: milliseconds by name of the program.
    misfits: why slices are not compared.
  """

  config: PlanConfig
  slices: list[Topology]
  compared: list[Topology]
  measured: dict[str, float]
  misfits: list[str]

  def run(self, workdir: pathlib.Path) -> None:
    """Writes parts.jsonl as it compiles, then summary.json, report.md and
    plots. A run that was cut off goes on where it was."""
    config = self.config
    found = {}
    if config.compile:
      found = parts.compiled(workdir / 'parts.jsonl', self._programs())
    plans = [
      Plan(
        where,
        tuple(found.get(where.name, ())),
        self.times(where),
        self.measured,
        {alpha: self.curve(where, alpha) for alpha in config.alphas},
      )
      for where in (*self.slices, *self.compared)
    ]
    listed, unlisted = self.prices()
    print(
      report.write(
        workdir,
        config.title,
        plans,
        *self.papers(),
        self._alternatives(),
        [*self._counted(found), *self.misfits, *unlisted],
        listed,
        config.prices.nodes,
      )
    )
    print(f'\nReport and plots: {workdir / "report.md"}')

  def prices(self) -> tuple[list[Price], list[str]]:
    """The price list of all slices, and why some of it is left out."""
    config, listed, misfits = self.config, [], []
    for where in (*self.slices, *self.compared):
      for batch, context in prices.shapes(config.prices):
        try:
          room = _check_fit(config, where, context, batch)
        except UserError as error:
          misfits.append(f'No price of {batch} x {context} slots: {error}.')
          continue
        models = (_model(config, name, where) for name in ('target', 'draft'))
        listed.append(
          prices.price(*models, where, config.prices, context, batch, room)
        )
    return listed, misfits

  def times(self, where: Topology) -> dict[str, latency.Time]:
    """Predicted times of the programs' passes on a slice."""
    return {
      'target step': self._predict('target', where),
      'scoring pass': self._predict('target', where, self.config.gamma + 1),
      'draft step': self._predict('draft', where),
    }

  def _predict(
    self, model: str, where: Topology, tokens: int = 1
  ) -> latency.Time:
    return latency.predict(
      work.of_pass(
        _model(self.config, model, where),
        shards=where.num_chips,
        tokens=tokens,
        context=self.config.context,
        batch=self.config.batch,
      ),
      where,
    )

  def _milliseconds(self, where: Topology):
    """Of a draft step, of a scoring pass given γ, of a target step."""
    times = {name: time.total for name, time in self.times(where).items()}
    times |= self.measured
    base = self._predict('target', where, self.config.gamma + 1).total

    def score(gamma: int) -> float:
      # A measured pass grows with γ as the predicted one does.
      grown = self._predict('target', where, gamma + 1).total
      return times['scoring pass'] * grown / base

    return times['draft step'], score, times['target step']

  def curve(self, where: Topology, alpha: float) -> list[speculation.Point]:
    """Loops of 1 to 10 drafted tokens on a slice."""
    return speculation.curve(alpha, *self._milliseconds(where))

  def _ms(self, model: str, slice_name: str) -> float:
    where = topology.parse(slice_name)
    # That it divides.
    _arrays(self.config, model, where, self.config.context, self.config.batch)
    return self._predict(model, where).total

  def papers(self):
    """Reported times beside the plan's, reported speedups inverted, and loops
    at the α that these imply; empty where nothing is reported."""
    config = self.config
    times = report.paper_rows(
      [
        (model, name, ms, self._ms(model, name))
        for model, name, ms in config.paper_ms
      ]
    )
    if not config.paper_speedups:
      return times, [], {}
    where = topology.parse(config.paper_ms[0][1])
    draft_ms, score_ms, target_ms = self._milliseconds(where)
    loop = speculation.loop_ms(draft_ms, score_ms(config.gamma), config.gamma)
    try:
      rows = report.implied_rows(
        dict(config.paper_speedups), loop, target_ms, config.gamma
      )
    except ValueError as error:
      raise UserError(f'paper_speedups: {error}') from None
    figure = {
      f'{row["task"]}, α={row["implied α"]:.2f}': self.curve(
        where, row['implied α']
      )
      for row in rows
    }
    return times, rows, figure

  def _alternatives(self) -> list[dict[str, Any]]:
    """The alternative draft on its slices, beside the draft on the first."""
    config = self.config
    if not config.alternative_on:
      return []
    runs = [('draft', self.slices[0].name)]
    runs += [('alternative', name) for name in config.alternative_on]
    return [
      {
        'model': model,
        'topology': topology.parse(name).name,
        'layers': getattr(config, model).num_layers,
        'width': getattr(config, model).width,
        'step ms': self._ms(model, name),
      }
      for model, name in runs
    ]

  def _scored(self, where: Topology) -> dict[str, tuple[TokenTree, int, int]]:
    """Passes to compile by name: the tree, the context and the batch of each.

    Those over trees that do not fit the slice are left out.
    """
    config = self.config
    chain = TokenTree.chain(config.gamma)
    found = {'scoring pass': (chain, config.context, config.batch)}
    for tree, context, batch in config.prices.trees():
      try:
        _check_fit(config, where, context, batch)
      except UserError:
        continue
      name = compile.tree_pass_name(tree, batch)
      found[name] = tree, context, batch
    return found

  def _programs(self) -> dict[tuple[str, str], Callable[[], Part]]:
    """What compiles every part, by the names of its slice and its own."""
    config, found = self.config, {}
    for where in self.slices:
      mesh = compile.mesh_of(where)
      target, draft = (
        _model(config, name, where) for name in ('target', 'draft')
      )
      for name in compile.PARTS:
        found[where.name, name] = functools.partial(
          compile.compile_part,
          name,
          target,
          draft,
          mesh,
          gamma=config.gamma,
          context=config.context,
          batch=config.batch,
        )
      for name, (tree, context, batch) in self._scored(where).items():
        if name not in compile.PARTS:
          found[where.name, name] = functools.partial(
            compile.compile_tree_pass,
            target,
            tree,
            mesh,
            context=context,
            batch=batch,
          )
    return found

  def _counted(self, found: dict[str, list[Part]]) -> list[str]:
    """Whether the compiled passes send what the prediction reckons with."""
    lines = []
    for where in self.slices:
      scored = self._scored(where)
      for part in found.get(where.name, ()):
        if part.name not in scored:
          continue
        tree, context, batch = scored[part.name]
        wanted = work.of_pass(
          _model(self.config, 'target', where),
          shards=where.num_chips,
          tokens=tree.size,
          context=context,
          batch=batch,
        ).collectives
        same = 'as' if wanted == part.collectives else 'UNLIKE what'
        lines.append(
          f'{where.name}: the compiled {part.name} runs the collectives '
          f'{same} predicted: {_listed(part.collectives)}'
          + ('' if same == 'as' else f' against {_listed(wanted)}')
          + '.'
        )
    return lines


def _listed(collectives: Sequence[Collective]) -> str:
  lines = [
    f'{each.count} {each.kind} of {each.num_bytes} bytes'
    for each in collectives
  ]
  return ', '.join(lines) or 'none'
