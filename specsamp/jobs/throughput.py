"""A queue of requests through an engine, and in batches that end together."""

import collections
import functools
import itertools
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from specsamp import files, progress
from specsamp.decoding import depth_costs
from specsamp.decoding.engine import Engine
from specsamp.decoding.generate import generate
from specsamp.decoding.request import Request
from specsamp.drafting.adaptive import AdaptiveDrafter, adaptive_drafter
from specsamp.drafting.drafter import Drafter
from specsamp.errors import check_range
from specsamp.evaluation.methods import sampling_name
from specsamp.evaluation.reporting import report, tables
from specsamp.jobs import loading
from specsamp.jobs.config import reading, with_tuples
from specsamp.jobs.soak import Soak
from specsamp.jobs.throughput_config import ThroughputConfig
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams

_BATCHES, _ENGINE = 'batches', 'engine'
_PLAIN = 'plain'
_OF_EACH = 'the best γ of each part'


class Part(NamedTuple):
  """Requests that are timed together.

  Attributes:
    name: of them; the times of those of one name are added up.
    prompts: tokens of each.
    temperatures: of each.
    budgets: new tokens of each.
    seed: request i draws from it and i.
  """

  name: str
  prompts: list[list[int]]
  temperatures: np.ndarray
  budgets: list[int]
  seed: int


class Contender(NamedTuple):
  """One way to decode the queue.

  Attributes:
    way: batches that end together, or an engine.
    method: plain, or with which draft.
    decode: of a part -> the output tokens of each request.
  """

  way: str
  method: str
  decode: Callable[[Part], list[list[int]]]


class Row(NamedTuple):
  """What it costs.

  Attributes:
    part: of the queue.
    way: as of the `Contender`.
    method: likewise.
    tokens_per_second: the median over the turns.
    over_batches: of the same method, the median of each turn's ratio; None
      where there are none.
    over_plain: the same way without a draft, likewise.
    over_fixed: the same way with the best fixed draft length, likewise.
  """

  part: str
  way: str
  method: str
  tokens_per_second: float
  over_batches: float | None
  over_plain: float
  over_fixed: float


