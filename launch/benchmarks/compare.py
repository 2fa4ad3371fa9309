"""Times the decoding of a pair here and in transformers, interleaved.

python launch/benchmarks/compare.py

Plain and speculative decoding by both libraries, greedy and sampled, of the
same prompts to the same lengths, one prompt at a time. Greedy texts are the
same in both, except for near ties. The models are written for transformers into
the workdir. Needs transformers and torch, pip install 'specsamp[parity]'. Three
minutes on 2 CPU cores.
"""

import dataclasses
import functools
import importlib.util
import itertools
import os
import pathlib
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import jax

from specsamp import LanguageModel, SamplingParams, UserError, cli, generate
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.decoding.arguments import slots
from specsamp.decoding.request import Request
from specsamp.drafting import model_drafter
from specsamp.evaluation.methods import sampling_name
from specsamp.evaluation.reporting.report import Report, Table, device
from specsamp.evaluation.reporting.run_log import RunLog
from specsamp.experiments import loading
from specsamp.experiments.config import PairConfig
from specsamp.utils import progress, schema

# Defaults of transformers: it drafts up to this number of tokens, and stops
# after one that the draft gives a lower probability.
_THEIR_TOKENS, _THEIR_CONFIDENCE = 20, 0.4
_WORKDIR = cli.define_workdir('runs/compare')


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareConfig(PairConfig):
  """A pair to decode in both libraries.

  Attributes:
    draft_len: draft tokens a round, in both libraries.
    temperatures: temperatures to compare; sampling is from the whole
      vocabulary.
    prompts: prompts to complete, as in a config of decode.
  """

  draft_len: int = 4
  temperatures: tuple[float, ...] = (0.0, 1.0)
  prompts: str = 'code'

  def __post_init__(self):
    super().__post_init__()
    if not self.temperatures:
      raise ValueError('temperatures: got (), expected at least one')
    for temperature in self.temperatures:
      SamplingParams(temperature).check()


@dataclasses.dataclass(frozen=True)
class Line:
  """A completed prompt, a line of metrics.jsonl."""

  package: str
  method: str
  temperature: float
  prompt: int
  seconds: float
  tokens: list[int]


# (tokens of a prompt, seed, temperature) -> new tokens.
Complete = Callable[[list[int], int, float], list[int]]


def our_methods(
  config: CompareConfig, models: loading.Models
) -> dict[str, Complete]:
  def complete(prompt, seed, temperature, drafter=None):
    out = generate(
      models.target,
      [prompt],
      drafter=drafter,
      sampling=SamplingParams(temperature),
      max_new_tokens=config.max_new_tokens,
      seed=seed,
      stop_tokens=[],
    )
    return out.tokens[0]

  drafter = model_drafter(models.draft, config.draft_len)
  speculative = functools.partial(complete, drafter=drafter)
  return {
    'plain': complete,
    f'speculative, γ={config.draft_len}': speculative,
  }


def their_methods(
  config: CompareConfig, models: loading.Models, workdir: pathlib.Path
) -> dict[str, Complete]:
  """Returns plain decoding, and both ways of transformers to choose γ."""
  import torch
  import transformers

  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  where = 'cuda' if jax.default_backend() == 'gpu' else 'cpu'

  def load(name: str, model: LanguageModel):
    huggingface.save(model, workdir / name)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
      workdir / name, dtype=getattr(torch, model.config.dtype)
    )
    loaded.generation_config.eos_token_id = None  # no token ends a text
    return loaded.to(where).eval()

  target, draft = load('target', models.target), load('draft', models.draft)

  def complete(prompt, seed, temperature, draft_len):
    ids = torch.tensor([prompt], device=where)
    options = dict(do_sample=False)
    if temperature:
      options = dict(
        do_sample=True, temperature=temperature, top_k=0, top_p=1.0
      )
    if draft_len is not None:
      options['assistant_model'] = draft
      draft.generation_config.update(
        num_assistant_tokens=draft_len or _THEIR_TOKENS,
        num_assistant_tokens_schedule='constant',
        assistant_confidence_threshold=0 if draft_len else _THEIR_CONFIDENCE,
      )
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

  lengths = {
    'plain': None,
    f'assisted, γ={config.draft_len}': config.draft_len,
    'assisted, its defaults': 0,
  }
  return {
    method: functools.partial(complete, draft_len=draft_len)
    for method, draft_len in lengths.items()
  }


