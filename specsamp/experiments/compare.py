"""Comparisons of methods on the same prompts, with one report."""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from specsamp import verification
from specsamp.decoding import depth_costs
from specsamp.decoding.request import Request
from specsamp.drafting.drafter import rounds_differ
from specsamp.errors import UserError
from specsamp.evaluation import bounds as measured_bounds
from specsamp.evaluation import (
  cpu_load,
  losslessness,
  methods,
  metrics,
  runner,
  tasks,
  timing,
)
from specsamp.evaluation.bounds import Bound
from specsamp.evaluation.methods import Label, Method
from specsamp.evaluation.metrics import Row
from specsamp.evaluation.reporting import (
  comparison,
  paper_figures,
  tables,
)
from specsamp.evaluation.reporting.report import Part, Table
from specsamp.evaluation.runner import Settings
from specsamp.evaluation.timing import RoundCost
from specsamp.experiments import loading, marked_texts, measured_trees
from specsamp.experiments.config import ComparisonConfig
from specsamp.experiments.methods import baseline
from specsamp.language_model import LanguageModel
from specsamp.planning import accelerators
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import progress, schema


def prepare(values: dict[str, Any], mesh: Mesh | None = None) -> 'Comparison':
  """Loads and checks everything that a comparison needs; writes nothing.

  Args:
    values: a `ComparisonConfig` as plain values.
    mesh: mesh to decode on; None is one device.

  Raises:
    UserError: a file or value is invalid.
  """
  config = schema.read(ComparisonConfig, values)
  models = config.load_models(mesh, config.dtype)
  target = models.target
  loaded = [
    task for name in config.tasks for task in config.load_tasks(name, target)
  ]
  names = [task.name for task in loaded]
  if len(set(names)) < len(names):
    raise UserError(f'tasks: got {names}, expected no task twice')
  for task in loaded:
    # Raises if a chat template is requested and missing.
    tasks.tokens_of(
      target.tokenizer,
      task.prompts[0],
      (),
      config.chat,
      config.chat_template_kwargs,
    )
    if config.batch_size > 1 and any(prompt.later for prompt in task.prompts):
      raise UserError(
        f'batch_size: got {config.batch_size}, expected 1 for {task.name}, '
        'whose prompts have second turns'
      )
  compared = [method.make(models, config.top_p) for method in config.methods]
  methods.check(compared)
  for method in compared:
    Request.make(
      target,
      [[0] * config.max_prompt_tokens] * config.batch_size,
      method.drafter,
      method.verifier,
      sampling=method.sampling_params,
      max_new_tokens=max(
        task.new_tokens(config.max_new_tokens) for task in loaded
      ),
    )
  return Comparison(config, models, compared, loaded)


