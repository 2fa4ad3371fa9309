"""Many ways to draft and verify, on the same prompts: one report."""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jax.sharding import Mesh

from specsamp import verification
from specsamp.decoding import depth_costs
from specsamp.decoding.request import Request
from specsamp.drafting.drafter import rounds_differ
from specsamp.errors import UserError
from specsamp.evaluation import bounds as measured_bounds
from specsamp.evaluation import (
  cpu_load,
  methods,
  metrics,
  runner,
  tasks,
  timing,
)
from specsamp.evaluation.bounds import Bound
from specsamp.evaluation.losslessness import permutation_tests, scores
from specsamp.evaluation.methods import Label, Method
from specsamp.evaluation.metrics import Row
from specsamp.evaluation.reporting import (
  draft_lengths,
  paper_figures,
  report,
  tables,
)
from specsamp.evaluation.runner import Settings
from specsamp.evaluation.timing import RoundCost
from specsamp.experiments import loading, marked_texts, measured_trees
from specsamp.experiments.config import ComparisonConfig
from specsamp.experiments.make_methods import baseline, make_method
from specsamp.experiments.measured_trees import Found
from specsamp.experiments.trees import token_tree
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import progress


def prepare(values: dict[str, Any], mesh: Mesh | None = None) -> 'Comparison':
  """Loads and checks all that a comparison needs; writes nothing.

  Args:
    values: a `ComparisonConfig` as plain values.
    mesh: where to decode; None is one device.

  Raises:
    UserError: a file or value that does not fit.
  """
  config = ComparisonConfig.read(values)
  models = loading.load(config.target, config.draft, mesh, config.dtype)
  target = models.target
  longest = [config.longest_prompt(target)]
  found = [
    task for name in config.tasks for task in config.load_tasks(name, target)
  ]
  names = [task.name for task in found]
  if len(set(names)) < len(names):
    raise UserError(f'tasks: got {names}, expected no task twice')
  for task in found:  # that there is a chat template, if one is asked for
    tasks.tokens_of(target.tokenizer, task.prompts[0], (), config.chat)
  if config.batch_size > 1:
    for task in found:
      if any(prompt.later for prompt in task.prompts):
        raise UserError(
          f'batch_size: got {config.batch_size}, expected 1 for {task.name}, '
          'whose prompts have second turns'
        )
  made = [make_method(config, method, models) for method in config.methods]
  methods.check(made)
  job = Comparison(config, models, made, found)
  for method in [*made, *job.widest_trees()]:
    Request.make(
      target,
      longest * config.batch_size,
      method.drafter,
      method.verifier,
      sampling=method.sampling_params,
      max_new_tokens=max(
        task.new_tokens(config.max_new_tokens) for task in found
      ),
    )
  return job


