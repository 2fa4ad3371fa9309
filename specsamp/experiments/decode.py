"""Decodes with and without a draft, and shows the speedup."""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
from jax.sharding import Mesh

from specsamp import verification
from specsamp.checkpoints import folders
from specsamp.data import prompts
from specsamp.data.prompts import Prompt
from specsamp.decoding import depth_costs
from specsamp.decoding.request import Request
from specsamp.drafting import Drafter
from specsamp.drafting.adaptive import CostAwareDrafter, adaptive_drafter
from specsamp.drafting.adaptive_tree import adaptive_tree_drafter
from specsamp.drafting.drafter import rounds_differ
from specsamp.errors import UserError
from specsamp.evaluation import (
  break_even,
  cpu_load,
  metrics,
  runner,
  tasks,
  timing,
)
from specsamp.evaluation.methods import BASELINE, Method
from specsamp.evaluation.reporting import comparison, tables
from specsamp.evaluation.reporting.run_log import RunLog
from specsamp.evaluation.runner import Settings
from specsamp.experiments import loading, marked_texts
from specsamp.experiments.config import DecodeConfig
from specsamp.experiments.methods import make_tree
from specsamp.language_model import LanguageModel
from specsamp.utils import schema


def prepare(
  values: dict[str, Any],
  prompt: str | None = None,
  prompts_file: str | None = None,
  mesh: Mesh | None = None,
) -> 'Decoding':
  """Loads and checks everything that a run needs; writes nothing.

  Args:
    values: a `DecodeConfig` as plain values.
    prompt: a prompt to complete; '-' reads it from standard input.
    prompts_file: a file of prompts, one per line.
    mesh: mesh to decode on; None is one device.

  Raises:
    UserError: a file or value is invalid.
  """
  config = schema.read(DecodeConfig, values)
  if '-' in (prompt, prompts_file) and jax.process_count() > 1:
    raise UserError('standard input reaches one process only: name a file')
  if prompt is not None and prompts_file is not None:
    raise UserError('give --prompt or --prompts_file, not both')
  is_comparison = prompt is None and prompts_file is None
  if config.chat and is_comparison:
    raise UserError('chat is for your own --prompt or --prompts_file')
  models = config.load_models(mesh, config.dtype)
  target = models.target
  drafter, compared = _drafters(config, models)
  compared_tasks = []
  if is_comparison:
    compared_tasks = config.load_tasks(config.prompts, target)
    texts = compared_tasks[0].prompts
  elif prompt in (None, '-'):
    texts = prompts.read('-' if prompts_file is None else prompts_file)
  elif prompt.strip():
    texts = [Prompt('prompt', prompt)]
  else:
    raise UserError(f'--prompt: got {prompt!r}, expected a text')
  if config.chat:
    render = lambda text: target.tokenizer.chat(
      [{'role': 'user', 'content': text}], **config.chat_template_kwargs
    )
    texts = [Prompt(text.name, render(text.text)) for text in texts]
  job = Decoding(config, target, drafter, compared, texts, compared_tasks)
  # Raises what `generate` would, before anything is decoded or written.
  if is_comparison:
    for each in [drafter, *(each for _, each in compared)]:
      job.request(each, [[0] * config.max_prompt_tokens])
  else:
    job.request(drafter, list(map(job.tokens, texts)))
  return job


def _drafters(
  config: DecodeConfig, models: loading.Models
) -> tuple[Drafter, list[tuple[str, Drafter]]]:
  """Returns the drafter of streamed completions, and drafters to compare."""
  make = functools.partial(config.make_drafter, models)
  drafter, drafters = make(config.draft_len), []
  if config.drafter != loading.NO_DRAFTER:
    deepest = models.deepest(config.drafter)
    drafters = [make(n) for n in config.draft_lens if n <= deepest]
  if config.dynamic_tree or config.branching:
    tree = make_tree(config.branching, config.dynamic_tree, models.target)
    drafter = make(tree)
    if drafter.tree in [chain.tree for chain in drafters]:
      raise UserError(f'branching {config.branching} is one of draft_lens')
    drafters.append(drafter)
  if config.adaptive:
    if not drafters:
      raise UserError(
        f'adaptive: {config.drafter} can draft none of the lengths '
        f'{config.draft_lens}'
      )
    if config.dynamic_tree:
      # Every size compiles a pass.
      sizes = sorted({max(drafter.tree.size >> i, 2) for i in range(4)})
      drafter = adaptive_tree_drafter(drafter, sizes, [1.0] * len(sizes))
    else:
      depths = range(drafter.tree.depth + 1)
      if not config.branching:
        drafter = max(drafters, key=lambda chain: chain.tree.depth)
        depths = [0, *sorted(chain.tree.depth for chain in drafters)]
      drafter = adaptive_drafter(drafter, tuple(depths), [1.0] * len(depths))
    drafters.append(drafter)
  name = pathlib.Path(config.drafter).name or 'speculative'
  compared = [(name, each) for each in drafters]
  if not (config.drafter or config.verifier):
    compared += [
      (other, models.drafter(other, length, lookup=config.lookup))
      for other, length in config.other_drafters
    ]
  return drafter, compared