@dataclasses.dataclass(frozen=True)
class Comparison:
  """A checked comparison.

  Attributes:
    config: config of the comparison.
    models: target and drafts.
    methods: methods in the order of the config.
    tasks: tasks to decode.
  """

  config: ComparisonConfig
  models: loading.Models
  methods: list[Method]
  tasks: list[tasks.Task]

  @property
  def target(self) -> LanguageModel:
    return self.models.target

  @property
  def temperatures(self) -> list[float]:
    return sorted({method.temperature for method in self.methods})

  @functools.cached_property
  def settings(self) -> Settings:
    return Settings(
      max_prompt_tokens=self.config.max_prompt_tokens,
      max_new_tokens=self.config.max_new_tokens,
      seed=self.config.seed,
      samples=self.config.samples,
      chat=self.config.chat,
      chat_template_kwargs=self.config.chat_template_kwargs,
      batch_size=self.config.batch_size,
    )

  @functools.cached_property
  def first(self) -> list[int]:
    """The tokens of the first prompt, up to its first answer."""
    return self._tokens(self.tasks[0].prompts[0])

  def run(
    self,
    workdir: pathlib.Path,
    allow_code_execution: bool = False,
    command: str = '',
  ) -> None:
    """Writes metrics.jsonl, scores.jsonl, summary.json, report.md and a plot.

    An interrupted run resumes.

    Args:
      workdir: folder that exists.
      allow_code_execution: True if tasks may run the answers as programs.
      command: command of this run, for the report.
    """
    self = dataclasses.replace(self, methods=self._with_depth_costs())
    searched, searched_sections = self._search(workdir)
    samplings = sorted({method.label.sampling for method in self.methods})
    compared = [*map(baseline, samplings), *self.methods, *searched]
    meter = cpu_load.Meter()
    lines = runner.compare(
      self.target,
      compared,
      self.tasks,
      self.settings,
      workdir / 'metrics.jsonl',
    )
    warning = meter.warning()
    scored = losslessness.score(
      self.target,
      self.tasks,
      lines,
      self.settings,
      workdir / 'scores.jsonl',
      allow_code_execution,
    )
    scores_by_id = {id_: score.scores or {} for id_, score in scored.items()}
    overall = self._rows(metrics.overall(lines, scores_by_id))
    rows = overall
    if len(self.tasks) > 1:
      rows = self._rows(metrics.summarize(lines, scores_by_id)) + overall
    findings = losslessness.examine(lines, scored, self.target.config.dtype)
    bounds = self._bounds(compared)
    by_label = {method.label: method for method in compared}
    task, prompt = self.tasks[0], self.tasks[0].prompts[0]
    marked_texts.write_page(
      self.target,
      by_label,
      overall,
      [x for x in lines if (x.task, x.prompt) == (task.name, prompt.name)],
      self.first,
      f'{self.config.title}: {prompt.name}',
      workdir,
    )
    parts, parts_section = self._time_parts(overall, by_label)
    passes, passes_section = self._time_passes(overall, by_label)

    config = self.config
    folders = (
      (config.target, config.weights),
      (config.draft, config.draft_weights),
    )
    names = [
      loading.name_of(folder or 'embedded', kind) for folder, kind in folders
    ]
    pair = '+'.join(dict.fromkeys(names))
    sections: list[Part] = [
      *filter(None, [self.config.note, loading.note(self.target)]),
      *searched_sections,
      *comparison.notes(
        self.tasks, lines, scored, self.config.max_prompt_tokens
      ),
      *tables.draft_length_section(lines),
      *filter(None, [warning]),
      *losslessness.section(findings),
      *(tables.bound_section(bounds) if bounds else []),
      f'[Texts side by side]({marked_texts.PAGE}) of a prompt.',
      *parts_section,
      *passes_section,
      *_predictions(overall, by_label),
    ]
    comparison.write(
      workdir,
      self.config.title,
      rows,
      [*parts, *passes],
      self.config.plot,
      sections,
      findings,
      bounds,
      pair,
      command,
    ).show(workdir)

  def _with_depth_costs(self) -> list[Method]:
    """Returns the methods, with measured depth costs in adaptive drafters."""
    adaptive = [method for method in self.methods if method.label.depths]
    measured = {}
    # Each compiles a program of all its depths first.
    for method in progress.bar('timing draft lengths', adaptive, unit='method'):
      drafter = depth_costs.measured(
        method.drafter,
        lambda drafter, method=method: Request.make(
          self.target,
          [self.first] * self.config.batch_size,
          drafter,
          method.verifier,
          sampling=method.sampling_params,
          max_new_tokens=self.tasks[0].new_tokens(self.config.max_new_tokens),
          seed=self.config.seed,
        ),
      )
      measured[method.label] = dataclasses.replace(method, drafter=drafter)
    return [measured.get(method.label, method) for method in self.methods]

  def _search(self, workdir: pathlib.Path) -> tuple[list[Method], list[Part]]:
    """Returns the best static trees at each temperature, and their sections."""
    found, sections = [], []
    make = functools.partial(self.models.drafter, self.config.searched)
    for temperature in self.temperatures if self.config.search else ():
      top_p = self.config.top_p_at(temperature)
      trees, section = measured_trees.search(
        self.target,
        make,
        [self._tokens(prompt) for prompt in self.tasks[0].prompts],
        SamplingParams(temperature, top_p=top_p),
        max_depth=self.config.search_depth,
        max_new_tokens=self.config.max_new_tokens,
        seed=self.config.seed,
        folder=workdir,
      )
      sections += section
      for tree in trees:
        drafter = make(tree, 'without_replacement')
        rule = (drafter, 'multi_candidate', temperature, top_p)
        found.append(Method('best static tree', *rule))
    return found, sections

  def _rows(self, rows: Sequence[Row]) -> list[Row]:
    """Returns the rows by temperature, with the figures of the paper."""
    papers = {
      method.label: config
      for config, method in zip(self.config.methods, self.methods, strict=True)
    }
    alone = len(self.tasks) == 1
    rows = [
      dataclasses.replace(
        row, paper=papers[row.label].paper_on(row.task, alone)
      )
      if row.label in papers
      else row
      for row in rows
    ]
    return sorted(rows, key=lambda row: row.sampling)

  def _bounds(self, compared: Sequence[Method]) -> list[Bound]:
    """Bounds the acceptance of first draft tokens, on the first task."""
    if not self.config.bounds:
      return []
    bounded = list(filter(measured_bounds.is_bounded, compared))
    prompts = [self._tokens(prompt) for prompt in self.tasks[0].prompts]
    return [
      measured_bounds.measure(
        self.target,
        method,
        prompts,
        self.config.max_new_tokens,
        self.config.seed,
      )
      for method in progress.bar('bounds', bounded, unit='method')
    ]

  def _time_parts(
    self, rows: Sequence[Row], methods: Mapping[Label, Method]
  ) -> tuple[list[RoundCost], list[Part]]:
    """Times rounds for which the paper has figures; returns a section too."""
    timed = [row for row in rows if row.paper and self.config.parts]
    costs = [
      (row, self._cost(row, methods[row.label], rows))
      for row in progress.bar('timing rounds', timed, unit='method')
    ]
    section = paper_figures.at_paper_cost(rows, costs) if costs else []
    return [cost for _, cost in costs if cost], section

  def _time_passes(
    self, rows: Sequence[Row], methods: Mapping[Label, Method]
  ) -> tuple[list[RoundCost], list[Part]]:
    """Times the passes of chains and trees at each temperature.

    Times the fastest chain, the fastest tree, and the tree with the highest τ.
    Also returns the section of the report.
    """
    costs, texts = [], []
    temperatures = self.temperatures if self.config.passes else ()
    for temperature in progress.bar(
      'timing passes', temperatures, unit='temperature'
    ):
      at = [
        row
        for row in rows
        if row.temperature == temperature
        and row.tree.depth
        and not rounds_differ(methods[row.label].drafter)
      ]
      chains = [row for row in at if row.tree.is_chain]
      trees = [r for r in at if not r.tree.is_chain and r.tree_attention]
      if not chains or not trees:
        continue
      chain = max(chains, key=lambda row: row.speedup)
      fastest = max(trees, key=lambda row: row.speedup)
      longest = max(trees, key=lambda row: row.block_efficiency)
      chain_cost = self._cost(chain, methods[chain.label], rows)
      costs.append(chain_cost)
      for tree in [fastest] if fastest is longest else [fastest, longest]:
        costs.append(self._cost(tree, methods[tree.label], rows))
        text = paper_figures.break_even(chain, tree, chain_cost, costs[-1])
        texts.append(f'- {text}')
    head = '## The cost of a larger pass'
    return costs, [head, '\n'.join(texts)] if texts else []

  def _cost(
    self, row: Row, method: Method, rows: Sequence[Row]
  ) -> RoundCost | None:
    """Times a row's round; None if its cost depends on the text."""
    if rounds_differ(method.drafter):
      return None
    (cost,) = timing.measure(
      self.target,
      method.drafter,
      verification.make(method.verifier),
      [method.sampling_params],
      self.first,
      self.config.max_new_tokens,
    )
    step_ms = metrics.baseline_of(row, rows).round_ms
    ideal = step_ms / (cost.draft_ms + cost.score_ms) * row.block_efficiency
    return dataclasses.replace(cost, row=row, ideal_speedup=ideal)

  def _tokens(self, prompt: tasks.Question) -> list[int]:
    """Returns the tokens of a prompt up to its first answer."""
    return self.settings.conversation(self.target, prompt, ())[0]


def _predictions(
  rows: Sequence[Row], methods: Mapping[Label, Method]
) -> list[Part]:
  """Returns a section with the speedups predicted for accelerators."""
  cells = []
  for row in rows:
    drafter = methods[row.label].drafter
    if drafter is not None and (
      predicted := accelerators.speedups(drafter, row.block_efficiency)
    ):
      measured = {'τ': row.block_efficiency, 'speedup here': row.speedup}
      cells.append(tables.heads(row) | measured | predicted)
  if not cells:
    return []
  return [
    '## Speedups predicted for accelerators',
    accelerators.NOTE,
    Table(cells),
  ]
