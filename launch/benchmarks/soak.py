"""Sends requests of all kinds through one engine; counts programs and memory.

python launch/benchmarks/soak.py

500 requests of the embedded pair with other lengths, temperatures, seeds and
numbers of samples, some of which are cancelled. Nothing may be compiled after
the warm-up, and the memory of the process must not grow. Two minutes on 2 CPU
cores.
"""

import dataclasses
import pathlib
import resource
import sys

import matplotlib.figure
import numpy as np

from specsamp import Engine, SamplingParams, cli
from specsamp.errors import check_range
from specsamp.evaluation.reporting.report import Figure, Report, Table
from specsamp.evaluation.reporting.run_log import RunLog
from specsamp.experiments import loading
from specsamp.experiments.config import SampledConfig
from specsamp.utils import compilation_cache, progress, schema

_TEMPERATURES = (0.0, 0.5, 1.0, 1.5)
_SAMPLES = (1, 1, 1, 3)
_CANCELLED = 0.05  # share of the requests that are cancelled in progress
_PAGES = pathlib.Path('/proc/self/statm')
_WORKDIR = cli.define_workdir('runs/soak')


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoakConfig(SampledConfig):
  """Requests to send through one engine.

  Attributes:
    drafter: '' is the draft model, other drafters are as in a config of decode.
    draft_len: draft tokens a round.
    prompts: task to complete, as in a config of decode.
    spread: ratio of the longest text to the shortest one.
    slots: requests that are decoded at once.
    rounds: upper bound on the rounds of a burst.
    requests: number of requests.
  """

  num_prompts: int = 64
  max_prompt_tokens: int = 64
  top_p: float = 0.95
  drafter: str = ''
  draft_len: int = 4
  prompts: str = 'code'
  spread: float = 8.0
  slots: int = 8
  rounds: int = 16
  requests: int = 500

  def __post_init__(self):
    super().__post_init__()
    check_range(self, 'draft_len', 'slots', 'rounds', min=1, kind=int)
    check_range(self, 'requests', min=1, kind=int)
    check_range(self, 'spread', min=1, max=self.max_new_tokens)


def make_requests(config: SoakConfig, prompts: list[list[int]]) -> list[dict]:
  """Returns arguments of `Engine.submit`, which differ in every request."""
  rng = np.random.default_rng(config.seed)
  requests = []
  for i in range(config.requests):
    prompt = prompts[rng.integers(len(prompts))]
    spread = config.spread ** -rng.random()
    temperature = float(rng.choice(_TEMPERATURES))
    top_p = config.top_p_at(temperature)
    requests.append(
      dict(
        prompt=prompt[: rng.integers(1, len(prompt) + 1)],
        n=int(rng.choice(_SAMPLES)),
        max_new_tokens=max(1, int(config.max_new_tokens * spread)),
        seed=config.seed + i,
        sampling=SamplingParams(temperature, top_p=top_p),
      )
    )
  return requests


def serve(engine: Engine, requests: list[dict], config: SoakConfig):
  """Yields the completions of each request when its last one has ended.

  As many requests wait as there are slots.
  """
  rng = np.random.default_rng(config.seed)
  waiting = list(reversed(requests))
  completions, num_samples = {}, {}  # of the requests in progress, by id
  while waiting or completions:
    while waiting and engine.num_waiting < config.slots:
      request = waiting.pop()
      id = engine.submit(**request)
      completions[id], num_samples[id] = [], request['n']
      if rng.random() < _CANCELLED:
        engine.cancel(int(rng.choice(list(completions))))
    for chunk in engine.step():
      if chunk.completion:
        completions[chunk.id].append(chunk.completion)
        if len(completions[chunk.id]) == num_samples[chunk.id]:
          yield completions.pop(chunk.id)


def memory_mb() -> float:
  """Returns the resident memory of this process; its peak outside of Linux."""
  if _PAGES.exists():
    pages = int(_PAGES.read_text().split()[1])
    return pages * resource.getpagesize() / 2**20
  unit = 1 if sys.platform == 'darwin' else 2**10  # bytes per unit of ru_maxrss
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def plot(memory: list[float], compiled: list[int], path: pathlib.Path) -> None:
  figure = matplotlib.figure.Figure(figsize=(7.4, 3.4), layout='constrained')
  curves = {'resident memory (MB)': memory}
  curves['programs compiled since the warm-up'] = compiled
  for axes, (title, values) in zip(
    figure.subplots(1, 2), curves.items(), strict=True
  ):
    axes.plot(range(1, len(values) + 1), values)
    axes.set(title=title, xlabel='finished requests')
    axes.set_ylim(0, 1.1 * max(values) or 1)
    axes.grid(alpha=0.3)
  figure.savefig(path)


def main(values):
  config = schema.read(SoakConfig, values.to_dict())
  models = loading.load(config.target, config.draft, None)
  prompts = config.load_prompts(config.prompts, models.target)
  engine = Engine(
    models.target,
    slots=config.slots,
    drafter=models.drafter(config.drafter, config.draft_len),
    rounds=config.rounds,
    max_length=config.max_prompt_tokens + config.max_new_tokens,
  )
  requests = make_requests(config, [prompt.tokens for prompt in prompts])
  workdir = cli.make_workdir(_WORKDIR.value, values, resumes=False)

  with compilation_cache.compilations() as warm_up:
    engine.compile()
  log = RunLog(workdir / 'metrics.jsonl')
  with (
    compilation_cache.compilations() as compiled,
    progress.bar('decoding', total=config.requests, unit='request') as bar,
  ):
    for texts in serve(engine, requests, config):
      log.append(
        {
          'texts': len(texts),
          'cancelled': sum(t.finish_reason == 'cancelled' for t in texts),
          'tokens': sum(len(text.tokens) for text in texts),
          'compiled': len(compiled),
          'memory': memory_mb(),
        }
      )
      bar.update()

  lines = list(log.records.values())
  column = lambda name: [line[name] for line in lines]
  memory, compiled = column('memory'), column('compiled')
  plot(memory, compiled, workdir / 'soak.png')
  summary = dict(
    requests=len(lines),
    texts=sum(column('texts')),
    cancelled=sum(column('cancelled')),
    tokens=sum(column('tokens')),
    warm_up=len(warm_up),
    compiled=compiled[-1],
    memory=memory[0],
    after_tenth=memory[len(memory) // 10],
    at_end=memory[-1],
    most=max(memory),
  )
  rows = [
    {'resident memory': 'after the first request', 'MB': memory[0]},
    {'resident memory': 'after a tenth', 'MB': summary['after_tenth']},
    {'resident memory': 'after all requests', 'MB': memory[-1]},
    {'resident memory': 'maximum', 'MB': max(memory)},
  ]
  report = Report('Requests of all kinds through one engine')
  report.add(
    '{requests} requests, {texts} texts ({cancelled} cancelled), {tokens} '
    'tokens: {compiled} programs compiled since the {warm_up} of the '
    'warm-up.'.format(**summary),
    Table(rows, digits=1),
    Figure('soak.png'),
  )
  report.write(workdir, summary)
  report.show(workdir)


if __name__ == '__main__':
  cli.run(main, SoakConfig, '', distributes=False)
