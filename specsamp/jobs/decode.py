"""The main job: decode with and without a draft, and show what it gains."""

import dataclasses
import json
import pathlib
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from specsamp import verification
from specsamp.data import prompts
from specsamp.data.prompts import Prompt
from specsamp.decoding.request import Request
from specsamp.drafting import Drafter
from specsamp.errors import UserError, check_range
from specsamp.evaluation import metrics, runner, tasks, timing
from specsamp.evaluation.reporting import plots, report
from specsamp.jobs import loading, terminal
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import distributed


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
  """What to decode and how.

  Attributes:
    target: folder of the target; '' is the embedded pair's.
    draft: folder of the draft; '' is the embedded pair's.
    drafter: what drafts, see `loading.Models`; '' is the draft model.
    lookup: of drafters without a model.
    verifier: a name of `specsamp.verification.make`.
    draft_len: of the streamed texts.
    draft_lens: draft lengths to compare; what a trained drafter is not deep
      enough for is left out.
    branching: see `TokenTree.branching`; a tree in place of `draft_len`, and
      one more draft to compare. Empty is none.
    law: how candidates are chosen, see `model_drafter`.
    temperatures: to compare; the first serves a user's prompts.
    top_p: nucleus of the temperatures above 0.
    prompts: what to complete, see `tasks.load`.
    data: folder with the published sets of prompts.
    chat: whether a user's own prompts are turns of a conversation, each put
      in the target's chat template.
    num_prompts: how many.
    sweep_prompts: so many of them are completed with every draft length, the
      others with the fastest one of each temperature.
    max_prompt_tokens: in each of them.
    max_new_tokens: in each completion.
    seed: of all draws; a user's prompt i draws from `seed + i`.
    repeats: how often a round and its parts are timed, for a median.
  """

  target: str
  draft: str
  drafter: str
  lookup: loading.Lookup
  verifier: str
  draft_len: int
  draft_lens: tuple[int, ...]
  branching: tuple[int | tuple[int, ...], ...]
  law: str
  temperatures: tuple[float, ...]
  top_p: float
  prompts: str
  data: str
  chat: bool
  num_prompts: int
  sweep_prompts: int
  max_prompt_tokens: int
  max_new_tokens: int
  seed: int
  repeats: int

  def __post_init__(self):
    runner.check_sizes(self)
    for n in (self.draft_len, *self.draft_lens):
      if type(n) is not int:
        raise UserError(f'draft length: got {n!r}, expected an integer')
    check_range(self, 'sweep_prompts', 'repeats', least=1, kind=int)
    runner.check_scalars('temperatures', self.temperatures)
    for name in ('draft_lens', 'temperatures'):
      values = getattr(self, name)
      if len(set(values)) < len(values):
        raise UserError(f'{name}: got {values}, expected no value twice')
    if not self.draft_lens or not self.temperatures:
      raise UserError('draft_lens and temperatures must name at least one')
    try:
      verification.make(self.verifier)
      for temperature in self.temperatures:
        self.sampling(temperature).check()
    except ValueError as error:
      raise UserError(str(error)) from None

  def sampling(self, temperature: float) -> SamplingParams:
    return SamplingParams(temperature=temperature, top_p=self.top_p)


