"""The main job: decode with and without a draft, and show what it gains."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

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
from specsamp.evaluation.reporting import draft_lengths, report, tables
from specsamp.evaluation.runner import Settings
from specsamp.evaluation.timing import RoundCost
from specsamp.experiments import loading, terminal
from specsamp.experiments.config import DecodeConfig
from specsamp.experiments.trees import dynamic_tree, token_tree
from specsamp.language_model import LanguageModel
from specsamp.utils import distributed


def prepare(
  values: dict[str, Any],
  prompt: str | None = None,
  prompts_file: str | None = None,
  mesh: Mesh | None = None,
) -> 'Decoding':
  """Loads and checks all that a run needs; writes nothing.

  Args:
    values: a `DecodeConfig` as plain values.
    prompt: the user's own text; '-' reads it from standard input.
    prompts_file: a file of texts, one a line.
    mesh: where to decode; None is one device.

  Raises:
    UserError: a file or value that does not fit.
  """
  config = DecodeConfig.read(values)
  if '-' in (prompt, prompts_file) and jax.process_count() > 1:
    raise UserError('standard input is not that of every process: name a file')
  if prompt is not None and prompts_file is not None:
    raise UserError('give --prompt or --prompts_file, not both')
  found = loading.load(config.target, config.draft, mesh, config.dtype)
  target = found.target
  own = prompt is not None or prompts_file is not None
  if config.chat and not own:
    raise UserError('chat is for your own --prompt or --prompts_file')
  if not own:
    longest = [config.longest_prompt(target)]
  make = lambda shape: found.drafter(
    config.drafter, shape, config.law, config.verifier, config.lookup
  )
  drafter = make(config.draft_len)
  drafters = []
  if config.drafter != loading.NO_DRAFTER:
    most = found.deepest(config.drafter)
    drafters = [make(n) for n in config.draft_lens if n <= most]
  if config.dynamic_tree:
    drafter = make(dynamic_tree(config.dynamic_tree, target))
    drafters.append(drafter)
  if config.branching:
    drafter = make(token_tree(config.branching, target))
    if drafter.tree in [chain.tree for chain in drafters]:
      raise UserError(f'branching {config.branching} is one of draft_lens')
    drafters.append(drafter)
  if config.adaptive:
    drafter = _adaptive(drafters, config)
    drafters.append(drafter)
  others = [
    (name, found.drafter(name, n, lookup=config.lookup))
    for name, n in config.other_drafters
    if not (own or config.drafter or config.verifier)
  ]
  compared = []
  if prompts_file is not None or prompt == '-':
    texts = prompts.read('-' if prompts_file is None else prompts_file)
  elif prompt is not None:
    if not prompt.strip():
      raise UserError(f'--prompt: got {prompt!r}, expected a text')
    texts = [Prompt('prompt', prompt)]
  else:
    compared = config.load_tasks(config.prompts, target)
    texts = compared[0].prompts
  if config.chat:
    texts = [
      Prompt(
        each.name,
        target.tokenizer.chat([{'role': 'user', 'content': each.text}]),
      )
      for each in texts
    ]
  # Before anything is decoded or written: what `generate` would refuse.
  rows = [_tokens(target, text, config) for text in texts] if own else longest
  compared_drafters = [*drafters, *(other for _, other in others)]
  for each in (drafter, *([] if own else compared_drafters)):
    Request.make(
      target,
      rows,
      drafter=each,
      verifier=_rule(config, each),
      max_new_tokens=config.max_new_tokens,
      seed=config.seed,
    )
  return Decoding(config, target, drafter, drafters, others, texts, compared)


def _rule(config: DecodeConfig, drafter: Drafter) -> str:
  """Returns the name of the verifier of a drafter's drafts."""
  if not config.verifier:
    return verification.default_name(drafter.law, drafter.tree)
  if drafter.tree.depth:
    return config.verifier
  return verification.name_without_draft(config.verifier)


