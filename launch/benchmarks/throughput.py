"""Times a queue of requests through an engine and in batches, interleaved.

python launch/benchmarks/throughput.py
python launch/benchmarks/throughput.py --config=configs/throughput.py:mixed

64 requests of 16 to 128 tokens of the embedded pair, eight at once: in batches
of eight that end together, and through an engine, which gives the slot of a
finished text to the next request. Both decode with a draft and without. Four
minutes on 2 CPU cores.
"""

import collections
import dataclasses
import itertools
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tqdm

from specsamp import Engine, SamplingParams, cli, generate, verification
from specsamp.decoding import depth_costs
from specsamp.decoding.request import Request
from specsamp.decoding.state import block_efficiency
from specsamp.drafting import Drafter, adaptive_drafter
from specsamp.drafting.adaptive import AdaptiveDrafter
from specsamp.errors import check_range
from specsamp.evaluation.methods import sampling_name
from specsamp.evaluation.reporting.report import Report, Table
from specsamp.evaluation.reporting.run_log import RunLog
from specsamp.experiments import loading
from specsamp.experiments.config import SampledConfig
from specsamp.language_model import LanguageModel
from specsamp.utils import progress, schema

_PLAIN = 'plain'  # the method without a draft
_WORKDIR = cli.define_workdir('runs/throughput')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThroughputConfig(SampledConfig):
  """A queue of requests, and the ways to decode it.

  Attributes:
    max_new_tokens: new tokens of the longest text.
    drafter: '' is the draft model, other drafters are as in a config of decode.
    verifier: rule that accepts draft tokens, such as synthetic:2.5; '' is the
      default of the drafter.
    draft_lens: draft tokens a round, to compare.
    adaptive: also compare a length that is chosen in each round from 0 and
      these lengths.
    temperatures: temperatures at which every prompt is requested.
    prompts: tasks to complete, as in a config of evaluate.
    shuffled: shuffle the prompts of all tasks and temperatures; else time one
      task and temperature after the other.
    spread: ratio of the longest text to the shortest one.
    slots: requests that are decoded at once.
    batches: also decode the queue in batches that end together.
    repeats: times that the queue is decoded each way.
  """

  num_prompts: int = 64
  max_prompt_tokens: int = 64
  top_p: float = 0.95
  drafter: str = ''
  verifier: str = ''
  draft_lens: tuple[int, ...] = (4,)
  adaptive: bool = False
  temperatures: tuple[float, ...] = (1.0,)
  prompts: tuple[str, ...] = ('code',)
  shuffled: bool = True
  spread: float = 8.0
  slots: int = 8
  batches: bool = True
  repeats: int = 5

  def __post_init__(self):
    super().__post_init__()
    check_range(self, 'slots', 'repeats', min=1, kind=int)
    check_range(self, 'spread', min=1, max=self.max_new_tokens)
    self.check_compared('draft_lens', 'temperatures', 'prompts')
    self.check_temperatures(self.temperatures)
    shortest = min(self.draft_lens)
    if shortest < 1:
      raise ValueError(f'draft_lens: got {shortest}, expected at least 1')

  def sampling_name(self, temperature: float) -> str:
    return sampling_name(temperature, self.top_p_at(temperature))


class QueueRequest(NamedTuple):
  """A request: its prompt's tokens, number of new tokens, and draws."""

  prompt: Sequence[int]
  temperature: float
  new_tokens: int
  seed: int


# Requests that are timed together.
Part = Sequence[QueueRequest]


class Text(NamedTuple):
  """A decoded text, and the counts of its rounds and draft tokens."""

  tokens: list[int]
  rounds: int
  drafted: int
  accepted: int


# Yields the number of new tokens of each burst or batch; returns the texts.
Decoding = Generator[int, None, list[Text]]


