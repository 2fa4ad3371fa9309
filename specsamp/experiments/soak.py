"""Requests of all kinds through one engine: what is compiled, what is kept."""

import json
import pathlib
import resource
import sys
from typing import NamedTuple

import numpy as np

from specsamp.decoding.completions import Completion
from specsamp.decoding.engine import Engine
from specsamp.drafting.drafter import Drafter
from specsamp.evaluation.reporting import plots, report, tables
from specsamp.experiments.throughput_config import ThroughputConfig
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import compilation_cache, files, progress

_TEMPERATURES = (0.0, 0.5, 1.0, 1.5)
_SAMPLES = (1, 1, 1, 3)
_CANCELLED = 0.05  # of the requests, once they are under way
_PAGES = pathlib.Path('/proc/self/statm')


class Soaked(NamedTuple):
  """What it came to; memory in MB.

  Attributes:
    requests: that ended.
    texts: of them.
    cancelled: texts of these that were.
    tokens: of all texts.
    warm_up: programs that were compiled before the first request.
    compiled: since then.
    memory: when the first request ended.
    after_tenth: when a tenth of them had.
    at_end: when all had.
    most: at any of these moments.
  """

  requests: int
  texts: int
  cancelled: int
  tokens: int
  warm_up: int
  compiled: int
  memory: float
  after_tenth: float
  at_end: float
  most: float


class Soak(NamedTuple):
  """A checked run.

  Attributes:
    config: what was asked for.
    target: decodes.
    drafter: drafts for it.
    prompts: tokens of each.
  """

  config: ThroughputConfig
  target: LanguageModel
  drafter: Drafter
  prompts: list[list[int]]

  def run(self, workdir: pathlib.Path) -> None:
    """Writes metrics.jsonl, summary.json, report.md and soak.png there."""
    config = self.config
    engine = Engine(
      self.target,
      slots=config.slots,
      drafter=self.drafter,
      rounds=config.rounds,
      max_length=config.max_prompt_tokens + config.max_new_tokens,
    )
    with compilation_cache.compilations() as warm_up:
      engine.compile()
    with (
      compilation_cache.compilations() as compiled,
      (workdir / 'metrics.jsonl').open('w') as file,
      progress.bar('decoding', total=config.soak, unit='request') as bar,
    ):
      lines = []
      for texts in _ended(engine, self._requests(), config):
        line = {
          'texts': len(texts),
          'cancelled': sum(t.finish_reason == 'cancelled' for t in texts),
          'tokens': sum(len(text.tokens) for text in texts),
          'compiled': len(compiled),
          'memory': memory_mb(),
        }
        file.write(json.dumps(line) + '\n')
        lines.append(line)
        bar.update()
    self._write(workdir, lines, len(warm_up))

  def _requests(self) -> list[dict]:
    """Arguments of `Engine.submit`, no two alike."""
    config = self.config
    rng = np.random.default_rng(config.seed)
    found = []
    for i in range(config.soak):
      prompt = self.prompts[rng.integers(len(self.prompts))]
      spread = config.spread ** -rng.random()
      temperature = float(rng.choice(_TEMPERATURES))
      found.append(
        dict(
          prompt=prompt[: rng.integers(1, len(prompt) + 1)],
          n=int(rng.choice(_SAMPLES)),
          max_new_tokens=max(1, int(config.max_new_tokens * spread)),
          seed=config.seed + i,
          sampling=SamplingParams(
            temperature, top_p=config.top_p_at(temperature)
          ),
        )
      )
    return found

  def _write(self, workdir, lines, warm_up) -> None:
    memory = [line['memory'] for line in lines]
    total = lambda name: sum(line[name] for line in lines)
    found = Soaked(
      requests=len(lines),
      texts=total('texts'),
      cancelled=total('cancelled'),
      tokens=total('tokens'),
      warm_up=warm_up,
      compiled=lines[-1]['compiled'],
      memory=memory[0],
      after_tenth=memory[len(memory) // 10],
      at_end=memory[-1],
      most=max(memory),
    )
    plots.curves(
      {
        'resident memory (MB)': {'': memory},
        'programs compiled since the warm-up': {
          '': [line['compiled'] for line in lines]
        },
      },
      'requests that have ended',
      workdir / 'soak.png',
    )
    summary = found._asdict() | {
      'device': report.device(),
      'versions': report.versions(),
    }
    files.replace_json(workdir / 'summary.json', summary)
    note = (
      f'{tables.count(found.requests, "request")}, '
      f'{tables.count(found.texts, "text")} ({found.cancelled} cancelled), '
      f'{found.tokens} tokens: {found.compiled} programs compiled since the '
      f'{found.warm_up} of the warm-up.'
    )
    cells = [
      {'resident memory': name, 'MB': value}
      for name, value in (
        ('first request', found.memory),
        ('a tenth of them', found.after_tenth),
        ('all of them', found.at_end),
        ('at most', found.most),
      )
    ]
    table = lambda style: tables.render(cells, style, digits=1)
    files.replace(
      workdir / 'report.md',
      f'# Requests of all kinds through one engine\n\n{note}\n\n'
      f'{table("github")}\n\n![memory](soak.png)\n\nOn {report.device()}.\n',
    )
    print(f'{note}\n\n{table("simple")}')
    print(f'\nReport: {workdir / "report.md"}')


def _ended(engine: Engine, requests: list[dict], config: ThroughputConfig):
  """Yields the texts of each request when the last of them has ended.

  As many requests wait as there are slots; some are cancelled.
  """
  rng = np.random.default_rng(config.seed)
  left = list(reversed(requests))
  under_way: dict[int, list[Completion]] = {}
  num_samples: dict[int, int] = {}
  while left or under_way:
    while left and engine.num_waiting < config.slots:
      request = left.pop()
      id = engine.submit(**request)
      under_way[id], num_samples[id] = [], request['n']
      if rng.random() < _CANCELLED:
        engine.cancel(int(rng.choice(list(under_way))))
    for chunk in engine.step():
      if chunk.completion:
        under_way[chunk.id].append(chunk.completion)
        if len(under_way[chunk.id]) == num_samples[chunk.id]:
          yield under_way.pop(chunk.id)


def memory_mb() -> float:
  """Resident memory of this process; where Linux does not tell, its peak."""
  if _PAGES.exists():
    pages = int(_PAGES.read_text().split()[1])
    return pages * resource.getpagesize() / 2**20
  unit = 1 if sys.platform == 'darwin' else 2**10  # bytes of what it counts
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
