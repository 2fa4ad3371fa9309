"""A queue of requests through an engine, and in batches that end together."""

import json
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from specsamp import files, progress
from specsamp.decoding.engine import Engine
from specsamp.decoding.generate import generate
from specsamp.drafting import model_drafter
from specsamp.evaluation.methods import sampling_name
from specsamp.evaluation.reporting import report, tables
from specsamp.jobs import loading
from specsamp.jobs.config import reading
from specsamp.jobs.soak import Soak
from specsamp.jobs.throughput_config import ThroughputConfig
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams

_BATCHES, _ENGINE = 'batches', 'engine'


class Contender(NamedTuple):
  """One way to decode the queue.

  Attributes:
    way: batches that end together, or an engine.
    method: plain, or with a draft.
    decode: () -> the output tokens of each request.
  """

  way: str
  method: str
  decode: Callable[[], list[list[int]]]


class Row(NamedTuple):
  """What it costs.

  Attributes:
    way: as of the `Contender`.
    method: likewise.
    tokens_per_second: the median over the turns.
    over_batches: of the same method, the median of each turn's ratio.
    over_plain: the same way without a draft, likewise.
  """

  way: str
  method: str
  tokens_per_second: float
  over_batches: float
  over_plain: float


class Throughput(NamedTuple):
  """A checked run.

  Attributes:
    config: what was asked for.
    target: decodes.
    draft: drafts for it.
    prompts: tokens of each.
  """

  config: ThroughputConfig
  target: LanguageModel
  draft: LanguageModel
  prompts: list[list[int]]

  def run(self, workdir: pathlib.Path) -> None:
    """Writes metrics.jsonl, summary.json and report.md into `workdir`."""
    contenders = self._contenders()
    texts = {}
    for each in progress.bar('compiling', contenders, unit='queue'):
      texts[each.way, each.method] = each.decode()
    turns = [(i, c) for i in range(self.config.repeats) for c in contenders]
    seconds: dict[tuple[str, str], list[float]] = {}
    with (workdir / 'metrics.jsonl').open('w') as file:
      for i, each in progress.bar('decoding', turns, unit='queue'):
        began = time.perf_counter()
        each.decode()
        taken = time.perf_counter() - began
        seconds.setdefault((each.way, each.method), []).append(taken)
        line = dict(way=each.way, method=each.method, turn=i, seconds=taken)
        file.write(json.dumps(line) + '\n')
        file.flush()
    counts = {key: sum(map(len, found)) for key, found in texts.items()}
    rows = summarize(seconds, counts)
    summary = {
      'runs': [row._asdict() for row in rows],
      'device': report.device(),
      'versions': report.versions(),
    }
    files.replace_json(workdir / 'summary.json', summary)
    note = self._note(texts)
    files.replace(
      workdir / 'report.md',
      f'# Throughput of a queue\n\n{_table(rows, "github")}\n\n{note}\n\n'
      f'On {report.device()}.\n',
    )
    print(f'{_table(rows, "simple")}\n\n{note}')
    print(f'\nReport: {workdir / "report.md"}')

  def _contenders(self) -> list[Contender]:
    config, target, draft = self.config, self.target, self.draft
    count = len(self.prompts)
    budgets = config.budgets[:count]
    temperature = config.temperature
    args = dict(
      sampling=SamplingParams(temperature, top_p=config.top_p_at(temperature)),
      stop_tokens=[],  # as many tokens both ways
    )
    longest = max(
      len(prompt) + budget
      for prompt, budget in zip(self.prompts, budgets, strict=True)
    )

    def batches(drafter):
      return [
        text
        for i in range(0, count, config.slots)
        for text in generate(
          target,
          self.prompts[i : i + config.slots],
          drafter=drafter,
          max_new_tokens=budgets[i : i + config.slots],
          seed=config.seed + i,
          **args,
        ).tokens
      ]

    def through(engine):
      found = engine.generate(
        self.prompts, max_new_tokens=budgets, seed=config.seed, **args
      )
      return [each.tokens for each in found]

    methods = {
      'plain': None,
      f'speculative, γ={config.draft_len}': model_drafter(
        draft, config.draft_len
      ),
    }
    found = []
    for method, drafter in methods.items():
      engine = Engine(
        target,
        slots=config.slots,
        drafter=drafter,
        rounds=config.rounds,
        max_length=longest,
      )
      found += [
        Contender(_BATCHES, method, lambda d=drafter: batches(d)),
        Contender(_ENGINE, method, lambda e=engine: through(e)),
      ]
    return found

  def _note(self, texts) -> str:
    config = self.config
    methods = {method for _, method in texts}
    same = sum(
      a == b
      for method in methods
      for a, b in zip(
        texts[_BATCHES, method], texts[_ENGINE, method], strict=True
      )
    )
    sampling = sampling_name(config.temperature, config.top_p)
    budgets = config.budgets[: len(self.prompts)]
    return (
      f'{tables.count(len(self.prompts), "request")} of {min(budgets)} to '
      f'{max(budgets)} tokens at {sampling}, {config.slots} at once, by turns, '
      'prompt passes included, compile time left out. Both ways emitted the '
      f'same text for {same} of {len(methods) * len(self.prompts)}.'
    )


def prepare(values: dict[str, Any]) -> Throughput | Soak:
  """Loads and checks all that a run needs; writes nothing.

  Args:
    values: a `ThroughputConfig` as plain values.

  Raises:
    UserError: a file or value that does not fit.
  """
  with reading():
    config = ThroughputConfig(**values)
  models = loading.load(config.target, config.draft, None)
  prompts = config.load_prompts(config.prompts, models.target)
  kind = Soak if config.soak else Throughput
  return kind(config, models.target, models.draft, prompts)


def summarize(
  seconds: dict[tuple[str, str], list[float]],
  tokens: dict[tuple[str, str], int],
) -> list[Row]:
  """A row for each way and method, of which `plain` is one.

  Args:
    seconds: of each turn, by way and method.
    tokens: of the queue, likewise.
  """
  rates = {key: tokens[key] / np.asarray(each) for key, each in seconds.items()}
  median = lambda values: float(np.median(values))
  return [
    Row(
      way,
      method,
      median(rate),
      median(rate / rates[_BATCHES, method]),
      median(rate / rates[way, 'plain']),
    )
    for (way, method), rate in rates.items()
  ]


def _table(rows: list[Row], style: str) -> str:
  cells = [
    {
      'way': row.way,
      'method': row.method,
      'tokens/s': row.tokens_per_second,
      'over batches': row.over_batches,
      'over plain': row.over_plain,
    }
    for row in rows
  ]
  return tables.render(cells, style)
