"""The same pair in transformers and here: the same prompts, the same lengths.

One prompt at a time, after which both libraries emit the same greedy text, but
for near ties.
"""

import dataclasses
import functools
import importlib.util
import json
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.decoding.arguments import slots
from specsamp.decoding.generate import generate
from specsamp.decoding.request import Request
from specsamp.drafting import model_drafter
from specsamp.errors import UserError, check_scalars
from specsamp.evaluation import tasks
from specsamp.evaluation.methods import sampling_name
from specsamp.evaluation.reporting import report, tables
from specsamp.experiments import loading
from specsamp.experiments.config import PairConfig, reading
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import files, progress

OURS, THEIRS = 'specsamp', 'transformers'

# What transformers drafts if it is not told: up to so many tokens, ending at
# the first of which the draft is less sure.
_THEIR_TOKENS, _THEIR_STOP = 20, 0.4


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformersConfig(PairConfig):
  """What to compare.

  Attributes:
    draft_len: drafted tokens a round, in both libraries.
    temperatures: to compare; sampling is from the whole vocabulary.
    prompts: see `tasks.load`.
  """

  draft_len: int
  temperatures: tuple[float, ...]
  prompts: str

  def __post_init__(self):
    super().__post_init__()
    check_scalars('temperatures', self.temperatures)
    try:
      for temperature in self.temperatures:
        SamplingParams(temperature=temperature).check()
    except ValueError as error:
      raise UserError(str(error)) from None

  @classmethod
  def read(cls, values: dict[str, Any]) -> 'TransformersConfig':
    """The comparison of plain values."""
    with reading():
      temperatures = tuple(values['temperatures'])
      return cls(**values | {'temperatures': temperatures})


class Contender(NamedTuple):
  """One library's way to decode.

  Attributes:
    package: which library's.
    method: plain, or with a draft.
    temperature: of it.
    complete: (prompt's tokens, seed) -> the output tokens.
  """

  package: str
  method: str
  temperature: float
  complete: Callable[[list[int], int], list[int]]


class Line(NamedTuple):
  """A prompt completed: a line of metrics.jsonl."""

  package: str
  method: str
  temperature: float
  prompt: int
  seconds: float
  tokens: list[int]


class Row(NamedTuple):
  """What a library's way to decode costs.

  Attributes:
    temperature: of it.
    package: the library's name.
    method: plain, or with a draft.
    ms_per_token: over all prompts.
    speedup: over the library's own plain decoding.
    ratio: of transformers, how much faster this library is, plainly or with its
      draft; None of this one.
    tokens: of all prompts.
  """

  temperature: float
  package: str
  method: str
  ms_per_token: float
  speedup: float
  ratio: float | None
  tokens: int


class Comparison(NamedTuple):
  """A checked run.

  Attributes:
    config: what was asked for.
    models: target and draft.
    prompts: tokens of each.
  """

  config: TransformersConfig
  models: loading.Models
  prompts: list[list[int]]

  def run(self, workdir: pathlib.Path) -> None:
    """Writes the models for transformers into `workdir`, and what was measured
    as metrics.jsonl, summary.json and report.md."""
    contenders = [
      *_ours(self.config, self.models),
      *_theirs(self.config, self.models, workdir),
    ]
    lines = []
    warm = [(each, i) for i in self._warming() for each in contenders]
    for each, i in progress.bar('compiling', warm, unit='seq'):
      each.complete(self.prompts[i], self.config.seed)
    order = [(i, each) for i in range(len(self.prompts)) for each in contenders]
    with (workdir / 'metrics.jsonl').open('w') as file:
      for i, each in progress.bar('decoding', order, unit='seq'):
        began = time.perf_counter()
        tokens = each.complete(self.prompts[i], self.config.seed + i)
        seconds = time.perf_counter() - began
        line = Line(
          each.package, each.method, each.temperature, i, seconds, tokens
        )
        lines.append(line)
        file.write(json.dumps(line._asdict()) + '\n')
        file.flush()
    rows = summarize(lines)
    summary = {
      'runs': [row._asdict() for row in rows],
      'device': report.device(),
      'versions': report.versions(THEIRS, 'torch'),
    }
    files.replace_json(workdir / 'summary.json', summary)
    note = _note(lines, self.config, self.models.target.config.dtype)
    files.replace(
      workdir / 'report.md',
      f'# specsamp and transformers\n\n{_table(rows, "github")}\n\n{note}\n\n'
      f'On {report.device()}.\n',
    )
    print(f'{_table(rows, "simple")}\n\n{note}')
    print(f'\nReport: {workdir / "report.md"}')

  def _warming(self) -> list[int]:
    """A prompt for every set of programs that the prompts need."""
    sizes = {}
    for i, prompt in enumerate(self.prompts):
      limit = len(prompt) + self.config.max_new_tokens
      sizes.setdefault(slots(self.models.target, len(prompt), limit), i)
    return list(sizes.values())


def check_can_run() -> None:
  """Raises `UserError` where transformers cannot run what runs here."""
  for name in (THEIRS, 'torch'):
    if importlib.util.find_spec(name) is None:
      raise UserError(
        f"{name}: not installed, expected pip install 'specsamp[parity]'"
      )
  if jax.default_backend() not in ('cpu', 'gpu'):
    raise UserError(f'device: got {report.device()}, expected a CPU or a GPU')


def torch_device() -> str:
  """Where torch computes: where jax does."""
  return 'cuda' if jax.default_backend() == 'gpu' else 'cpu'