@dataclasses.dataclass
class Batches:
  """Decodes requests in batches that end together."""

  way = 'batches'
  config: ThroughputConfig
  target: LanguageModel
  method: str
  drafter: Drafter | None
  max_length: int

  @property
  def is_adaptive(self) -> bool:
    return isinstance(self.drafter, AdaptiveDrafter)

  @property
  def verifier(self) -> str | None:
    return self.config.verifier or None if self.drafter else None

  def options(self, requests: Part) -> dict[str, Any]:
    """Returns arguments of `generate` and `Engine.submit`."""
    temperature = np.asarray([r.temperature for r in requests], np.float32)
    top_p = np.asarray(list(map(self.config.top_p_at, temperature)), np.float32)
    return dict(
      sampling=SamplingParams(temperature, top_p=top_p),
      max_new_tokens=[request.new_tokens for request in requests],
      seed=requests[0].seed,
      stop_tokens=[],  # so that every way emits the same number of tokens
    )

  def measure_depths(self, part: Part) -> None:
    """Times the rounds of each depth of an adaptive drafter."""
    requests = [part[0]._replace(new_tokens=self.config.max_new_tokens)]
    prompts = [request.prompt for request in part] * self.config.slots
    self.drafter = depth_costs.measured(
      self.drafter,
      lambda drafter: Request.make(
        self.target,
        prompts[: self.config.slots],
        drafter,
        self.verifier,
        max_length=self.max_length,
        **self.options(requests * self.config.slots),
      ),
    )

  def compile(self, parts: Sequence[Part]) -> None:
    for part in parts:
      collections.deque(self.decode(part), maxlen=0)

  def decode(self, part: Part) -> Decoding:
    texts = []
    for i in range(0, len(part), self.config.slots):
      requests = part[i : i + self.config.slots]
      prompts = [request.prompt for request in requests]
      options = self.options(requests)
      out = generate(
        self.target,
        prompts,
        drafter=self.drafter,
        verifier=self.verifier,
        **options,
      )
      drafted_b = out.num_drafted_per_pos.sum(axis=1)
      accepted_b = out.num_accepted_per_pos.sum(axis=1)
      texts += map(Text, out.tokens, out.rounds, drafted_b, accepted_b)
      yield sum(map(len, out.tokens))
    return texts


class ThroughEngine(Batches):
  """Decodes requests through an engine, which refills its slots."""

  way = 'engine'

  def compile(self, parts: Sequence[Part]) -> None:
    self.engine = Engine(
      self.target,
      slots=self.config.slots,
      drafter=self.drafter,
      verifier=self.verifier,
      max_length=self.max_length,
    )
    self.engine.compile()

  def decode(self, part: Part) -> Decoding:
    ids = [
      self.engine.submit(request.prompt, **self.options([request]))
      for request in part
    ]
    texts = {}
    while len(texts) < len(ids):
      chunks = self.engine.step()
      for chunk in chunks:
        if done := chunk.completion:
          if done.finish_reason == 'nan':
            raise FloatingPointError('the target gave NaN logits')
          drafted = done.stats.num_drafted_per_pos.sum()
          texts[chunk.id] = Text(
            done.tokens, done.stats.rounds, drafted, done.num_accepted
          )
      yield sum(len(chunk.tokens) for chunk in chunks)
    return [texts[id] for id in ids]


def interleave(
  decodings: list[Decoding], bar: tqdm.tqdm
) -> list[tuple[float, list[Text]]]:
  """Decodes a part in all ways, burst by burst; returns seconds and texts.

  The next burst is that of the way that has emitted the fewest tokens, so that
  a slow minute of the machine affects all ways equally.
  """
  seconds = [0.0] * len(decodings)
  emitted = dict.fromkeys(range(len(decodings)), 0)  # of unfinished ways
  texts = {}
  while emitted:
    i = min(emitted, key=emitted.__getitem__)
    start = time.perf_counter()
    try:
      new = next(decodings[i])
    except StopIteration as end:
      texts[i] = end.value
      del emitted[i]
    else:
      emitted[i] += new
      bar.update(new)
    seconds[i] += time.perf_counter() - start
  return [(taken, texts[i]) for i, taken in enumerate(seconds)]