def _adaptive(
  drafters: Sequence[Drafter], config: DecodeConfig
) -> AdaptiveDrafter:
  """The tree or the longest chain, as deep as pays.

  Raises:
    UserError: what drafts is not deep enough for any length, or see
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


class Decoding(NamedTuple):
  """A checked run.

  Attributes:
    config: what was asked for.
    target: the target.
    drafter: of the streamed texts.
    drafters: one for each draft length of the comparison.
    others: names and drafters that are compared as well.
    prompts: what to complete.
    tasks: all methods are measured on them; none for a user's own prompts, each
      of which is completed.
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
      workdir: a folder.
      speedup: also times plain decoding of each of the user's prompts; a
        comparison always does.
    """
    if self.config.adaptive:
      self._priced()._run(workdir, speedup)
    else:
      self._run(workdir, speedup)

  def _priced(self) -> 'Decoding':
    """With what a round of each depth costs on this machine."""
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
    return self._replace(
      drafter=adaptive, drafters=[*self.drafters[:-1], adaptive]
    )

  @property
  def _first(self) -> Prompt:
    """Returns the prompt that is shown before a comparison, or the only one."""
    at = self.config.shown[0] if self.tasks else 0
    return _cut(self.prompts[at % len(self.prompts)], self.target, self.config)

  def _run(self, workdir: pathlib.Path, speedup: bool) -> None:
    temperatures = self.config.temperatures
    if self.tasks:
      # Greedily a small model soon repeats itself.
      number, seed = self.config.shown
      print(
        f'Prompt {number} and seed {seed} are chosen to be shown; the tables '
        'are of all prompts.'
      )
      self._show(self._first, seed, temperatures[-1])
      self._compare(workdir)
      return
    meter, lines = cpu_load.Meter(), []
    with distributed.first_opens(workdir / 'metrics.jsonl', 'w') as file:
      for i, prompt in enumerate(self.prompts):
        lines.append(self._show(prompt, i, temperatures[0], speedup))
        file.write(json.dumps(lines[-1]) + '\n')
    if len(lines) > 1:
      print(f'=== {len(lines)} prompts: {terminal.total(lines)}')
    warning = meter.warning()
    if warning:
      print(warning)

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
    methods = []
    for temperature in config.temperatures:
      top_p = config.top_p_at(temperature)
      rule = verification.name_without_draft(config.verifier or 'token')
      methods.append(Method(BASELINE, None, rule, temperature, top_p))
      methods += [
        Method(name, drafter, _rule(self.config, drafter), temperature, top_p)
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
    title = 'Speculative sampling'
    lengths = draft_lengths.section(lines, workdir, report.caption(title))
    gains = break_even.sentences(rows, costs, method)
    sections = [each for each in (lengths, *gains, warning) if each]
    report.write(workdir, title, rows, costs, 'by_draft_length', sections)
    print(tables.table(rows, 'simple'))
    for section in sections:
      print(f'\n{tables.in_style(section, "simple")}')
    if costs:
      print(f'\n{tables.cost_table(costs, "simple")}')
    print(f'\n{tables.note(rows)}')
    print(f'\nReport and plot: {workdir / "report.md"}')

  @property
  def _named(self) -> list[tuple[str, Drafter]]:
    """Returns all compared drafters with their methods' names."""
    name = pathlib.Path(self.config.drafter).name or 'speculative'
    return [*((name, drafter) for drafter in self.drafters), *self.others]

  def _costs(self, rows: list[Row]) -> tuple[str, list[RoundCost]]:
    """Returns the fastest method, and its round costs for each sampling.

    Drafters whose rounds differ are left out: their costs depend on the text.
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
  """A chat template has written bos itself, if it wants one."""
  return target.tokenizer.encode(prompt.text, bos=not config.chat)


def _cut(prompt: Prompt, target: LanguageModel, config: DecodeConfig) -> Prompt:
  """The end of a published prompt that is too long."""
  tokens = _tokens(target, prompt, config)
  if len(tokens) <= config.max_prompt_tokens:
    return prompt
  # Text that is encoded anew may take a token more.
  kept = tokens[-max(config.max_prompt_tokens - 8, 1) :]
  return Prompt(prompt.name, target.tokenizer.decode(kept))
