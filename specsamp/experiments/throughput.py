"""A queue of requests through an engine, and in batches that end together."""

import collections
import functools
import itertools
import json
import pathlib
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np
import tqdm

from specsamp.decoding import depth_costs
from specsamp.decoding.engine import Engine
from specsamp.decoding.generate import generate
from specsamp.decoding.request import Request
from specsamp.drafting.adaptive import AdaptiveDrafter, adaptive_drafter
from specsamp.drafting.drafter import Drafter
from specsamp.errors import check_range
from specsamp.evaluation.methods import sampling_name
from specsamp.evaluation.reporting import report, tables
from specsamp.experiments import loading
from specsamp.experiments.config import reading, with_tuples
from specsamp.experiments.soak import Soak
from specsamp.experiments.throughput_config import ThroughputConfig
from specsamp.experiments.throughput_rows import (
  BATCHES,
  ENGINE,
  PLAIN,
  Run,
  render,
  summarize,
)
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import files, progress


class Part(NamedTuple):
  """Requests that are timed together.

  Attributes:
    name: of them.
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


class Text(NamedTuple):
  """One that was decoded.

  Attributes:
    tokens: of the output.
    rounds: that it took.
    drafted: tokens that were drafted, all rounds together.
    accepted: those of them that were accepted.
  """

  tokens: list[int]
  rounds: int
  drafted: int
  accepted: int


# New tokens of each burst or batch, and in the end the text of each request.
Decoding = Generator[int, None, list[Text]]


class Contender(NamedTuple):
  """One way to decode the queue.

  Attributes:
    way: batches that end together, or an engine.
    method: plain, or with which draft.
    drafter: of the method; None is without.
    compile: compiles what decoding any part needs.
    decode: of a part, as far as it is asked for.
  """

  way: str
  method: str
  drafter: Drafter | None
  compile: Callable[[], None]
  decode: Callable[[Part], Decoding]


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
    for each in progress.bar('compiling', contenders, unit='way'):
      each.compile()
    texts = collections.defaultdict(list)  # of the first turn, by way
    runs = collections.defaultdict(list)
    total = sum(sum(part.budgets) for part in self.parts) * len(contenders)
    with (
      (workdir / 'metrics.jsonl').open('w') as file,
      progress.bar(
        'decoding', total=total * self.config.repeats, unit='tok'
      ) as bar,
    ):
      for i in range(self.config.repeats):
        for part in self.parts:
          ended = by_turns([each.decode(part) for each in contenders], bar)
          for each, (taken, own) in zip(contenders, ended, strict=True):
            if not i:
              texts[each.way, each.method] += [text.tokens for text in own]
            counts = np.sum([text[1:] for text in own], axis=0)
            run = Run(taken, *counts.tolist())
            runs[part.name, each.way, each.method].append(run)
            line = dict(part=part.name, way=each.way, method=each.method)
            line |= dict(turn=i, **run._asdict())
            file.write(json.dumps(line) + '\n')
          file.flush()
    tokens = {part.name: sum(part.budgets) for part in self.parts}
    fixed = [
      method
      for method, drafter in self.drafters.items()
      if drafter is not None and not isinstance(drafter, AdaptiveDrafter)
    ]
    rows = summarize(runs, tokens, fixed)
    summary = {
      'runs': [row._asdict() for row in rows],
      'device': report.device(),
      'versions': report.versions(),
    }
    files.replace_json(workdir / 'summary.json', summary)
    costs = [_costs(each) for each in contenders]
    note = ' '.join([self._note(texts), *filter(None, costs)])
    files.replace(
      workdir / 'report.md',
      f'# Throughput of a queue\n\n{render(rows, "github")}\n\n{note}\n\n'
      f'On {report.device()}.\n',
    )
    print(f'{render(rows, "simple")}\n\n{note}')
    print(f'\nReport: {workdir / "report.md"}')

  def _contenders(self) -> list[Contender]:
    config, target = self.config, self.target
    longest = max(
      len(prompt) + budget
      for part in self.parts
      for prompt, budget in zip(part.prompts, part.budgets, strict=True)
    )

    found = []
    for method, drafter in self.drafters.items():
      if isinstance(drafter, AdaptiveDrafter):
        first = functools.partial(self._first, longest)
        drafter = depth_costs.measured(drafter, first)
      if config.batches:
        batches = functools.partial(self._in_batches, drafter)
        compile_all = functools.partial(self._decode_all, batches)
        found.append(Contender(BATCHES, method, drafter, compile_all, batches))
      engine = Engine(
        target,
        slots=config.slots,
        drafter=drafter,
        rounds=config.rounds,
        max_length=longest,
      )
      through = functools.partial(self._through, engine)
      found.append(Contender(ENGINE, method, drafter, engine.compile, through))
    return found

  def _in_batches(self, drafter: Drafter | None, part: Part) -> Decoding:
    size, texts = self.config.slots, []
    for i in range(0, len(part.prompts), size):
      out = generate(
        self.target,
        part.prompts[i : i + size],
        drafter=drafter,
        **self._asked(part, slice(i, i + size)),
      )
      drafted_b = out.num_drafted_per_pos.sum(axis=1)
      accepted_b = out.num_accepted_per_pos.sum(axis=1)
      texts += map(Text, out.tokens, out.rounds, drafted_b, accepted_b)
      yield sum(map(len, out.tokens))
    return texts

  def _through(self, engine: Engine, part: Part) -> Decoding:
    ids = [
      engine.submit(prompt, **self._asked(part, slice(i, i + 1)))
      for i, prompt in enumerate(part.prompts)
    ]
    texts = {}
    while len(texts) < len(ids):
      chunks = engine.step()
      for chunk in chunks:
        if done := chunk.completion:
          rounds, drafted = done.stats.rounds, done.stats.num_drafted_per_pos
          texts[chunk.id] = Text(
            done.tokens, rounds, drafted.sum(), done.num_accepted
          )
          if done.finish_reason == 'nan':
            raise FloatingPointError('the target gave NaN logits')
      yield sum(len(chunk.tokens) for chunk in chunks)
    return [texts[id] for id in ids]

  def _decode_all(self, decode: Callable[[Part], Decoding]) -> None:
    for part in self.parts:
      collections.deque(decode(part), maxlen=0)

  def _asked(self, part: Part, rows: slice) -> dict[str, Any]:
    """Arguments of `generate` or `submit` for these rows of a part."""
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
      self.target, prompts, drafter, sampling=sampling,
      max_new_tokens=self.config.max_new_tokens, seed=self.config.seed,
      stop_tokens=[], max_length=longest,
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
      'turns, prompt passes included, compile time left out. τ: tokens a round '
      'of a text, the bonus token included, before the budget cuts the last '
      'round; drafted: tokens drafted in one.'
    )
    pairs = [
      own
      for (way, method), found in texts.items()
      # What is chosen depends on the texts before, and with it what is drawn.
      if way == BATCHES
      and not isinstance(self.drafters[method], AdaptiveDrafter)
      for own in zip(found, texts[ENGINE, method], strict=True)
    ]
    if not pairs:
      return note
    same = sum(a == b for a, b in pairs)
    return f'{note} Both ways emitted the same text for {same} of {len(pairs)}.'


def _costs(contender: Contender) -> str:
  """What its rounds were timed to cost, if it chooses among them."""
  drafter = contender.drafter
  if contender.way != ENGINE or not isinstance(drafter, AdaptiveDrafter):
    return ''
  listed = lambda values: ', '.join(map(str, values))
  costs = (f'{ms:.2f}' for ms in drafter.ms.tolist())
  return (
    f'A round of {listed(drafter.depths)} drafted tokens was timed at '
    f'{listed(costs)} ms.'
  )


def by_turns(
  decodings: list[Decoding], bar: tqdm.tqdm
) -> list[tuple[float, list[Text]]]:
  """Decodes in all ways at once: seconds and texts of each.

  The next burst is always that of the way that has emitted the least, so that
  a minute in which the machine is slower falls on all of them alike.

  Args:
    decodings: of the same part.
    bar: is told of every token.
  """
  seconds = [0.0] * len(decodings)
  emitted = dict.fromkeys(range(len(decodings)), 0)  # of those under way
  texts = {}
  while emitted:
    i = min(emitted, key=emitted.__getitem__)
    began = time.perf_counter()
    try:
      new = next(decodings[i])
    except StopIteration as ended:
      texts[i] = ended.value
      del emitted[i]
    else:
      emitted[i] += new
      bar.update(new)
    seconds[i] += time.perf_counter() - began
  return [(taken, texts[i]) for i, taken in enumerate(seconds)]


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
  chain = lambda n: models.drafter(config.drafter, n)
  drafters = {f'γ={n}': chain(n) for n in config.draft_lens}
  found = [
    (
      task,
      [each.tokens for each in config.load_prompts(task, models.target)],
    )
    for task in config.prompts
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
  drafters = {PLAIN: None} | drafters
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
  parts = []
  for name, group in itertools.groupby(
    range(len(asked)), key=lambda i: asked[i][0]
  ):
    own = list(group)
    _, prompts, temperatures = zip(*(asked[i] for i in own), strict=True)
    parts.append(
      Part(
        name,
        list(prompts),
        np.asarray(temperatures, np.float32),
        [budgets[i] for i in own],
        config.seed + own[0],
      )
    )
  return parts