class Throughput(NamedTuple):
  """A checked run.

  Attributes:
    config: what was asked for.
    target: decodes.
    drafters: by the names of their methods; None is without.
    parts: of the queue.
  """

  config: ThroughputConfig
  target: LanguageModel
  drafters: dict[str, Drafter | None]
  parts: list[Part]

  def run(self, workdir: pathlib.Path) -> None:
    """Writes metrics.jsonl, summary.json and report.md into `workdir`."""
    contenders = self._contenders()
    texts: dict[tuple[str, str], list[list[int]]] = {}
    for each in progress.bar('compiling', contenders, unit='queue'):
      own = texts[each.way, each.method] = []
      for part in self.parts:
        own += each.decode(part)
    # Each part by all in turn, so that a machine whose speed drifts is as fast
    # for one as for another.
    turns = [
      (i, part, each)
      for i in range(self.config.repeats)
      for part in self.parts
      for each in contenders
    ]
    seconds = collections.defaultdict(lambda: np.zeros(self.config.repeats))
    with (workdir / 'metrics.jsonl').open('w') as file:
      for i, part, each in progress.bar('decoding', turns, unit='part'):
        began = time.perf_counter()
        each.decode(part)
        taken = time.perf_counter() - began
        key = part.name, each.way, each.method
        seconds[key][i] += taken
        line = dict(zip(('part', 'way', 'method'), key, strict=True))
        file.write(json.dumps(line | dict(turn=i, seconds=taken)) + '\n')
        file.flush()
    counts = collections.Counter()
    for part in self.parts:
      counts[part.name] += sum(part.budgets)
    fixed = [
      method
      for method, drafter in self.drafters.items()
      if drafter is not None and not isinstance(drafter, AdaptiveDrafter)
    ]
    rows = summarize(seconds, counts, fixed)
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
    config, target = self.config, self.target
    longest = max(
      len(prompt) + budget
      for part in self.parts
      for prompt, budget in zip(part.prompts, part.budgets, strict=True)
    )

    def batches(drafter, part):
      size = config.slots
      return [
        text
        for i in range(0, len(part.prompts), size)
        for text in generate(
          target,
          part.prompts[i : i + size],
          drafter=drafter,
          **self._asked(part, slice(i, i + size)),
        ).tokens
      ]

    def through(engine, part):
      found = engine.generate(part.prompts, **self._asked(part, slice(None)))
      return [each.tokens for each in found]

    found = []
    for method, drafter in self.drafters.items():
      if isinstance(drafter, AdaptiveDrafter):
        first = functools.partial(self._first, longest)
        drafter = depth_costs.measured(drafter, first)
      engine = Engine(
        target,
        slots=config.slots,
        drafter=drafter,
        rounds=config.rounds,
        max_length=longest,
      )
      if config.batches:
        found.append(
          Contender(_BATCHES, method, functools.partial(batches, drafter))
        )
      found.append(
        Contender(_ENGINE, method, functools.partial(through, engine))
      )
    return found

  def _asked(self, part: Part, rows: slice) -> dict[str, Any]:
    """Arguments of `generate` for these rows of a part."""
    temperature = part.temperatures[rows]
    top_p = [self.config.top_p_at(each) for each in temperature]
    return dict(
      sampling=SamplingParams(temperature, top_p=np.asarray(top_p, np.float32)),
      max_new_tokens=part.budgets[rows],
      seed=part.seed + (rows.start or 0),
      stop_tokens=[],  # as many tokens whatever decodes
    )

  def _first(self, longest: int, drafter: Drafter) -> Request:
    """A batch with which rounds are timed, of the engine's caches."""
    part, size = self.parts[0], self.config.slots
    prompts = (part.prompts * size)[:size]
    temperature = float(part.temperatures[0])
    sampling = SamplingParams(
      temperature, top_p=self.config.top_p_at(temperature)
    )
    return Request.make(
      self.target, prompts, drafter, 'token', sampling,
      self.config.max_new_tokens, self.config.seed, [], max_length=longest,
    )  # fmt: skip

  def _note(self, texts) -> str:
    config = self.config
    budgets = [budget for part in self.parts for budget in part.budgets]
    samplings = ' and '.join(
      sampling_name(each, config.top_p_at(each)) for each in config.temperatures
    )
    note = (
      f'{tables.count(len(budgets), "request")} of {min(budgets)} to '
      f'{max(budgets)} tokens at {samplings}, {config.slots} at once, by '
      'turns, prompt passes included, compile time left out.'
    )
    pairs = [
      own
      for (way, method), found in texts.items()
      # What is chosen depends on the texts before, and with it what is drawn.
      if way == _BATCHES
      and not isinstance(self.drafters[method], AdaptiveDrafter)
      for own in zip(found, texts[_ENGINE, method], strict=True)
    ]
    if not pairs:
      return note
    same = sum(a == b for a, b in pairs)
    return f'{note} Both ways emitted the same text for {same} of {len(pairs)}.'


def prepare(values: dict[str, Any]) -> Throughput | Soak:
  """Loads and checks all that a run needs; writes nothing.

  Args:
    values: a `ThroughputConfig` as plain values.

  Raises:
    UserError: a file or value that does not fit.
  """
  with reading():
    config = ThroughputConfig(**with_tuples(values))
  models = loading.load(config.target, config.draft, None)
  chain = lambda n: models.drafter(config.drafter, n, 'iid')
  drafters = {f'γ={n}': chain(n) for n in config.draft_lens}
  found = [
    (task, config.load_prompts(task, models.target)) for task in config.prompts
  ]
  if config.soak:
    prompts = [prompt for _, own in found for prompt in own]
    deepest = drafters[f'γ={max(config.draft_lens)}']
    return Soak(config, models.target, deepest, prompts)
  if config.adaptive:
    depths = (0, *sorted(config.draft_lens))
    drafters[f'γ of {", ".join(map(str, depths))}'] = adaptive_drafter(
      chain(depths[-1]), depths, [1.0] * len(depths)
    )
  drafters = {_PLAIN: None} | drafters
  return Throughput(config, models.target, drafters, _parts(config, found))


