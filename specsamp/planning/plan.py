"""A pod planned: what fits, what it costs, which draft length is best."""

import dataclasses
import json
import pathlib
import typing
from collections.abc import Sequence
from typing import Any, NamedTuple

import tqdm

from specsamp import files
from specsamp.errors import UserError, check_range
from specsamp.models import TransformerConfig
from specsamp.planning import (
  compile,
  latency,
  report,
  speculation,
  topology,
  work,
)
from specsamp.planning.report import GIB, Plan
from specsamp.planning.topology import Topology
from specsamp.planning.work import Collective, Kernels, Part

# Names of the programs by those of measured times.
_MEASURED = dict(
  draft_ms='draft step', score_ms='scoring pass', target_ms='target step'
)

_MODELS = ('target', 'draft', 'alternative')


@dataclasses.dataclass(frozen=True)
class PlanConfig:
  """What to plan.

  Attributes:
    title: of the report.
    target: the target's shape.
    draft: the draft's shape.
    alternative: another draft, on slices of its own.
    gamma: γ, drafted tokens of the compiled programs.
    context: slots of the caches.
    batch: rows.
    alphas: chances of acceptance to predict speedups at.
    compare: slices to predict beside the compiled ones; what does not fit
      one of them is left out, and the report notes it.
    alternative_on: slices of the alternative; none leaves it out.
    measured: a JSON of measured times for `latency.measured`, or ''; they
      stand for every slice.
    paper_ms: reported times by model and slice: ((model, slice, ms), ...).
    paper_speedups: reported ones, ((task, speedup), ...), of γ drafted tokens
      on the first slice of `paper_ms`.
    compile: whether to compile at all, minutes for each slice.
  """

  title: str
  target: TransformerConfig
  draft: TransformerConfig
  alternative: TransformerConfig
  gamma: int
  context: int
  batch: int
  alphas: tuple[float, ...]
  compare: tuple[str, ...]
  alternative_on: tuple[str, ...]
  measured: str
  paper_ms: tuple[tuple[str, str, float], ...]
  paper_speedups: tuple[tuple[str, float], ...]
  compile: bool

  def __post_init__(self):
    check_range(self, 'gamma', 'context', 'batch', least=1, kind=int)
    _check_entries('alphas', self.alphas, float)
    _check_entries('compare', self.compare, str)
    _check_entries('alternative_on', self.alternative_on, str)
    _check_entries('paper_ms', self.paper_ms, str, str, float)
    _check_entries('paper_speedups', self.paper_speedups, str, float)
    for alpha in self.alphas:
      if not 0 <= alpha <= 1:
        raise UserError(f'alphas: got {alpha!r}, expected 0 to 1')
    longest = min(self.target.max_length, self.draft.max_length)
    if self.context > longest:
      raise UserError(
        f'context: got {self.context}, but the models have {longest} positions'
      )
    if self.gamma + 1 > self.context:
      raise UserError(
        f'gamma: got {self.gamma}, expected below the context, {self.context}'
      )
    for model, *_ in self.paper_ms:
      if model not in _MODELS:
        raise UserError(
          f'paper_ms: got model {model!r}, expected one of {", ".join(_MODELS)}'
        )
    if self.paper_speedups and not self.paper_ms:
      raise UserError('paper_speedups: expected paper_ms to name their slice')
    if self.target.vocab_size != self.draft.vocab_size:
      raise UserError(
        f'draft and target must share a vocabulary; the draft has '
        f'{self.draft.vocab_size} tokens, the target {self.target.vocab_size}'
      )


def _check_entries(name: str, entries, *kinds: type) -> None:
  """Refuses what is no tuple of values of these kinds, or of tuples of them."""
  for entry in entries if isinstance(entries, list | tuple) else (entries,):
    parts = (entry,) if len(kinds) == 1 else entry
    if (
      not isinstance(parts, list | tuple)
      or len(parts) != len(kinds)
      or not all(map(files.has_shape, parts, kinds))
    ):
      wanted = ', '.join(kind.__name__ for kind in kinds)
      raise UserError(f'{name}: got {entry!r}, expected ({wanted})')


def prepare(values: dict[str, Any], names: Sequence[str]) -> 'Job':
  """Checks a plan; compiles and writes nothing.

  Args:
    values: a `PlanConfig` as plain values.
    names: slices to compile for, as `topology.parse` reads them.

  Raises:
    UserError: a value or name that does not fit, or models that do not fit
      into the memory of the slice's chips or divide into them.
  """
  try:
    shapes = {
      name: TransformerConfig.from_dict(values[name]) for name in _MODELS
    }
    config = PlanConfig(**(values | shapes))
  except KeyError as error:
    raise UserError(f'config: missing key {error}') from None
  except (TypeError, ValueError) as error:
    raise UserError(f'config: {error}') from None
  slices = [topology.parse(name) for name in names]
  if not slices or len(set(slices)) < len(slices):
    raise UserError(f'topology: got {list(names)}, expected one or more, once')
  for each in slices:
    _check_fit(config, each)
  compared, misfits = [], []
  for each in map(topology.parse, config.compare):
    try:
      _check_fit(config, each)
    except UserError as error:
      misfits.append(str(error))
    else:
      compared += [] if each in slices else [each]
  for where in map(topology.parse, config.alternative_on):
    _arrays(config, 'alternative', where)
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


def _arrays(config: PlanConfig, model: str, where: Topology):
  """`work.shapes` of a model of the config on a slice."""
  try:
    return work.shapes(
      getattr(config, model), where.num_chips, config.context, config.batch
    )
  except UserError as error:
    raise UserError(f'{where.name}, {model}: {error}') from None