class Comparison(NamedTuple):
  """A checked comparison.

  Attributes:
    config: what was asked for.
    models: target and drafts.
    methods: in the order of the config's.
    tasks: what to decode.
  """

  config: ComparisonConfig
  models: loading.Models
  methods: list[Method]
  tasks: list[tasks.Task]

  @property
  def target(self) -> LanguageModel:
    return self.models.target

  @property
  def pair_name(self) -> str:
    """The folders' names, for a caption."""
    folders = (self.config.target, self.config.draft)
    names = [pathlib.Path(folder).name or 'embedded' for folder in folders]
    return '+'.join(dict.fromkeys(names))

  @property
  def temperatures(self) -> list[float]:
    return sorted({method.temperature for method in self.methods})

  @property
  def settings(self) -> Settings:
    return Settings(
      max_prompt_tokens=self.config.max_prompt_tokens,
      max_new_tokens=self.config.max_new_tokens,
      seed=self.config.seed,
      samples=self.config.samples,
      chat=self.config.chat,
      batch_size=self.config.batch_size,
      shuffled=self.config.shuffled,
    )

  def run(
    self,
    workdir: pathlib.Path,
    allow_code_execution: bool = False,
    command: str = '',
  ) -> None:
    """Writes metrics.jsonl, scores.jsonl, summary.json, report.md and a plot.

    A run that was cut off goes on where it was.

    Args:
      workdir: a folder.
      allow_code_execution: whether tasks may run the answers as programs.
      command: that runs this, for the report.
    """
    scores.warn_of_unscored(self.tasks, allow_code_execution)
    self = self._replace(methods=self._priced())
    found = self._search(workdir)
    sections: list[tables.Section] = []
    sections += [self.config.note] if self.config.note else []
    sections += [each.section for each in found.values()]
    every = self._with_baselines(found)
    path = workdir / 'metrics.jsonl'
    meter = cpu_load.Meter()
    lines = runner.compare(self.target, every, self.tasks, self.settings, path)
    warning = meter.warning()
    scored = scores.score(
      self.target,
      self.tasks,
      lines,
      self.settings,
      workdir / 'scores.jsonl',
      allow_code_execution,
    )
    of_tasks = {id_: score.scores or {} for id_, score in scored.items()}
    rows = self._rows(metrics.overall(lines, of_tasks))
    each = self._rows(metrics.summarize(lines, of_tasks))
    sections += report.notes(
      self.tasks, lines, scored, self.config.max_prompt_tokens
    )
    told = report.caption(self.config.title, self.pair_name, command)
    lengths = draft_lengths.section(lines, workdir, told)
    against = draft_lengths.against_fixed(lines, not self.config.shuffled)
    sections += filter(None, (lengths, against, warning))
    findings = permutation_tests.examine(
      lines, scored, self.target.config.dtype
    )
    if any(len(group) > 1 for group in paper_figures.alternatives(rows)):
      sections.append(functools.partial(paper_figures.best, rows))
    sections.append(functools.partial(permutation_tests.section, findings))
    bounds = self._bounds(every)
    if bounds:
      sections.append(functools.partial(tables.bound_table, bounds))
    costs: list[RoundCost] = []

    def write():
      report.write(
        workdir,
        self.config.title,
        each + rows if len(self.tasks) > 1 else rows,
        costs,
        self.config.plot,
        sections,
        findings,
        bounds,
        self.pair_name,
        command,
      )

    write()  # timing takes minutes, in which what was decoded can be read
    by_label = {method.label: method for method in every}
    self._write_texts(by_label, rows, lines, workdir)
    sections.append(f'[Texts side by side]({marked_texts.PAGE}) of a prompt.')
    for measure in (self._parts, self._passes):
      more, section = measure(rows, by_label)
      if section:
        costs += more
        sections.append(section)
        write()
    self._print(each, rows, sections)
    print(f'\nReport and plot: {workdir / "report.md"}')

  def _with_baselines(self, found: Mapping[float, Found]) -> list[Method]:
    """All methods: also the target alone, and trees that were found."""
    samplings = {method.label.sampling for method in self.methods}
    trees = [
      self._searched(tree, temperature)
      for temperature, each in found.items()
      for tree in each.trees
    ]
    return [*map(baseline, sorted(samplings)), *self.methods, *trees]

  def _write_texts(self, methods, rows, lines, workdir) -> None:
    """The page of the first prompt's answers."""
    first = self.tasks[0].prompts[0]
    tokens = self._tokens(first)
    own = [
      line
      for line in lines
      if (line.task, line.prompt) == (self.tasks[0].name, first.name)
    ]
    title = f'{self.config.title}: {first.name}'
    text = self.target.tokenizer.decode(tokens)
    marked_texts.write(
      self.target, methods, rows, own, text, tokens, title, workdir
    )

  def _priced(self) -> list[Method]:
    """With what a round of each depth costs here, where it is chosen."""
    priced = list(self.methods)
    chosen = [i for i, method in enumerate(priced) if method.label.depths]
    # Each compiles a program of all its depths first.
    for i in progress.bar('timing draft lengths', chosen, unit='method'):
      method = priced[i]
      drafter = depth_costs.measured(
        method.drafter,
        lambda drafter, method=method: Request.make(
          self.target,
          [self._tokens(self.tasks[0].prompts[0])] * self.config.batch_size,
          drafter,
          method.verifier,
          sampling=method.sampling_params,
          max_new_tokens=self.tasks[0].new_tokens(self.config.max_new_tokens),
          seed=self.config.seed,
        ),
      )
      priced[i] = method._replace(drafter=drafter)
    return priced

  def widest_trees(self) -> list[Method]:
    """Of a search, its widest, its largest and its deepest tree."""
    if not self.config.search:
      return []
    stars = (measured_trees.CANDIDATES, measured_trees.SIZES[-1] - 1)
    widest = [(star,) for star in stars] + [(1,) * self.config.search_depth]
    trees = [token_tree(each, self.target) for each in widest]
    return [self._searched(tree, 1.0) for tree in trees]

  def _search(self, workdir: pathlib.Path) -> dict[float, Found]:
    """The best static trees at each temperature, if they are asked for."""
    temperatures = self.temperatures if self.config.search else ()
    return {
      temperature: measured_trees.search(
        self.target,
        functools.partial(self.models.drafter, self.config.searched),
        [self._tokens(prompt) for prompt in self.tasks[0].prompts],
        SamplingParams(temperature, top_p=self.config.top_p_at(temperature)),
        max_depth=self.config.search_depth,
        max_new_tokens=self.config.max_new_tokens,
        seed=self.config.seed,
        folder=workdir,
      )
      for temperature in temperatures
    }

  def _searched(self, tree, temperature: float) -> Method:
    return Method(
      'best static tree',
      self.models.drafter(self.config.searched, tree, 'without_replacement'),
      'multi_candidate',
      temperature,
      self.config.top_p_at(temperature),
    )

  def _rows(self, rows: Sequence[Row]) -> list[Row]:
    """In order of temperature, with what the paper reports."""
    papers = {
      run.label: method
      for method, run in zip(self.config.methods, self.methods, strict=True)
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

  def _bounds(self, every: Sequence[Method]) -> list[Bound]:
    """What is accepted of first tokens and could be, on the first task."""
    chosen = filter(measured_bounds.is_bounded, every)
    prompts = [self._tokens(prompt) for prompt in self.tasks[0].prompts]
    return [
      measured_bounds.measure(
        self.target,
        method,
        prompts,
        self.config.max_new_tokens,
        self.config.seed,
      )
      for method in progress.bar(
        'bounds', list(chosen) if self.config.bounds else [], unit='method'
      )
    ]

  def _parts(
    self, rows: Sequence[Row], methods: Mapping[Label, Method]
  ) -> tuple[list[RoundCost], tables.Section]:
    """What rounds cost of which the paper has figures; a section of it."""
    chosen = [row for row in rows if row.paper] if self.config.parts else []
    found = [
      (row, self._cost(row, methods[row.label], rows))
      for row in progress.bar('timing rounds', chosen, unit='method')
    ]
    section = functools.partial(paper_figures.at_paper_cost, rows, found)
    return [cost for _, cost in found if cost], section if found else ''

  def _passes(
    self, rows: Sequence[Row], methods: Mapping[Label, Method]
  ) -> tuple[list[RoundCost], tables.Section]:
    """Costs of the fastest chain, and of the fastest tree and that of the
    highest τ, at each temperature; a section of it."""
    drafted = [
      row for row in rows if row.tree.depth and _has_parts(methods[row.label])
    ]
    costs, texts = [], []
    temperatures = self.temperatures if self.config.passes else ()
    for temperature in progress.bar(
      'timing passes', temperatures, unit='temperature'
    ):
      own = [row for row in drafted if row.temperature == temperature]
      chains = [row for row in own if row.tree.is_chain]
      trees = [r for r in own if not r.tree.is_chain and r.tree_attention]
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
    head = '## What a larger pass costs'
    return costs, '\n'.join([head, *texts]) if texts else ''

  def _cost(
    self, row: Row, method: Method, rows: Sequence[Row]
  ) -> RoundCost | None:
    """What a row's round costs; None where its text decides that."""
    if not _has_parts(method):
      return None
    (cost,) = timing.measure(
      self.target,
      method.drafter,
      verification.make(method.verifier),
      [method.sampling_params],
      self._tokens(self.tasks[0].prompts[0]),
      self.config.max_new_tokens,
    )
    step_ms = metrics.baseline_of(row, rows).round_ms
    ideal = step_ms / (cost.draft_ms + cost.score_ms) * row.block_efficiency
    return dataclasses.replace(cost, row=row, ideal_speedup=ideal)

  def _tokens(self, prompt: tasks.Question) -> list[int]:
    """The tokens that a prompt's first answer follows."""
    return self.settings.conversation(self.target, prompt, ())[0]

  def _print(self, each, rows, sections) -> None:
    if len(self.tasks) > 1:
      print(f'Speedup / τ:\n\n{tables.by_task(each + rows, "simple")}\n')
      if any(row.scores for row in each):
        print(f'{tables.table(each, "simple")}\n')
      print('All tasks together:\n')
    print(tables.table(rows, 'simple'))
    print()
    print('\n\n'.join(tables.in_style(each, 'simple') for each in sections))
    print(f'\n{tables.note(rows)}')


def _has_parts(method: Method) -> bool:
  """Whether all its rounds have the same parts."""
  return not rounds_differ(method.drafter)