def _parts(
  config: ThroughputConfig, found: list[tuple[str, list[list[int]]]]
) -> list[Part]:
  """The queue of these tasks' prompts."""
  asked = [
    (f'{task}, {sampling_name(each, config.top_p_at(each))}', prompt, each)
    for task, prompts in found
    for each in config.temperatures
    for prompt in prompts
  ]
  if config.shuffled:
    order = np.random.default_rng(config.seed).permutation(len(asked))
    asked = [('all', *asked[i][1:]) for i in order]
  # A request draws from the seed and its number.
  check_range(config, 'seed', least=0, most=2**31 - len(asked), kind=int)
  budgets = config.budgets(len(asked))
  size = config.piece or len(asked)
  parts = []
  for name, group in itertools.groupby(
    range(len(asked)), key=lambda i: asked[i][0]
  ):
    own = list(group)
    for i in range(0, len(own), size):
      piece = own[i : i + size]
      _, prompts, temperatures = zip(*(asked[i] for i in piece), strict=True)
      parts.append(
        Part(
          name,
          list(prompts),
          np.asarray(temperatures, np.float32),
          [budgets[i] for i in piece],
          config.seed + piece[0],
        )
      )
  return parts


def summarize(
  seconds: Mapping[tuple[str, str, str], Sequence[float]],
  tokens: Mapping[str, int],
  fixed: Sequence[str],
) -> list[Row]:
  """A row for each part, way and method, of which `plain` is one; of several
  parts also for all of it, and for whoever knew the best fixed draft length of
  each: more than that no choice by part can gain.

  Args:
    seconds: of each turn, by part, way and method.
    tokens: of each part.
    fixed: the methods of fixed draft lengths.
  """
  seconds = {key: np.asarray(each) for key, each in seconds.items()}

  def fastest(part, way):
    """Seconds with the best fixed draft length."""
    return min((seconds[part, way, each] for each in fixed), key=np.median)

  if len(tokens) > 1:
    ways = dict.fromkeys(key[1:] for key in seconds)
    whole = {
      ('all', *way): sum(seconds[part, *way] for part in tokens) for way in ways
    }
    if len(fixed) > 1:
      whole |= {
        ('all', way, _OF_EACH): sum(fastest(part, way) for part in tokens)
        for way, _ in ways
      }
    seconds |= whole
    tokens = {**tokens, 'all': sum(tokens.values())}
  rates = {key: tokens[key[0]] / each for key, each in seconds.items()}
  median = lambda values: float(np.median(values))

  return [
    Row(
      part,
      way,
      method,
      median(rate),
      median(rate / rates[part, _BATCHES, method])
      if (part, _BATCHES, method) in rates
      else None,
      median(rate / rates[part, way, _PLAIN]),
      median(rate * fastest(part, way) / tokens[part]),
    )
    for each in tokens
    for (part, way, method), rate in rates.items()
    if part == each
  ]


def _table(rows: list[Row], style: str) -> str:
  cells = [
    {
      'part': row.part,
      'way': row.way,
      'method': row.method,
      'tokens/s': row.tokens_per_second,
      'over batches': row.over_batches,
      'over plain': row.over_plain,
      'over best γ': row.over_fixed,
    }
    for row in rows
  ]
  # What is the same in all rows tells nothing, nor how one draft compares.
  same = [
    name
    for name in ('part', 'way', 'over batches')
    if len({cell[name] for cell in cells}) == 1
  ]
  if len({row.method for row in rows}) < 3:
    same.append('over best γ')
  for cell in cells:
    for name in same:
      del cell[name]
  return tables.render(cells, style)
