"""Sends requests of all kinds through one engine; counts programs and memory.

python launch/benchmarks/soak.py

500 requests of the embedded pair with other lengths, temperatures, seeds and
numbers of samples; some are cancelled. Nothing may be compiled after
the warm-up, and the memory of the process must not grow. Needs Linux; two
minutes on 2 CPU cores.
"""

import dataclasses
import pathlib
import resource

import matplotlib.figure
import numpy as np

from specsamp import Engine, SamplingParams, cli
from specsamp.errors import check_range
from specsamp.evaluation.reporting.report import Figure, Report, Table
from specsamp.evaluation.reporting.run_log import RunLog
from specsamp.experiments.config import SampledConfig
from specsamp.utils import compilation_cache, progress, schema

_TEMPERATURES = (0.0, 0.5, 1.0, 1.5)
_SAMPLES = (1, 1, 1, 3)
_SPREAD = 8  # ratio of the longest completion to the shortest one
_CANCELLED = 0.05  # share of the requests that are cancelled in progress
_WORKDIR = cli.define_workdir('runs/soak')


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoakConfig(SampledConfig):
  """Requests to send through one engine.

  Attributes:
    drafter: '' is the draft model, other drafters are as in a config of decode.
    draft_len: draft tokens a round.
    slots: requests that are decoded at once.
    requests: number of requests.
  """

  num_prompts: int = 64
  max_prompt_tokens: int = 64
  top_p: float = 0.95
  drafter: str = ''
  draft_len: int = 4
  slots: int = 8
  requests: int = 500

  def __post_init__(self):
    super().__post_init__()
    check_range(self, 'draft_len', 'slots', 'requests', min=1, kind=int)


def make_requests(config: SoakConfig, prompts: list[list[int]]) -> list[dict]:
  """Returns arguments of `Engine.submit`, which differ in every request."""
  rng = np.random.default_rng(config.seed)
  requests = []
  for i in range(config.requests):
    prompt = prompts[rng.integers(len(prompts))]
    length = config.max_new_tokens * _SPREAD ** -rng.random()
    temperature = float(rng.choice(_TEMPERATURES))
    top_p = config.top_p_at(temperature)
    requests.append(
      dict(
        prompt=prompt[: rng.integers(1, len(prompt) + 1)],
        n=int(rng.choice(_SAMPLES)),
        max_new_tokens=max(1, int(length)),
        seed=config.seed + i,
        sampling=SamplingParams(temperature, top_p=top_p),
      )
    )
  return requests


def serve(engine: Engine, requests: list[dict], config: SoakConfig):
  """Yields the completions of each request when its last one has ended.

  The number of waiting requests is the number of slots.
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
  """Returns the resident memory of this process."""
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[1])
  return pages * resource.getpagesize() / 2**20


def main(values):
  config = schema.read(SoakConfig, values.to_dict())
  models = config.load_models(None)
  prompts = config.load_prompts('code', models.target)
  engine = Engine(
    models.target,
    slots=config.slots,
    drafter=models.drafter(config.drafter, config.draft_len),
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
      line = {
        'texts': len(texts),
        'cancelled': sum(t.finish_reason == 'cancelled' for t in texts),
        'tokens': sum(len(text.tokens) for text in texts),
        'compiled': len(compiled),
        'memory': memory_mb(),
      }
      log.append(line)
      bar.update()

  columns = {name: [row[name] for row in log.records.values()] for name in line}
  curves = {
    'resident memory (MB)': columns['memory'],
    'programs compiled since the warm-up': columns['compiled'],
  }
  figure = matplotlib.figure.Figure(figsize=(7.4, 3.4), layout='constrained')
  panels = figure.subplots(1, len(curves))
  for panel, (title, curve) in zip(panels, curves.items(), strict=True):
    panel.plot(range(1, len(curve) + 1), curve)
    panel.set(title=title, xlabel='finished requests')
    panel.set_ylim(0, 1.1 * max(curve) or 1)
    panel.grid(alpha=0.3)
  figure.savefig(workdir / 'soak.png')

  memory = columns['memory']
  summary = dict(
    requests=len(memory),
    texts=sum(columns['texts']),
    cancelled=sum(columns['cancelled']),
    tokens=sum(columns['tokens']),
    warm_up=len(warm_up),
    compiled=len(compiled),
    memory=memory[0],
    after_tenth=memory[len(memory) // 10],
    at_end=memory[-1],
    most=max(memory),
  )
  rows = [
    {'resident memory': 'after the first request', 'MB': summary['memory']},
    {'resident memory': 'after a tenth', 'MB': summary['after_tenth']},
    {'resident memory': 'after all requests', 'MB': summary['at_end']},
    {'resident memory': 'maximum', 'MB': summary['most']},
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
