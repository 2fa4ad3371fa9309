"""Decodes with and without a draft, and shows the speedup."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from specsamp import verification
from specsamp.data import prompts
from specsamp.data.prompts import Prompt
from specsamp.decoding import depth_costs
from specsamp.decoding.request import Request
from specsamp.drafting import Drafter
from specsamp.drafting.adaptive import AdaptiveDrafter, adaptive_drafter
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
from specsamp.evaluation.methods import BASELINE, Method, depths_of
from specsamp.evaluation.metrics import Row
from specsamp.evaluation.reporting import comparison, tables
from specsamp.evaluation.reporting.run_log import RunLog
from specsamp.evaluation.runner import Settings
from specsamp.evaluation.timing import RoundCost
from specsamp.experiments import loading, terminal
from specsamp.experiments.config import DecodeConfig
from specsamp.experiments.trees import dynamic_tree, token_tree
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
  is_custom = prompt is not None or prompts_file is not None
  models = loading.load(config.target, config.draft, mesh, config.dtype)
  target = models.target
  if config.chat and not is_custom:
    raise UserError('chat is for your own --prompt or --prompts_file')
  longest = [] if is_custom else [config.longest_prompt(target)]
  drafter, drafters = _drafters(config, models)
  others = [
    (name, models.drafter(name, length, lookup=config.lookup))
    for name, length in config.other_drafters
    if not (is_custom or config.drafter or config.verifier)
  ]
  compared_tasks = []
  if prompts_file is not None or prompt == '-':
    texts = prompts.read('-' if prompts_file is None else prompts_file)
  elif prompt is not None:
    if not prompt.strip():
      raise UserError(f'--prompt: got {prompt!r}, expected a text')
    texts = [Prompt('prompt', prompt)]
  else:
    compared_tasks = config.load_tasks(config.prompts, target)
    texts = compared_tasks[0].prompts
  if config.chat:
    turn = lambda text: [{'role': 'user', 'content': text}]
    texts = [
      Prompt(text.name, target.tokenizer.chat(turn(text.text)))
      for text in texts
    ]
  # Raises what `generate` would, before anything is decoded or written.
  rows = longest or [_tokens(target, text, config) for text in texts]
  compared = [] if is_custom else [*drafters, *(other for _, other in others)]
  for checked in (drafter, *compared):
    Request.make(
      target,
      rows,
      drafter=checked,
      verifier=_rule(config, checked),
      max_new_tokens=config.max_new_tokens,
      seed=config.seed,
    )
  return Decoding(
    config, target, drafter, drafters, others, texts, compared_tasks
  )


def _drafters(
  config: DecodeConfig, models: loading.Models
) -> tuple[Drafter, list[Drafter]]:
  """Returns the drafter of streamed texts, and the drafters to compare."""
  make = lambda shape: models.drafter(
    config.drafter, shape, config.law, config.verifier, config.lookup
  )
  drafter = make(config.draft_len)
  drafters = []
  if config.drafter != loading.NO_DRAFTER:
    deepest = models.deepest(config.drafter)
    drafters = [make(n) for n in config.draft_lens if n <= deepest]
  if config.dynamic_tree:
    drafter = make(dynamic_tree(config.dynamic_tree, models.target))
    drafters.append(drafter)
  if config.branching:
    drafter = make(token_tree(config.branching, models.target))
    if drafter.tree in [chain.tree for chain in drafters]:
      raise UserError(f'branching {config.branching} is one of draft_lens')
    drafters.append(drafter)
  if config.adaptive:
    drafter = _adaptive(drafters, config)
    drafters.append(drafter)
  return drafter, drafters


def _adaptive(
  drafters: Sequence[Drafter], config: DecodeConfig
) -> AdaptiveDrafter:
  """Returns an adaptive drafter of the tree, or of the longest chain.

  Raises:
    UserError: the drafter is not deep enough for any length, or see
      `adaptive_drafter`.
  """
  if not drafters:
    raise UserError(
      f'adaptive: {config.drafter} can draft none of the lengths '
      f'{config.draft_lens}'
    )
  if config.branching:
    drafter = drafters[-1]
    depths = tuple(range(drafter.tree.depth + 1))
  else:
    drafter = max(drafters, key=lambda chain: chain.tree.depth)
    depths = (0, *sorted(chain.tree.depth for chain in drafters))
  return adaptive_drafter(drafter, depths, [1.0] * len(depths))


def _rule(config: DecodeConfig, drafter: Drafter) -> str:
  """Returns the name of the verifier for a drafter's drafts."""
  if not config.verifier:
    return verification.default_name(drafter.law, drafter.tree)
  if drafter.tree.depth:
    return config.verifier
  return verification.name_without_draft(config.verifier)