def prepare(values: dict[str, Any]) -> 'Comparison':
  """Loads and checks all that a run needs; writes nothing.

  Args:
    values: a `TransformersConfig` as plain values.

  Raises:
    UserError: a file or value that does not fit, transformers is not
      installed, or it cannot run what runs here: it wants a draft with all of
      the target's tokens, and a CPU or a GPU.
  """
  config = TransformersConfig.read(values)
  check_can_run()
  models = loading.load(config.target, config.draft, None)
  got, expected = (m.config.num_tokens for m in (models.draft, models.target))
  if got != expected:
    raise UserError(
      f'draft: got {got} tokens, expected the {expected} of the target'
    )
  config.longest_prompt(models.target)
  found = config.load_tasks(config.prompts, models.target)
  prompts = [
    tasks.last(
      tasks.tokens_of(models.target.tokenizer, prompt, (), chat=False),
      config.max_prompt_tokens,
      models.target.tokenizer,
    )
    for task in found
    for prompt in task.prompts
  ]
  Request.make(
    models.target,
    prompts,
    drafter=model_drafter(models.draft, config.draft_len),
    max_new_tokens=config.max_new_tokens,
  )
  return Comparison(config, models, prompts)


def summarize(lines: Sequence[Line]) -> list[Row]:
  """A row for each library and method."""
  groups: dict[tuple, list[Line]] = {}
  for line in lines:
    key = (line.temperature, line.package, line.method)
    groups.setdefault(key, []).append(line)
  tokens = {
    key: sum(len(line.tokens) for line in group)
    for key, group in groups.items()
  }
  cost = {
    key: 1e3 * sum(line.seconds for line in group) / tokens[key]
    for key, group in groups.items()
  }
  ours = {
    (temperature, method == 'plain'): each
    for (temperature, library, method), each in cost.items()
    if library == OURS
  }
  return [
    Row(
      temperature,
      library,
      method,
      each,
      cost[temperature, library, 'plain'] / each,
      each / ours[temperature, method == 'plain']
      if library == THEIRS
      else None,
      tokens[temperature, library, method],
    )
    for (temperature, library, method), each in cost.items()
  ]


def _table(rows: Sequence[Row], style: str) -> str:
  cells = [
    {
      'sampling': sampling_name(row.temperature, top_p=1.0),
      'library': row.package,
      'method': row.method,
      'ms/token': row.ms_per_token,
      'over its plain': row.speedup,
      'specsamp is faster by': row.ratio,
      'tokens': row.tokens,
    }
    for row in sorted(rows, key=lambda row: row.temperature)
  ]
  return tables.render(cells, style)


def _note(lines, config: TransformersConfig, dtype: str) -> str:
  """How many greedy texts are the same in both libraries."""
  outputs: dict[int, list[list[int]]] = {}
  for line in lines:
    if line.temperature == 0:
      outputs.setdefault(line.prompt, []).append(line.tokens)
  same = sum(all(t == texts[0] for t in texts) for texts in outputs.values())
  note = (
    f'{tables.count(config.num_prompts, "prompt")}, one at a time, '
    f'{config.max_new_tokens} tokens after each, prompt pass included, in '
    f'{dtype}, libraries and methods taking turns on each prompt.'
  )
  if outputs:
    note += (
      f' All methods of both emitted the same greedy text after {same} of '
      f'{tables.count(len(outputs), "prompt")}.'
    )
  return note


def _ours(
  config: TransformersConfig, models: loading.Models
) -> list[Contender]:
  drafter = model_drafter(models.draft, config.draft_len)

  def complete(prompt, seed, drafter, temperature):
    return generate(
      models.target,
      [prompt],
      drafter=drafter,
      sampling=SamplingParams(temperature=temperature),
      max_new_tokens=config.max_new_tokens,
      seed=seed,
      stop_tokens=[],
    ).tokens[0]

  return [
    Contender(
      OURS,
      method,
      temperature,
      functools.partial(complete, drafter=used, temperature=temperature),
    )
    for temperature in config.temperatures
    for method, used in (
      ('plain', None),
      (f'speculative, γ={config.draft_len}', drafter),
    )
  ]


def _theirs(
  config: TransformersConfig, models: loading.Models, workdir: pathlib.Path
) -> list[Contender]:
  """transformers' own generation, with both its ways to choose γ."""
  import torch
  import transformers

  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  device = torch_device()

  def load(name):
    model = getattr(models, name)
    huggingface.save(model, workdir / name)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
      workdir / name, dtype=getattr(torch, model.config.dtype)
    )
    # Nothing ends a text, here as there.
    loaded.generation_config.eos_token_id = None
    return loaded.to(device).eval()

  target, draft = load('target'), load('draft')

  def complete(prompt, seed, temperature, draft_len):
    ids = torch.tensor([prompt], device=device)
    options = dict(do_sample=False)
    if temperature:
      options = dict(
        do_sample=True, temperature=temperature, top_k=0, top_p=1.0
      )
    if draft_len is not None:
      options['assistant_model'] = draft
      settings = draft.generation_config
      settings.num_assistant_tokens = draft_len or _THEIR_TOKENS
      settings.num_assistant_tokens_schedule = 'constant'
      settings.assistant_confidence_threshold = 0 if draft_len else _THEIR_STOP
    torch.manual_seed(seed)
    with torch.inference_mode():
      out = target.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=config.max_new_tokens,
        pad_token_id=0,
        **options,
      )
    return out[0, len(prompt) :].tolist()

  return [
    Contender(
      THEIRS,
      method,
      temperature,
      functools.partial(complete, temperature=temperature, draft_len=draft_len),
    )
    for temperature in config.temperatures
    for method, draft_len in (
      ('plain', None),
      (f'assisted, γ={config.draft_len}', config.draft_len),
      ('assisted, its defaults', 0),
    )
  ]
