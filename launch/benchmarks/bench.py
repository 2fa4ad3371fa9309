"""Times rounds and passes on this device, next to the predictions of a plan.

python launch/benchmarks/bench.py --config=configs/accelerator.py \
  --workdir=runs/bench

The same command resumes an interrupted run. With --graphs it adds the times of
CUDA graphs that hold loops; --transformers=False skips those of transformers.
"""

import os

# Torch's models are placed on the same GPU.
os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')

import dataclasses
import functools
import gc
import importlib.util
import itertools
import pathlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags

from specsamp import SamplingParams, UserError, cli
from specsamp.checkpoints.huggingface import families
from specsamp.decoding.arguments import slots
from specsamp.decoding.request import Request
from specsamp.drafting import TokenTree
from specsamp.errors import check_range
from specsamp.evaluation import methods, metrics, runner, timing
from specsamp.evaluation.reporting.report import Report, Table, device
from specsamp.evaluation.reporting.run_log import RunLog
from specsamp.experiments import random_models
from specsamp.experiments.config import SampledConfig
from specsamp.experiments.methods import MethodConfig, baseline
from specsamp.models import TransformerConfig
from specsamp.planning import gpu, latency, work
from specsamp.planning.latency import Time
from specsamp.utils import schema
from specsamp.verification import SyntheticVerifier

_OURS, _THEIRS = 'specsamp', 'transformers'
_PLAIN = 'plain decoding'
_GRAPH_FLAGS = '--xla_gpu_enable_command_buffer=+WHILE,+CONDITIONAL'
# Passes of transformers after the prompt's that are not timed, in every turn:
# with each new cache torch may compile a pass, try it and record CUDA graphs.
_UNTIMED = 5