@dataclasses.dataclass(frozen=True)
class Decoding:
  """A checked run.

  Attributes:
    config: the config.
    target: the target.
    drafter: drafter of the streamed texts.
    drafters: drafters to compare, one for each draft length.
    others: names and drafters that are compared too.
    prompts: prompts to complete.
    tasks: tasks on which all methods are measured. Empty for user-defined
      prompts, which are only completed.
  """

  config: DecodeConfig
  target: LanguageModel
  drafter: Drafter
  drafters: list[Drafter]
  others: list[tuple[str, Drafter]]
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

  def _complete(self, workdir: pathlib.Path, speedup: bool) -> None:
    temperature = self.config.temperatures[0]
    meter, log = cpu_load.Meter(), RunLog(workdir / 'metrics.jsonl')
    for i, prompt in enumerate(self.prompts):
      log.append(self._show(prompt, i, temperature, speedup))
    if len(self.prompts) > 1:
      total = terminal.total(list(log.records.values()))
      print(f'=== {len(self.prompts)} prompts: {total}')
    warning = meter.warning()
    if warning:
      print(warning)

  def _with_depth_costs(self) -> 'Decoding':
    """Measures a round of each depth, for the adaptive drafter."""
    adaptive = depth_costs.measured(
      self.drafter,
      lambda drafter: Request.make(
        self.target,
        [_tokens(self.target, self._first, self.config)],
        drafter,
        _rule(self.config, drafter),
        sampling=self.config.sampling(self.config.temperatures[0]),
        max_new_tokens=self.config.max_new_tokens,
        seed=self.config.seed,
      ),
    )
    drafters = [*self.drafters[:-1], adaptive]
    return dataclasses.replace(self, drafter=adaptive, drafters=drafters)

  @property
  def _first(self) -> Prompt:
    """The prompt that is shown before a comparison, or the only one."""
    number = self.config.shown[0] if self.tasks else 0
    prompt = self.prompts[number % len(self.prompts)]
    tokens = _tokens(self.target, prompt, self.config)
    if len(tokens) <= self.config.max_prompt_tokens:
      return prompt
    # Text that is encoded again may have some more tokens.
    kept = tokens[-max(self.config.max_prompt_tokens - 8, 1) :]
    return Prompt(prompt.name, self.target.tokenizer.decode(kept))

  def _show(
    self, prompt: Prompt, i: int, temperature: float, speedup: bool = False
  ) -> dict[str, Any]:
    return terminal.show(
      self.target,
      self.drafter,
      prompt,
      _tokens(self.target, prompt, self.config),
      verifier=_rule(self.config, self.drafter),
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
        Method(name, drafter, _rule(config, drafter), temperature, top_p)
        for name, drafter in self._named
      ]
    settings = Settings(
      max_prompt_tokens=config.max_prompt_tokens,
      max_new_tokens=config.max_new_tokens,
      seed=config.seed,
      sweep_prompts=config.sweep_prompts,
    )
    path = workdir / 'metrics.jsonl'
    meter = cpu_load.Meter()
    lines = runner.compare(self.target, methods, self.tasks, settings, path)
    warning = meter.warning()
    rows = metrics.summarize(lines)
    method, costs = self._costs(rows)
    sections = [
      *tables.draft_length_section(lines),
      *break_even.sentences(rows, costs, method),
      *([warning] if warning else []),
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

  @property
  def _named(self) -> list[tuple[str, Drafter]]:
    """All compared drafters with the names of their methods."""
    name = pathlib.Path(self.config.drafter).name or 'speculative'
    return [*((name, drafter) for drafter in self.drafters), *self.others]

  def _costs(self, rows: list[Row]) -> tuple[str, list[RoundCost]]:
    """Returns the fastest method, and its round costs for each sampling.

    Drafters whose rounds differ are excluded: their costs depend on the text.
    """
    drafters = {
      (name, drafter.tree, depths_of(drafter)): drafter
      for name, drafter in self._named
      if not rounds_differ(drafter)
    }
    key = lambda row: (row.method, row.tree, row.depths)
    best = max(
      (row for row in rows if key(row) in drafters),
      key=lambda row: (row.sequences, row.speedup),
      default=None,
    )
    if best is None:
      return '', []
    drafter = drafters[key(best)]
    return best.method, timing.measure(
      self.target,
      drafter,
      verification.make(_rule(self.config, drafter)),
      [self.config.sampling(t) for t in self.config.temperatures],
      _tokens(self.target, self._first, self.config),
      self.config.max_new_tokens,
      self.config.repeats,
    )


def _tokens(
  target: LanguageModel, prompt: Prompt, config: DecodeConfig
) -> list[int]:
  """Encodes a prompt; a chat template writes bos itself, if it needs one."""
  return target.tokenizer.encode(prompt.text, bos=not config.chat)
