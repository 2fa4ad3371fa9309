"""A pair of trained models: rounds of texts, by every method in turn."""

import pathlib
import re
from typing import NamedTuple

from specsamp.decoding.arguments import slots
from specsamp.decoding.request import Request
from specsamp.evaluation import methods, metrics, runner, tasks
from specsamp.evaluation.methods import BASELINE, Label, Method
from specsamp.evaluation.reporting import report
from specsamp.evaluation.runner import Settings
from specsamp.experiments import loading
from specsamp.experiments.accelerator.config import AcceleratorConfig
from specsamp.experiments.accelerator.results import Program, Results
from specsamp.experiments.make_methods import make_method
from specsamp.planning import rounds, work
from specsamp.planning.gpu import Nodes


class Texts(NamedTuple):
  """The pair, checked.

  Attributes:
    config: what was asked for.
    models: the pair.
    drafters: name of each method's drafter; None of a baseline.
    methods: baselines first.
    tasks: what is decoded.
  """

  config: AcceleratorConfig
  models: loading.Models
  drafters: list[str | None]
  methods: list[Method]
  tasks: list[tasks.Task]

  @classmethod
  def make(cls, config: AcceleratorConfig) -> 'Texts':
    """Loads what the config names.

    Raises:
      UserError: a file or value that does not fit.
    """
    models = loading.load(config.target, config.draft, None)
    longest = [config.longest_prompt(models.target)]
    made = [make_method(config, m, models) for m in config.methods]
    baselines = [
      Method(BASELINE, None, 'token', temperature, config.top_p_at(temperature))
      for temperature in sorted({method.temperature for method in made})
    ]
    every = baselines + made
    methods.check(every)
    for each in every:
      Request.make(
        models.target,
        longest,
        each.drafter,
        each.verifier,
        sampling=each.sampling_params,
        max_new_tokens=config.max_new_tokens,
      )
    found = config.load_tasks('code', models.target)
    drafters = [None] * len(baselines) + [m.drafter for m in config.methods]
    return cls(config, models, drafters, every, found)

  @property
  def name(self) -> str:
    return self.config.target or 'pycode'

  def programs(self, topology: Nodes | None) -> list[Program]:
    """A round of each method, and what is predicted of it."""
    config, target = self.config, self.models.target
    most = config.max_prompt_tokens + config.max_new_tokens
    _, context = slots(target, config.max_prompt_tokens, most)
    drafts = {
      None: None,  # drafts nothing
      '': lambda tokens: work.of_pass(
        self.models.draft.config, shards=1, tokens=tokens, context=context
      ),
      'eagle': lambda tokens: rounds.eagle_pass(target.config, tokens, context),
    }

    def plan(tree, drafter):
      if topology is None or drafter not in drafts:
        return None
      passes = rounds.of_round(target.config, tree, drafts[drafter], context)
      return rounds.of_passes(passes, topology)

    return [
      Program(self.name, _name(method.label), plan(method.label.tree, drafter))
      for method, drafter in zip(self.methods, self.drafters, strict=True)
    ]

  def time(self, results: Results) -> None:
    """Decodes; a run that was cut off goes on where it was."""
    names = [_name(method.label) for method in self.methods]
    if not results.missing(self.name, names):
      return
    config = self.config
    lines = runner.compare(
      self.models.target,
      self.methods,
      self.tasks,
      Settings(
        max_prompt_tokens=config.max_prompt_tokens,
        max_new_tokens=config.max_new_tokens,
        seed=config.seed,
      ),
      _file(results),
    )
    for row in metrics.overall(lines):
      results.add(self.name, _name(row), row.round_ms, row.block_efficiency)


def _file(results: Results) -> pathlib.Path:
  """Of the texts' lines, which have no word of where they were decoded."""
  device = re.sub(r'\W+', '-', report.device())
  graphs = '-graphs' * results.graphs
  return results.path.with_name(f'metrics-{device}{graphs}.jsonl')


def _name(label: Label) -> str:
  draft = f' {label.draft_name}' if label.draft_name else ''
  return f'{label.method}{draft}, {label.sampling_name}'
