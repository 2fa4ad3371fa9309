"""The main job: decode with and without a draft, and show what it gains."""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from specsamp import verification, zoo
from specsamp.checkpoints import model_dir
from specsamp.data import corpora, prompts
from specsamp.data.prompts import Prompt
from specsamp.decoding import stream
from specsamp.drafting.language_model import language_model
from specsamp.errors import UserError
from specsamp.evaluation import metrics, report, runner
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams

_GREEN, _PLAIN = '\x1b[32m', '\x1b[0m'


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
  """What to decode and how.

  Attributes:
    target: folder of the target; '' is the embedded pair's.
    draft: folder of the draft; '' is the embedded pair's.
    verifier: a name of `specsamp.verification.make`.
    draft_lens: draft lengths to compare; the first serves a user's prompts.
    temperatures: to compare; likewise.
    top_p: nucleus of the temperatures above 0.
    num_prompts: held-out functions to complete.
    max_prompt_tokens: in each of them.
    max_new_tokens: in each completion.
    seed: prompt i draws from `seed + i`.
  """

  target: str
  draft: str
  verifier: str
  draft_lens: tuple[int, ...]
  temperatures: tuple[float, ...]
  top_p: float
  num_prompts: int
  max_prompt_tokens: int
  max_new_tokens: int
  seed: int

  def __post_init__(self):
    for name in ('num_prompts', 'max_prompt_tokens', 'max_new_tokens'):
      if getattr(self, name) < 1:
        raise UserError(
          f'{name}: got {getattr(self, name)}, expected at least 1'
        )
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


def from_dict(values: dict[str, Any]) -> DecodeConfig:
  """The config of plain values, lists made tuples."""
  values = {
    k: tuple(v) if isinstance(v, list | tuple) else v for k, v in values.items()
  }
  return DecodeConfig(**values)


def run(
  config: DecodeConfig,
  workdir: pathlib.Path,
  prompt: str | None = None,
  prompts_file: str | None = None,
) -> None:
  """Streams one completion and compares methods, or serves a user's prompts.

  Writes metrics.jsonl, and for a comparison summary.json, report.md and
  draft_length.png, into `workdir`.

  Raises:
    UserError: files or values that don't fit.
  """
  if prompt is not None and prompts_file is not None:
    raise UserError('give --prompt or --prompts_file, not both')
  target, draft = load_models(config.target, config.draft)
  drafters = [language_model(draft, n) for n in config.draft_lens]
  for drafter in drafters:
    drafter.check(target)
  if prompt is not None or prompts_file is not None:
    if prompt == '-' or prompts_file is not None:
      texts = prompts.read(prompts_file or '-')
    else:
      texts = [Prompt('prompt', prompt)]
    with (workdir / 'metrics.jsonl').open('w') as file:
      for text in texts:
        line = show(target, drafters[0], text, config)
        file.write(json.dumps(line) + '\n')
    return

  _, held_out = corpora.split(corpora.python_library())
  texts = prompts.functions(
    held_out, target.tokenizer, config.num_prompts, config.max_prompt_tokens
  )
  show(target, drafters[0], texts[0], config)
  methods = []
  for temperature in config.temperatures:
    law = (config.verifier, temperature, config.top_p if temperature else 1.0)
    methods.append(runner.Method('autoregressive', None, *law))
    methods += [runner.Method('speculative', d, *law) for d in drafters]
  lines = runner.compare(
    target,
    methods,
    texts,
    max_new_tokens=config.max_new_tokens,
    seed=config.seed,
    path=workdir / 'metrics.jsonl',
    task='held-out Python functions',
  )
  rows = metrics.summarize(lines)
  report.write(workdir, 'Speculative sampling', rows)
  print(report.table(rows, 'simple'))
  print(f'\nα, τ and all else: {workdir}/report.md')


def load_models(target: str, draft: str) -> tuple[LanguageModel, LanguageModel]:
  """Models of these folders, or the embedded ones where a name is empty."""
  pair = None if target and draft else zoo.load('pycode')
  return (
    model_dir.load(target) if target else pair.target,
    model_dir.load(draft) if draft else pair.draft,
  )


def show(
  target: LanguageModel, drafter, prompt: Prompt, config: DecodeConfig
) -> dict[str, Any]:
  """Streams one completion to standard output, accepted tokens marked.

  Returns:
    A line for metrics.jsonl.
  """
  color = sys.stdout.isatty()
  before, after = (_GREEN, _PLAIN) if color else ('«', '»')
  mark = 'green' if color else f'{before}between marks{after}'
  print(f'--- {prompt.name}; accepted draft tokens are {mark}')
  print(prompt.text, end='', flush=True)
  said, accepted, rounds = [], 0, 0
  decode = _Incremental(target)
  for step in stream(
    target,
    prompt.text,
    drafter=drafter,
    verifier=config.verifier,
    sampling=config.sampling(config.temperatures[0]),
    max_new_tokens=config.max_new_tokens,
    seed=config.seed,
  ):
    tokens, kept = step.tokens[0], step.num_accepted[0]
    drafted = decode(tokens[:kept])
    if drafted:
      print(f'{before}{drafted}{after}', end='')
    print(decode(tokens[kept:]), end='', flush=True)
    said += tokens
    accepted += kept
    rounds += 1
  print(
    f'\n--- {len(said)} tokens in {rounds} passes of the target: '
    f'{len(said) / max(rounds, 1):.2f} a pass, {accepted} of them drafted'
  )
  return {
    'prompt': prompt.text,
    'text': target.tokenizer.decode(_without_stop(said, target)),
    'tokens': len(said),
    'rounds': rounds,
    'accepted': accepted,
    'temperature': config.temperatures[0],
    'draft_len': drafter.tree.depth,
    'seed': config.seed,
  }


def _without_stop(tokens: Sequence[int], target: LanguageModel):
  return [t for t in tokens if t != target.tokenizer.eos_id]


class _Incremental:
  """Text of tokens that come bit by bit; half a character waits."""

  def __init__(self, model: LanguageModel):
    self._model = model
    self._pending: list[int] = []

  def __call__(self, tokens: Sequence[int]) -> str:
    self._pending += _without_stop(tokens, self._model)
    text = self._model.tokenizer.decode(self._pending)
    if text.endswith('\N{REPLACEMENT CHARACTER}') and len(self._pending) < 4:
      return ''
    self._pending = []
    return text