def summarize(lines: Sequence[Line]) -> list[dict]:
  """Returns a row for each temperature, library and method.

  `speedup` is over the plain decoding of the same library. `ratio` is how much
  faster specsamp is, plainly or with its draft; None for its own rows.
  """
  groups = defaultdict(list)
  for line in lines:
    groups[line.temperature, line.package, line.method].append(line)
  tokens = {k: sum(len(x.tokens) for x in group) for k, group in groups.items()}
  ms = {
    k: 1e3 * sum(x.seconds for x in group) / tokens[k]
    for k, group in groups.items()
  }
  ours = {
    (temperature, method == 'plain'): cost
    for (temperature, package, method), cost in ms.items()
    if package == 'specsamp'
  }
  rows = []
  for (temperature, package, method), cost in ms.items():
    ratio = cost / ours[temperature, method == 'plain']
    rows.append(
      dict(
        temperature=temperature,
        package=package,
        method=method,
        ms_per_token=cost,
        speedup=ms[temperature, package, 'plain'] / cost,
        ratio=None if package == 'specsamp' else ratio,
        tokens=tokens[temperature, package, method],
      )
    )
  return rows


def make_table(rows: Sequence[dict]) -> Table:
  return Table(
    [
      {
        'sampling': sampling_name(row['temperature'], top_p=1.0),
        'library': row['package'],
        'method': row['method'],
        'ms/token': row['ms_per_token'],
        'over its plain': row['speedup'],
        'specsamp is faster by': row['ratio'],
        'tokens': row['tokens'],
      }
      for row in sorted(rows, key=lambda row: row['temperature'])
    ]
  )


def make_note(lines: Sequence[Line], config: CompareConfig, dtype: str) -> str:
  note = (
    f'{config.num_prompts} prompts, one at a time, {config.max_new_tokens} '
    f'tokens after each, prompt pass included, in {dtype}; libraries and '
    'methods are interleaved on each prompt.'
  )
  outputs = defaultdict(list)
  for line in lines:
    if line.temperature == 0:
      outputs[line.prompt].append(line.tokens)
  if outputs:
    same = sum(all(t == texts[0] for t in texts) for texts in outputs.values())
    note += (
      f' All methods of both emitted the same greedy text after {same} of '
      f'{len(outputs)} prompts.'
    )
  return note


def prepare(values: dict) -> tuple[CompareConfig, loading.Models, list]:
  """Returns the config, the models and the prompts' tokens; writes nothing.

  transformers needs a draft with all tokens of the target, and a CPU or a GPU.
  """
  config = schema.read(CompareConfig, values)
  for name in ('transformers', 'torch'):
    if importlib.util.find_spec(name) is None:
      raise UserError(
        f"{name}: not installed, expected pip install 'specsamp[parity]'"
      )
  if jax.default_backend() not in ('cpu', 'gpu'):
    raise UserError(f'device: got {device()}, expected a CPU or a GPU')
  models = config.load_models(None)
  got, expected = (m.config.num_tokens for m in (models.draft, models.target))
  if got != expected:
    raise UserError(
      f'draft: got {got} tokens, expected the {expected} of the target'
    )
  prompts = config.load_prompts(config.prompts, models.target)
  prompts = [prompt.tokens for prompt in prompts]
  drafter = model_drafter(models.draft, config.draft_len)
  Request.make(
    models.target, prompts, drafter, max_new_tokens=config.max_new_tokens
  )
  return config, models, prompts


def main(values):
  config, models, prompts = prepare(values.to_dict())
  workdir = cli.make_workdir(_WORKDIR.value, values, resumes=False)
  packages = {
    'specsamp': our_methods(config, models),
    'transformers': their_methods(config, models, workdir),
  }
  contenders = [
    (package, method, temperature)
    for package, methods in packages.items()
    for temperature in config.temperatures
    for method in methods
  ]

  def run(what, numbers):
    calls = list(itertools.product(numbers, contenders))
    for i, each in progress.bar(what, calls, unit='seq'):
      package, method, temperature = each
      start = time.perf_counter()
      tokens = packages[package][method](
        prompts[i], config.seed + i, temperature
      )
      yield Line(*each, i, time.perf_counter() - start, tokens)

  # One prompt for each set of compiled programs.
  bucket = lambda length: slots(models.target, length)
  warm_up = {
    (bucket(len(prompt)), bucket(len(prompt) + config.max_new_tokens)): i
    for i, prompt in enumerate(prompts)
  }
  list(run('compiling', warm_up.values()))
  log = RunLog(workdir / 'metrics.jsonl')
  for line in run('decoding', range(len(prompts))):
    log.append(line)
  lines = list(log.records.values())
  rows = summarize(lines)
  report = Report(
    'specsamp and transformers', packages=('transformers', 'torch')
  )
  dtype = models.target.config.dtype
  report.add(make_table(rows), make_note(lines, config, dtype))
  report.write(workdir, {'runs': rows})
  report.show(workdir)


if __name__ == '__main__':
  cli.run(main, CompareConfig, '', distributes=False)