@dataclasses.dataclass(frozen=True)
class Decoding:
  """A checked run.

  Attributes:
    config: the config.
    target: the target.
    drafter: drafter of the streamed completions.
    compared: names and drafters to compare.
    prompts: prompts to complete.
    tasks: tasks on which all methods are measured. Empty for user-defined
      prompts, which are only completed.
  """

  config: DecodeConfig
  target: LanguageModel
  drafter: Drafter
  compared: list[tuple[str, Drafter]]
  prompts: list[Prompt]
  tasks: list[tasks.Task]

  def run(self, workdir: pathlib.Path, speedup: bool = False) -> None:
    """Streams completions and prints their times.

    Writes metrics.jsonl into `workdir`, and for a comparison also summary.json,
    report.md and by_draft_length.png.

    Args:
      workdir: folder that exists.
      speedup: also times plain decoding of each user-defined prompt; a
        comparison always does.
    """
    run = self._with_depth_costs() if self.config.adaptive else self
    if self.config.target:
      path = folders.find('model', self.config.target)
      print(
        f'target {self.config.target}: {self.target}, fingerprint '
        f'{self.target.fingerprint}, read from {path}'
      )
    if self.tasks:
      # Greedily a small model soon repeats itself.
      number, seed = self.config.shown
      print(
        f'Prompt {number} and seed {seed} are chosen to be shown; the tables '
        'are of all prompts.'
      )
      run._show(run._first, seed, self.config.temperatures[-1])
      run._compare(workdir)
    else:
      run._complete(workdir, speedup)

  def tokens(self, prompt: Prompt) -> list[int]:
    """Encodes a prompt; a chat template writes bos itself, if it needs one."""
    return self.target.tokenizer.encode(prompt.text, bos=not self.config.chat)

  def request(self, drafter: Drafter, rows: list[list[int]]) -> Request:
    """Returns a request at the first temperature.

    Raises:
      UserError: `generate` would refuse it.
    """
    return Request.make(
      self.target,
      rows,
      drafter,
      self._rule(drafter),
      sampling=self.config.sampling(self.config.temperatures[0]),
      max_new_tokens=self.config.max_new_tokens,
      seed=self.config.seed,
    )

  def _rule(self, drafter: Drafter) -> str:
    """Returns the name of the verifier for a drafter's drafts."""
    rule = self.config.verifier
    if not rule:
      return verification.default_name(drafter.law, drafter.tree)
    return rule if drafter.tree.depth else verification.name_without_draft(rule)

  def _complete(self, workdir: pathlib.Path, speedup: bool) -> None:
    temperature = self.config.temperatures[0]
    meter, log = cpu_load.Meter(), RunLog(workdir / 'metrics.jsonl')
    for i, prompt in enumerate(self.prompts):
      log.append(self._show(prompt, i, temperature, speedup))
    if len(self.prompts) > 1:
      total = marked_texts.total(list(log.records.values()))
      print(f'=== {len(self.prompts)} prompts: {total}')
    warning = meter.warning()
    if warning:
      print(warning)

  def _with_depth_costs(self) -> 'Decoding':
    """Measures a round of each choice of the adaptive drafter."""
    rows = [self.tokens(self._first)]
    adaptive = depth_costs.measured(
      self.drafter, lambda drafter: self.request(drafter, rows)
    )
    compared = [
      (name, adaptive if isinstance(drafter, CostAwareDrafter) else drafter)
      for name, drafter in self.compared
    ]
    return dataclasses.replace(self, drafter=adaptive, compared=compared)

  @property
  def _first(self) -> Prompt:
    """The prompt that is shown before a comparison, or the only one."""
    number = self.config.shown[0] if self.tasks else 0
    prompt = self.prompts[number % len(self.prompts)]
    tokens = self.tokens(prompt)
    if len(tokens) <= self.config.max_prompt_tokens:
      return prompt
    # Text that is encoded again may have some more tokens.
    kept = tokens[-max(self.config.max_prompt_tokens - 8, 1) :]
    return Prompt(prompt.name, self.target.tokenizer.decode(kept))

  def _show(
    self, prompt: Prompt, i: int, temperature: float, speedup: bool = False
  ) -> dict[str, Any]:
    return marked_texts.show(
      self.target,
      self.drafter,
      prompt,
      self.tokens(prompt),
      verifier=self._rule(self.drafter),
      sampling=self.config.sampling(temperature),
      max_new_tokens=self.config.max_new_tokens,
      seed=self.config.seed + i,
      speedup=speedup,
    )

  def _compare(self, workdir: pathlib.Path) -> None:
    config = self.config
    baseline = verification.name_without_draft(config.verifier or 'token')
    methods = []
    for temperature in config.temperatures:
      top_p = config.top_p_at(temperature)
      methods.append(Method(BASELINE, None, baseline, temperature, top_p))
      methods += [
        Method(name, drafter, self._rule(drafter), temperature, top_p)
        for name, drafter in self.compared
      ]
    settings = Settings(
      max_prompt_tokens=config.max_prompt_tokens,
      max_new_tokens=config.max_new_tokens,
      seed=config.seed,
      sweep_prompts=config.sweep_prompts,
    )
    meter = cpu_load.Meter()
    lines = runner.compare(
      self.target, methods, self.tasks, settings, workdir / 'metrics.jsonl'
    )
    warning = meter.warning()
    rows = metrics.summarize(lines)
    # If rounds differ, the costs of their parts depend on the text.
    timed = {
      method.label: method
      for method in methods
      if method.drafter and not rounds_differ(method.drafter)
    }
    fastest = max(
      (row for row in rows if row.label in timed),
      key=lambda row: (row.sequences, row.speedup),
      default=None,
    )
    costs = []
    if fastest:
      method = timed[fastest.label]
      costs = timing.measure(
        self.target,
        method.drafter,
        verification.make(method.verifier),
        [config.sampling(temperature) for temperature in config.temperatures],
        self.tokens(self._first),
        config.max_new_tokens,
        config.repeats,
      )
    sections = [
      *tables.draft_length_section(lines),
      *break_even.sentences(rows, costs, fastest.method if fastest else ''),
      *filter(None, [loading.note(self.target), warning]),
    ]
    report = comparison.write(
      workdir,
      'Speculative sampling',
      rows,
      costs,
      'by_draft_length',
      sections,
    )
    report.show(workdir)