def defaults(smoke: bool) -> dict[str, Any]:
  """Plain values of a `DecodeConfig`: the embedded pair and its held-out code.

  Args:
    smoke: the smallest size.
  """
  return dict(
    # Folders of models for `specsamp.load`; '' is the embedded pair's.
    target='',
    draft='',
    # What drafts: '' is the draft model; medusa, hydra, eagle, medusa_parallel,
    # eagle_parallel and eagle_parallel_deep were trained on the embedded
    # target, and a folder may hold one of your own; ngram, lookahead (law
    # deterministic, verifier naive) and ngram_or_draft.
    drafter='',
    # n-grams of these lengths, in a row's own text and in a file or folder;
    # guesses a level of lookahead.
    lookup=dict(n_max=3, n_min=1, datastore='', window=7),
    verifier='token',
    # Of the streamed text, a user's own too; then those of the sweep.
    draft_len=4,
    draft_lens=(2, 4) if smoke else (2, 4, 6),
    # A token tree as well: (4, 2, 1) has 4 candidates, 2 after each, ..; in
    # (4, (2, 1)) the first has 2 and the second 1. The verifier must be one for
    # trees, such as multi_candidate.
    branching=(),
    law='iid',  # or without_replacement, deterministic
    temperatures=(0.0, 1.0),
    top_p=0.95,  # of the temperatures above 0
    # code (held-out functions), code_edits, humaneval and the others that
    # README names, or a .json or .jsonl file.
    prompts='code',
    data='../shared/data',  # where the published ones are
    chat=False,  # your own prompts as turns in the target's chat template
    num_prompts=2 if smoke else 30,
    # Completed with every draft length; the others with the fastest.
    sweep_prompts=1 if smoke else 8,
    max_prompt_tokens=96 if smoke else 128,
    max_new_tokens=16 if smoke else 128,
    seed=0,
    repeats=1 if smoke else 11,  # of each timing of a round's parts
  )


def prepare(
  values: dict[str, Any],
  prompt: str | None = None,
  prompts_file: str | None = None,
  mesh: Mesh | None = None,
) -> 'Job':
  """Loads and checks all that a run needs; writes nothing.

  Args:
    values: a `DecodeConfig` as plain values.
    prompt: the user's own text; '-' reads it from standard input.
    prompts_file: a file of texts, one a line.
    mesh: where to decode; None is one device.

  Raises:
    UserError: a file or value that does not fit.
  """
  values = {
    k: tuple(v) if isinstance(v, list | tuple) else v for k, v in values.items()
  }
  try:
    lookup = loading.Lookup(**values.get('lookup', {}))
    config = DecodeConfig(**(values | {'lookup': lookup}))
  except TypeError as error:  # keys of some other kind of config
    raise UserError(f'config: {error}') from None
  if '-' in (prompt, prompts_file) and jax.process_count() > 1:
    raise UserError('standard input is not that of every process: name a file')
  if prompt is not None and prompts_file is not None:
    raise UserError('give --prompt or --prompts_file, not both')
  found = loading.load(config.target, config.draft, mesh)
  target = found.target
  own = prompt is not None or prompts_file is not None
  if config.chat and not own:
    raise UserError('chat is for your own --prompt or --prompts_file')
  if not own:
    longest = [runner.longest_prompt(config, target)]
  coupled = config.verifier == 'gumbel' and config.law == 'deterministic'
  make = lambda shape: found.drafter(
    config.drafter, shape, config.law, coupled, config.lookup
  )
  most = found.deepest(config.drafter)
  drafters = [make(n) for n in config.draft_lens if n <= most]
  drafter = make(config.draft_len)
  if config.branching:
    drafter = make(runner.token_tree(config.branching, target))
    if drafter.tree in [chain.tree for chain in drafters]:
      raise UserError(f'branching {config.branching} is one of draft_lens')
    drafters.append(drafter)
  compared = []
  if prompts_file is not None or prompt == '-':
    texts = prompts.read('-' if prompts_file is None else prompts_file)
  elif prompt is not None:
    if not prompt.strip():
      raise UserError('--prompt is empty')
    texts = [Prompt('prompt', prompt)]
  else:
    compared = tasks.load(
      config.prompts,
      target.tokenizer,
      config.num_prompts,
      config.max_prompt_tokens,
      config.data,
    )
    texts = compared[0].prompts
  if config.chat:
    texts = [
      Prompt(name, target.tokenizer.chat([{'role': 'user', 'content': text}]))
      for name, text in texts
    ]
  # Before anything is decoded or written: what `generate` would refuse.
  rows = [_tokens(target, text, config) for text in texts] if own else longest
  for each in (drafter, *([] if own else drafters)):
    Request.make(
      target,
      rows,
      drafter=each,
      verifier=config.verifier,
      max_new_tokens=config.max_new_tokens,
      seed=config.seed,
    )
  return Job(config, target, drafter, drafters, texts, compared)