def summarize(
  runs: Mapping[tuple[str, str, str], Sequence[Sequence[float]]],
  tokens: Mapping[str, int],
  fixed: Sequence[str],
) -> list[dict[str, Any]]:
  """Returns a row for each part, way and method.

  With several parts there are rows of all of them together, also of the best
  fixed draft length of each part: a choice by part cannot gain more. A rate is
  the median over the turns, a ratio of rates the median of each turn's ratio.
  The runs have seconds, rounds, draft tokens and accepted ones of each turn.
  """
  arrays = {key: np.asarray(turns).T for key, turns in runs.items()}

  def fastest(part, way):
    ways = (arrays[part, way, method] for method in fixed)
    return min(ways, key=lambda turns: np.median(turns[0]))

  if len(tokens) > 1:
    totals = collections.defaultdict(int)
    for (_, way, method), turns in arrays.items():
      totals['all', way, method] += turns
    if len(fixed) > 1:
      for way in {way for _, way, _ in arrays}:
        key = 'all', way, 'the best γ of each part'
        totals[key] = sum(fastest(part, way) for part in tokens)
    arrays |= totals
    tokens = {**tokens, 'all': sum(tokens.values())}
  rows = []
  for part, way, method in arrays:
    seconds, *counts = arrays[part, way, method]
    rounds, drafted, accepted = np.sum(counts, axis=1)
    batches = arrays.get((part, Batches.way, method))
    over = lambda other, seconds=seconds: float(np.median(other[0] / seconds))
    rows.append(
      {
        'part': part,
        'way': way,
        'method': method,
        'block_efficiency': float(block_efficiency(accepted, rounds)),
        'drafted_per_round': float(drafted / rounds),
        'tokens_per_second': float(np.median(tokens[part] / seconds)),
        'over_batches': None if batches is None else over(batches),
        'over_plain': over(arrays[part, way, _PLAIN]),
        'over_fixed': over(fastest(part, way)),
      }
    )
  order = list(tokens)
  return sorted(rows, key=lambda row: order.index(row['part']))


def make_table(rows: Sequence[Mapping[str, Any]]) -> Table:
  """Returns the table of the rows, without columns that have one value."""
  headers = dict(
    part='part', way='way', method='method', block_efficiency='τ',
    drafted_per_round='drafted', tokens_per_second='tokens/s',
    over_batches='over batches', over_plain='over plain',
    over_fixed='over best γ',
  )  # fmt: skip
  for name in ('part', 'way', 'over_batches'):
    if len({row[name] for row in rows}) == 1:
      del headers[name]
  if len({row['method'] for row in rows}) < 3:
    del headers['over_fixed']
  return Table(
    [{head: row[name] for name, head in headers.items()} for row in rows]
  )


def make_note(
  config: ThroughputConfig,
  parts: Mapping[str, Part],
  contenders: Sequence[Batches],
  texts: Mapping[tuple[str, str], list[list[int]]],
) -> str:
  """Returns the note below the table.

  `texts` has the tokens by way and method, except of adaptive lengths, whose
  draws depend on the texts before.
  """
  lengths = [request.new_tokens for part in parts.values() for request in part]
  samplings = ' and '.join(map(config.sampling_name, config.temperatures))
  notes = [
    f'{len(lengths)} requests of {min(lengths)} to {max(lengths)} tokens at '
    f'{samplings}, {config.slots} at once, interleaved. Prompt passes are '
    'included, compile time is not. τ: tokens per round, the bonus token '
    'included, before the length cuts the last round; drafted: draft tokens '
    'per round.'
  ]
  if config.verifier and not verification.make(config.verifier).lossless:
    notes.append(f'The verifier {config.verifier} is NOT lossless.')
  if config.batches:
    same = [
      batch == engine
      for (way, method), batches in texts.items()
      for batch, engine in zip(
        batches, texts[ThroughEngine.way, method], strict=True
      )
      if way == Batches.way
    ]
    notes.append(
      f'Both ways emitted the same text for {sum(same)} of {len(same)}.'
    )
  if contenders[-1].is_adaptive:
    drafter = contenders[-1].drafter
    costs = ', '.join(f'{ms:.2f}' for ms in drafter.ms.tolist())
    depths = ', '.join(map(str, drafter.depths))
    notes.append(f'A round of {depths} draft tokens was timed at {costs} ms.')
  return ' '.join(notes)