def _check_fit(config: PlanConfig, where: Topology) -> None:
  needed = sum(
    work.num_bytes(_arrays(config, model, where))
    for model in ('target', 'draft')
  )
  if needed > where.chip.hbm_bytes:
    raise UserError(
      f'{where.name}: weights and caches take {needed / GIB:.2f} GiB of each '
      f'of {where.num_chips} chips, a chip has '
      f'{where.chip.hbm_bytes / GIB:.2f} GiB'
    )


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
    parts = self._compiled(workdir / 'parts.jsonl') if config.compile else {}
    plans = [
      Plan(
        where,
        tuple(parts.get(where.name, ())),
        self.times(where),
        self.measured,
        {alpha: self.curve(where, alpha) for alpha in config.alphas},
      )
      for where in (*self.slices, *self.compared)
    ]
    print(
      report.write(
        workdir,
        config.title,
        plans,
        *self.papers(),
        self._alternatives(),
        [*self._counted(parts), *self.misfits],
      )
    )
    print(f'\nReport and plots: {workdir / "report.md"}')

  def times(self, where: Topology) -> dict[str, latency.Time]:
    """Predicted times of the programs' passes on a slice."""
    config = self.config
    return {
      'target step': self._predict(config.target, where),
      'scoring pass': self._predict(config.target, where, config.gamma + 1),
      'draft step': self._predict(config.draft, where),
    }

  def _predict(self, model, where: Topology, tokens: int = 1) -> latency.Time:
    return latency.predict(
      work.of_pass(
        model,
        shards=where.num_chips,
        tokens=tokens,
        context=self.config.context,
        batch=self.config.batch,
      ),
      where,
    )

  def _milliseconds(self, where: Topology):
    """Of a draft step, of a scoring pass given γ, of a target step."""
    config = self.config
    times = {name: time.total for name, time in self.times(where).items()}
    times |= self.measured
    base = self._predict(config.target, where, config.gamma + 1).total

    def score(gamma: int) -> float:
      # A measured pass grows with γ as the predicted one does.
      grown = self._predict(config.target, where, gamma + 1).total
      return times['scoring pass'] * grown / base

    return times['draft step'], score, times['target step']

  def curve(self, where: Topology, alpha: float) -> list[speculation.Point]:
    """Loops of 1 to 10 drafted tokens on a slice."""
    return speculation.curve(alpha, *self._milliseconds(where))

  def _ms(self, model: str, slice_name: str) -> float:
    where = topology.parse(slice_name)
    _arrays(self.config, model, where)  # that it divides
    return self._predict(getattr(self.config, model), where).total

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

  def _counted(self, parts) -> list[str]:
    """Whether the compiled pass sends what the prediction reckons with."""
    lines = []
    for where in self.slices:
      for part in parts.get(where.name, ()):
        if part.name != 'scoring pass':
          continue
        wanted = work.of_pass(
          self.config.target,
          shards=where.num_chips,
          tokens=self.config.gamma + 1,
          context=self.config.context,
          batch=self.config.batch,
        ).collectives
        same = 'as' if wanted == part.collectives else 'UNLIKE what'
        lines.append(
          f'{where.name}: the compiled scoring pass runs the collectives '
          f'{same} predicted: {_listed(part.collectives)}'
          + ('' if same == 'as' else f' against {_listed(wanted)}')
          + '.'
        )
    return lines

  def _compiled(self, path: pathlib.Path) -> dict[str, list[Part]]:
    """The parts of every slice; those in the file are not compiled again."""
    lines = files.read_lines(
      path, _is_part, key=lambda line: (line[0], line[1]['name'])
    )
    found = {(name, part['name']): _part(part) for name, part in lines.kept}
    todo = [
      (where, name)
      for where in self.slices
      for name in compile.PARTS
      if (where.name, name) not in found
    ]
    lines.rewrite(
      [[name, dataclasses.asdict(part)] for (name, _), part in found.items()]
    )
    with path.open('a') as file, tqdm.tqdm(todo, unit='program') as bar:
      for where, name in bar:
        bar.set_description(f'{where.name} {name}')
        part = compile.compile_part(
          name,
          self.config.target,
          self.config.draft,
          compile.mesh_of(where),
          gamma=self.config.gamma,
          context=self.config.context,
          batch=self.config.batch,
        )
        found[where.name, name] = part
        line = [where.name, dataclasses.asdict(part)]
        file.write(json.dumps(line) + '\n')
        file.flush()
    return {
      where.name: [found[where.name, name] for name in compile.PARTS]
      for where in self.slices
    }


def _is_part(line: Any) -> bool:
  """Whether `_part` reads what follows the name of a slice."""
  if type(line) is not list or len(line) != 2 or type(line[0]) is not str:
    return False
  hints = typing.get_type_hints(Part)
  shape = hints | {
    'collectives': [typing.get_type_hints(Collective)],
    'kernels': typing.get_type_hints(Kernels),
  }
  try:
    return files.has_shape(line[1], shape) and bool(_part(line[1]))
  except TypeError:  # other fields
    return False


def _part(values: dict[str, Any]) -> Part:
  sent = tuple(Collective(**each) for each in values['collectives'])
  run = Kernels(**values['kernels'])
  return Part(**(values | {'collectives': sent, 'kernels': run}))


def _listed(collectives: Sequence[Collective]) -> str:
  return ', '.join(
    f'{each.count} {each.kind} of {each.num_bytes} bytes'
    for each in collectives
  )