class Job(NamedTuple):
  """A checked run.

  Attributes:
    config: what was asked for.
    target: the target.
    drafter: of the streamed texts.
    drafters: one for each draft length of the comparison.
    prompts: what to complete.
    tasks: all methods are measured on them; none for a user's own prompts, each
      of which is completed.
  """

  config: DecodeConfig
  target: LanguageModel
  drafter: Drafter
  drafters: list[Drafter]
  prompts: list[Prompt]
  tasks: list[tasks.Task]

  def run(self, workdir: pathlib.Path) -> None:
    """Streams completions; writes metrics.jsonl, and for a comparison also
    summary.json, report.md and draft_length.png, into `workdir`."""
    if self.tasks:
      first = _cut(self.prompts[0], self.target, self.config)
      self._show(first, 0)
      self._compare(workdir)
      return
    with distributed.first_opens(workdir / 'metrics.jsonl', 'w') as file:
      for i, prompt in enumerate(self.prompts):
        line = self._show(prompt, i)
        file.write(json.dumps(line) + '\n')

  def _show(self, prompt: Prompt, i: int) -> dict[str, Any]:
    return terminal.show(
      self.target,
      self.drafter,
      prompt,
      _tokens(self.target, prompt, self.config),
      verifier=self.config.verifier,
      sampling=self.config.sampling(self.config.temperatures[0]),
      max_new_tokens=self.config.max_new_tokens,
      seed=self.config.seed + i,
    )

  def _compare(self, workdir: pathlib.Path) -> None:
    methods = []
    for temperature in self.config.temperatures:
      top_p = self.config.top_p if temperature else 1.0
      sampling = (self.config.verifier, temperature, top_p)
      methods.append(runner.Method('autoregressive', None, *sampling))
      name = pathlib.Path(self.config.drafter).name or 'speculative'
      methods += [runner.Method(name, d, *sampling) for d in self.drafters]
    lines = runner.compare(
      self.target,
      methods,
      self.tasks,
      max_prompt_tokens=self.config.max_prompt_tokens,
      max_new_tokens=self.config.max_new_tokens,
      seed=self.config.seed,
      path=workdir / 'metrics.jsonl',
      sweep_prompts=self.config.sweep_prompts,
    )
    rows = metrics.summarize(lines)
    costs = self._parts(rows)
    report.write(
      workdir,
      'Speculative sampling',
      rows,
      costs,
      plots.by_draft_length,
      'draft_length.png',
    )
    print(report.table(rows, 'simple'))
    if costs:
      print(f'\n{report.parts_table(costs, "simple")}')
    print(f'\n{report.note(rows)}\n\nReport and plot: {workdir / "report.md"}')

  def _parts(self, rows) -> list[dict[str, Any]]:
    """What a round of the fastest draft length costs, for each sampling.

    Nothing of drafters with rounds without a draft: a round costs what its
    text makes of it.
    """
    best = max(
      (row for row in rows if row['draft_len']),
      key=lambda row: (row['sequences'], row['speedup']),
    )
    drafter = next(
      d for d in self.drafters if runner.tree_name(d.tree) == best['branching']
    )
    if drafter.may_draft_nothing:
      return []
    found = timing.measure(
      self.target,
      drafter,
      verification.make(self.config.verifier),
      [self.config.sampling(t) for t in self.config.temperatures],
      _tokens(
        self.target,
        _cut(self.prompts[0], self.target, self.config),
        self.config,
      ),
      self.config.max_new_tokens,
      self.config.repeats,
    )
    return [
      {'temperature': t, 'top_p': self.config.top_p if t else 1.0} | row
      for t, row in zip(self.config.temperatures, found, strict=True)
    ]


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