_GRAPHS = flags.DEFINE_bool(
  'graphs', False, 'Put loops and branches into CUDA graphs as well.'
)
_TRANSFORMERS = flags.DEFINE_bool(
  'transformers',
  True,
  'Time plain decoding of the shapes by transformers as well; never with '
  '--graphs.',
)
_WORKDIR = cli.define_workdir()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShapeConfig:
  """A model with random weights.

  Attributes:
    name: name in the report.
    shape: shape of the model.
    sizes: tokens of the passes.
    gamma: draft tokens of the EAGLE rounds; 0 times no such rounds.
    tau: tokens per EAGLE round, accepted whatever they are, see
      `verification.SyntheticVerifier`; 1 to gamma + 1.
  """

  name: str
  shape: TransformerConfig
  sizes: tuple[int, ...]
  gamma: int
  tau: float = 1.0

  def __post_init__(self):
    check_range(self, 'gamma', min=0, max=64, kind=int)
    check_range(self, 'tau', min=1, max=self.gamma + 1)
    longest = self.shape.max_length
    if not all(1 <= size <= longest for size in self.sizes):
      raise UserError(f'sizes: got {self.sizes}, expected 1 to {longest}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchConfig(SampledConfig):
  """A pair of trained models, and models with random weights, to time.

  Attributes:
    title: title of the report.
    methods: methods of the pair, each a dict of the keys of
      `experiments.methods.MethodConfig`. The autoregressive baselines are
      added.
    shapes: models with random weights, each a dict of name, shape (a
      `TransformerConfig`), sizes (tokens of the passes), gamma (draft tokens of
      EAGLE; 0 leaves it out) and tau (tokens per round of EAGLE).
    prompt_tokens: tokens before the timing of a shape.
    context: slots of the caches of a shape.
    repeats: turns.
  """

  title: str = 'Rounds and passes on one accelerator'
  methods: tuple[MethodConfig, ...]
  shapes: tuple[ShapeConfig, ...]
  prompt_tokens: int = 128
  context: int = 1024
  repeats: int = 9

  def __post_init__(self):
    super().__post_init__()
    check_range(self, 'prompt_tokens', 'repeats', min=1, kind=int)
    # A token per round, after the first untimed ones.
    smallest = self.prompt_tokens + 1 + _UNTIMED + timing.ROUNDS
    check_range(self, 'context', min=smallest, kind=int)
    for each in self.shapes:
      if self.context > each.shape.max_length:
        raise UserError(
          f'context: got {self.context}, expected at most the '
          f'{each.shape.max_length} positions of {each.name}'
        )


@dataclasses.dataclass(frozen=True)
class Line:
  """A line of results.jsonl: a time, and τ (`tokens`) of rounds."""

  model: str
  program: str
  package: str
  graphs: bool
  device: str
  ms: float
  tokens: float | None

  @property
  def key(self) -> tuple[str, str, str, bool]:
    return self.model, self.program, self.package, self.graphs


class Group(NamedTuple):
  """Programs that are timed together.

  Attributes:
    model: name of the model.
    plans: prediction of each program; None if unknown.
    measure: returns (package, program, ms, τ) of the programs.
    packages: packages that are timed.
  """

  model: str
  plans: Mapping[str, Time | None]
  measure: Callable[[], Iterable[tuple[str, str, float, float | None]]]
  packages: tuple[str, ...] = (_OURS,)


def pair_group(
  config: BenchConfig, topology: gpu.Nodes | None, path: pathlib.Path
) -> Group:
  """Returns the rounds of whole texts of a trained pair, by every method.

  The topology is this device, None if the plan does not know it. An interrupted
  run resumes from the log of the texts at the path.
  """
  models = config.load_models(None)
  target = models.target
  tasks = config.load_tasks('code', target)
  drafting = [method.make(models, config.top_p) for method in config.methods]
  samplings = sorted({method.label.sampling for method in drafting})
  compared = [*map(baseline, samplings), *drafting]
  methods.check(compared)
  for method in compared:
    Request.make(
      target,
      [[0] * config.max_prompt_tokens],
      method.drafter,
      method.verifier,
      sampling=method.sampling_params,
      max_new_tokens=config.max_new_tokens,
    )
  length = config.max_prompt_tokens + config.max_new_tokens
  context = slots(target, length)
  drafts = {
    None: None,
    '': lambda tokens: work.of_pass(
      models.draft.config, shards=1, tokens=tokens, context=context
    ),
    'eagle': lambda tokens: work.eagle_pass(target.config, tokens, context),
  }
  plans = {}
  names = [*[None] * len(samplings), *(m.drafter for m in config.methods)]
  for method, drafter in zip(compared, names, strict=True):
    plans[label_name(method.label)] = None
    if topology and drafter in drafts:
      passes = work.of_round(
        target.config, method.label.tree, drafts[drafter], context
      )
      plans[label_name(method.label)] = latency.predict_all(passes, topology)

  def measure():
    settings = runner.Settings(
      max_prompt_tokens=config.max_prompt_tokens,
      max_new_tokens=config.max_new_tokens,
      seed=config.seed,
    )
    lines = runner.compare(target, compared, tasks, settings, path)
    for row in metrics.overall(lines):
      yield _OURS, label_name(row), row.round_ms, row.block_efficiency

  return Group(config.target or 'pycode', plans, measure)


def label_name(label: methods.Label) -> str:
  draft = f' {label.draft_name}' if label.draft_name else ''
  return f'{label.method}{draft}, {label.sampling_name}'


# Only one of the models is in memory.
random_target = functools.lru_cache(maxsize=1)(random_models.target)


def shape_groups(
  shape: ShapeConfig,
  config: BenchConfig,
  topology: gpu.Nodes | None,
  transformers: bool,
) -> list[Group]:
  """Returns plain decoding, passes and EAGLE's draft of random weights.

  With `transformers` plain decoding by transformers is timed as well.
  """
  context, repeats, seed = config.context, config.repeats, config.seed
  new_tokens = context - config.prompt_tokens
  count = shape.shape.num_tokens, config.prompt_tokens
  prompt = np.random.default_rng(seed).integers(0, *count).tolist()
  draft_step, eagle_round = 'EAGLE draft step', f'EAGLE round γ={shape.gamma}'

  def target():
    return random_target(shape.shape, seed)

  def plan(*passes):
    return topology and latency.predict_all(list(passes), topology)

  def one_pass(tokens):
    return work.of_pass(shape.shape, shards=1, tokens=tokens, context=context)

  def eagle(tokens):
    return work.eagle_pass(shape.shape, tokens, context)

  def measure_plain():
    packages = {_OURS: timing.decoding(target(), prompt, new_tokens)}
    if transformers:
      packages[_THEIRS] = their_decoding(shape.shape, prompt, context)
    times = timing.in_turns(list(packages.values()), repeats)
    for package, ms in zip(packages, times, strict=True):
      yield package, _PLAIN, np.median(ms), None

  def measure_passes():
    sizes = list(shape.sizes)
    args = target(), sizes, prompt, new_tokens, repeats
    for size, ms in timing.pass_times(*args).items():
      yield _OURS, pass_name(size), ms, None

  def measure_eagle():
    (cost,) = timing.measure(
      target(),
      random_models.eagle(target(), shape.gamma, seed + 1),
      SyntheticVerifier(shape.tau),
      [SamplingParams(temperature=0.0)],
      prompt,
      new_tokens,
      repeats,
    )
    yield _OURS, draft_step, cost.draft_ms / shape.gamma, None
    yield _OURS, eagle_round, cost.round_ms, shape.tau

  packages = (_OURS, _THEIRS) if transformers else (_OURS,)
  plain = {_PLAIN: plan(one_pass(1))}
  passes = {pass_name(size): plan(one_pass(size)) for size in shape.sizes}
  groups = [
    Group(shape.name, plain, measure_plain, packages),
    Group(shape.name, passes, measure_passes),
  ]
  if shape.gamma:
    tree = TokenTree.chain(shape.gamma)
    round_passes = work.of_round(shape.shape, tree, eagle, context)
    plans = {draft_step: plan(eagle(1)), eagle_round: plan(*round_passes)}
    groups.append(Group(shape.name, plans, measure_eagle))
  return groups


def pass_name(size: int) -> str:
  return f'pass over {size} token{"s" * (size > 1)}'


def their_decoding(
  config: TransformerConfig, prompt: list[int], context: int
) -> Callable[[], float]:
  """Returns a step for `timing.in_turns` that times transformers' `generate`.

  The step returns milliseconds a token of greedy decoding with a static cache,
  which `generate` compiles on a GPU with torch.compile and CUDA graphs. The
  prompt's pass and `_UNTIMED` passes after it are left out. It is the median of
  the others, because a recording may interrupt any pass.
  """
  import torch
  import transformers

  transformers.logging.set_verbosity_error()
  where = 'cuda' if jax.default_backend() == 'gpu' else 'cpu'
  values = families.write(config)
  del values['architectures']
  shape = transformers.AutoConfig.for_model(values.pop('model_type'), **values)
  with torch.device(where):
    model = transformers.AutoModelForCausalLM.from_config(
      shape, dtype=getattr(torch, config.dtype)
    ).eval()
  ids = torch.tensor([prompt], device=where)
  stamps = []

  def is_done(input_ids, scores, **_):
    # `generate` calls this after each token, and waits for the answer, and so
    # for the GPU, before the next pass: two calls are one pass apart.
    stamps.append(time.perf_counter())
    done = len(stamps) > _UNTIMED + timing.ROUNDS
    return torch.full((len(input_ids),), done, device=input_ids.device)

  def step() -> float:
    stamps.clear()
    model.generate(
      ids,
      attention_mask=torch.ones_like(ids),
      do_sample=False,
      max_new_tokens=context - len(prompt),  # the size of the cache
      cache_implementation='static',
      eos_token_id=None,
      pad_token_id=0,
      stopping_criteria=[is_done],
    )
    return 1e3 * float(np.median(np.diff(stamps[_UNTIMED:])))

  return step


def free_torch() -> None:
  """Frees the memory of torch models that nothing refers to."""
  import torch

  torch.compiler.reset()  # its graphs hold weights
  gc.collect()
  if torch.cuda.is_available():
    torch.cuda.empty_cache()


def make_rows(
  groups: Sequence[Group], lines: Mapping[tuple, Line]
) -> list[dict[str, Any]]:
  """Returns a row for each timed program; None stands for a missing figure."""
  ratio = lambda value, by: value and by and value / by
  rows = []
  for group in groups:
    for program, plan in group.plans.items():
      plain, graphs, theirs = (
        lines.get((group.model, program, *key))
        for key in ((_OURS, False), (_OURS, True), (_THEIRS, False))
      )
      if not (plain or graphs or theirs):
        continue
      ms, tau = plain and plain.ms, (plain or graphs or theirs).tokens
      rows.append(
        {
          'model': group.model,
          'program': program,
          'ms': ms,
          'in graphs ms': graphs and graphs.ms,
          'τ': tau,
          'ms/token': ratio(ms, tau),
          'plan ms': plan and plan.total,
          'ms / plan': ratio(ms, plan and plan.total),
          'bytes ms': plan and plan.memory,
          'ms / bytes': ratio(ms, plan and plan.memory),
          'transformers ms': theirs and theirs.ms,
          'theirs / ours': ratio(theirs and theirs.ms, ms),
        }
      )
  return rows


def make_report(
  title: str, rows: Sequence[Mapping[str, Any]], topology: gpu.Nodes | None
) -> Report:
  has_theirs = any(row['transformers ms'] for row in rows)
  report = Report(title, packages=(_THEIRS, 'torch') * has_theirs)
  report.add(
    Table(rows, digits=3),
    'ms: measured, of a round or a pass; for texts the mean of all rounds, '
    'else the median over turns. τ: tokens per round; that of random weights '
    'is not measured but set, by a verifier that is NOT lossless. in graphs: '
    'loops and branches are in CUDA graphs too.',
    f'plan: prediction of launch/plan.py for {topology.name}, from none of '
    'these times; it assumes the peak of 16 bits for models in float32, which '
    'they do not reach. bytes: weights, and caches with all slots, over the '
    'published bandwidth.'
    if topology
    else f'No plan: {device()} is not in its tables.',
  )
  if has_theirs:
    report.add(
      'transformers: `generate` with a static cache, which it compiles on a '
      'GPU, and other random weights of the same shape, interleaved with ours '
      'unless one has its time of an earlier run. Its time of a turn is the '
      f'median over tokens, ours the mean, without the first {_UNTIMED} passes '
      "after the prompt's, in which it may record CUDA graphs."
    )
  return report


def time_groups(
  groups: Sequence[Group], log: RunLog[Line], graphs: bool
) -> list[str]:
  """Times the programs that are not in the log; returns what failed and why."""
  problems = []
  for group in groups:
    keys = itertools.product([group.model], group.plans, group.packages)
    if all((*key, graphs) in log.records for key in keys):
      continue
    has_theirs = _THEIRS in group.packages
    try:
      for package, program, ms, tokens in group.measure():
        place = package, graphs, device()
        line = Line(group.model, program, *place, float(ms), tokens)
        if line.key not in log.records:
          log.append(line)
          where = f'{group.model}, {program}' + ', loops in graphs' * graphs
          print(f'{package}, {where}: {ms:.3f} ms', flush=True)
    except Exception as error:
      # The compiler of torch may fail in any way.
      if not has_theirs and not isinstance(error, jax.errors.JaxRuntimeError):
        raise
      first = next(iter(str(error).splitlines()), '')
      programs = ', '.join((group.model, *group.plans, *group.packages))
      problems.append(f'{programs}: {type(error).__name__}: {first}')
      print(f'not timed: {problems[-1]}', flush=True)
    if has_theirs:
      free_torch()
  return problems


def time_all(
  title: str,
  groups: Sequence[Group],
  topology: gpu.Nodes | None,
  workdir: pathlib.Path,
  graphs: bool,
) -> None:
  """Writes results.jsonl, report.md and summary.json.

  Raises:
    UserError: a measurement failed; all others were made.
  """
  programs = {(group.model, name) for group in groups for name in group.plans}
  log = RunLog(
    workdir / 'results.jsonl',
    Line,
    lambda line: line.key,
    lambda line: (
      (line.model, line.program) in programs and line.device == device()
    ),
  )
  problems = time_groups(groups, log, graphs)
  rows = make_rows(groups, log.records)
  if rows:
    report = make_report(title, rows, topology)
    report.add(*(f'Not timed: {problem}' for problem in problems))
    names = dict(topology=topology and topology.name, problems=problems)
    report.write(workdir, {'runs': rows} | names)
    report.show(workdir)
  if problems:
    raise UserError(f'not timed: {"; ".join(problems)}')


def main(values):
  graphs = _GRAPHS.value
  if graphs:
    given = os.environ.get('XLA_FLAGS', '')
    os.environ['XLA_FLAGS'] = f'{given} {_GRAPH_FLAGS}'.strip()
  config = schema.read(BenchConfig, values.to_dict())
  transformers = _TRANSFORMERS.value and not graphs
  for name in (_THEIRS, 'torch') if transformers else ():
    if importlib.util.find_spec(name) is None:
      raise UserError(
        f"{name}: not installed, expected pip install 'specsamp[parity]'"
      )
  topology = gpu.of_kind(jax.devices()[0].device_kind)
  # The lines of texts do not name their device.
  suffix = re.sub(r'\W+', '-', device()) + '-graphs' * graphs
  folder = pathlib.Path(_WORKDIR.value)
  groups = [pair_group(config, topology, folder / f'metrics-{suffix}.jsonl')]
  for shape in config.shapes:
    groups += shape_groups(shape, config, topology, transformers)
  workdir = cli.make_workdir(_WORKDIR.value, values)
  time_all(config.title, groups, topology, workdir, graphs)


if __name__ == '__main__':
  cli.run(main, BenchConfig, 'configs/accelerator.py', distributes=False)