def make_parts(
  config: ThroughputConfig, target: LanguageModel
) -> dict[str, Part]:
  """Returns the requests by part; a shuffled queue is one part."""
  prompts = []
  for task in config.prompts:
    loaded = config.load_prompts(task, target)
    for temperature in config.temperatures:
      name = f'{task}, {config.sampling_name(temperature)}'
      prompts += [(name, prompt.tokens, temperature) for prompt in loaded]
  count = len(prompts)
  # A request draws from the seed and its number.
  check_range(config, 'seed', min=0, max=2**31 - count, kind=int)
  order = np.random.default_rng(config.seed).permutation(count)
  if config.shuffled:
    prompts = [('all', *prompts[i][1:]) for i in order]
  shortest = config.max_new_tokens / config.spread
  spaced = np.geomspace(shortest, config.max_new_tokens, count)
  lengths = spaced.round().astype(int)[order].tolist()
  parts = collections.defaultdict(list)
  for i, (name, tokens, temperature) in enumerate(prompts):
    parts[name].append(
      QueueRequest(tokens, temperature, lengths[i], config.seed + i)
    )
  return parts


def make_contenders(
  config: ThroughputConfig,
  models: loading.Models,
  parts: Mapping[str, Part],
) -> list[Batches]:
  """Returns all ways to decode the parts."""
  chain = lambda length: models.drafter(
    config.drafter, length, verifier=config.verifier
  )
  drafters = {_PLAIN: None}
  drafters |= {f'γ={length}': chain(length) for length in config.draft_lens}
  if config.adaptive:
    depths = (0, *sorted(config.draft_lens))
    drafters[f'γ of {", ".join(map(str, depths))}'] = adaptive_drafter(
      chain(depths[-1]), depths, [1.0] * len(depths)
    )
  max_length = max(
    len(request.prompt) + request.new_tokens
    for part in parts.values()
    for request in part
  )
  contenders = []
  for method, drafter in drafters.items():
    arguments = config, models.target, method, drafter, max_length
    contenders += [Batches(*arguments)] * config.batches
    contenders.append(ThroughEngine(*arguments))
  return contenders


def main(values):
  config = schema.read(ThroughputConfig, values.to_dict())
  models = config.load_models(None)
  parts = make_parts(config, models.target)
  contenders = make_contenders(config, models, parts)
  workdir = cli.make_workdir(_WORKDIR.value, values, resumes=False)
  for contender in progress.bar('compiling', contenders, unit='way'):
    if contender.is_adaptive:
      contender.measure_depths(next(iter(parts.values())))
    contender.compile(list(parts.values()))

  log = RunLog(workdir / 'metrics.jsonl')
  texts = collections.defaultdict(list)  # of the first turn
  runs = collections.defaultdict(list)
  tokens = {
    name: sum(request.new_tokens for request in part)
    for name, part in parts.items()
  }
  total = sum(tokens.values()) * len(contenders) * config.repeats
  with progress.bar('decoding', total=total, unit='tok') as bar:
    for turn, name in itertools.product(range(config.repeats), parts):
      timed = interleave([each.decode(parts[name]) for each in contenders], bar)
      for contender, (seconds, decoded) in zip(contenders, timed, strict=True):
        way, method = contender.way, contender.method
        if not turn and not contender.is_adaptive:
          texts[way, method] += [text.tokens for text in decoded]
        counts = np.sum([text[1:] for text in decoded], axis=0).tolist()
        runs[name, way, method].append([seconds, *counts])
        line = dict(part=name, way=way, method=method, turn=turn)
        counts = zip(Text._fields[1:], counts, strict=True)
        log.append(line | dict(seconds=seconds) | dict(counts))
  fixed = [f'γ={length}' for length in config.draft_lens]
  rows = summarize(runs, tokens, fixed)
  report = Report('Throughput of a queue')
  report.add(make_table(rows), make_note(config, parts, contenders, texts))
  report.write(workdir, {'runs': rows})
  report.show(workdir)


if __name__ == '__main__':
  cli.run(main, ThroughputConfig, '', distributes=False)
