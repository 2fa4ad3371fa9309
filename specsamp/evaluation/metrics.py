"""Figures of a method, from the lines of single sequences."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specsamp.decoding.state import block_efficiency
from specsamp.evaluation.methods import Json, Label

ALL = 'all tasks'

_RESAMPLES = 2_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line(Label):
  """A prompt answered by a method: a line of metrics.jsonl.

  Attributes:
    task: name of the task.
    prompt: name of the prompt.
    sample: number of the sample of this prompt, from 0.
    seed: seed of the first turn; turn i draws from `seed + i`.
    id: hash of everything that affects the line.
    tokens: emitted tokens of all turns.
    rounds: target passes.
    num_drafted_per_round: draft depth of each round.
    num_drafted_per_pos: [γ], see `Generation`.
    num_accepted_per_pos: [γ], see `Generation`.
    prefill_seconds: time of the prompt passes. A sequence that was decoded in a
      batch has its share of the time of the batch.
    decode_seconds: time of the rounds, shared in the same way.
    output_tokens: tokens of each turn.
    texts: text of each turn.
    cut: for each turn, True if the beginning of its conversation was dropped.
  """

  task: str
  prompt: str
  sample: int
  seed: int
  id: str
  tokens: int
  rounds: int
  num_drafted_per_round: list[int]
  num_drafted_per_pos: list[int]
  num_accepted_per_pos: list[int]
  prefill_seconds: float
  decode_seconds: float
  output_tokens: list[list[int]]
  texts: list[str]
  cut: list[bool]

  @property
  def seconds(self) -> float:
    return self.prefill_seconds + self.decode_seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperFigure:
  """A paper's speedup over autoregressive sampling, and its τ."""

  speedup: float
  tau: float | None = None
  derived: bool = False  # the paper implies the figures

  def __str__(self) -> str:
    tau = '' if self.tau is None else f' / {self.tau:g}'
    return f'{"~" if self.derived else ""}{self.speedup:g}{tau}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row(Label):
  """Figures of a method on a task: a row of a report.

  Times include the prompt pass, except for `round_ms`.

  Attributes:
    sequences: number of lines.
    tokens: emitted tokens of all lines.
    seconds: time of all lines.
    ms_per_token: all milliseconds over all tokens.
    tokens_per_second: all tokens over all seconds.
    block_efficiency: τ, see `state.block_efficiency`.
    acceptance_rate: α, accepted over drafted tokens, where each depth of a tree
      counts as one token; None without a draft.
    acceptance_by_position: share of the rounds that accepted the token drafted
      at each position.
    round_ms: milliseconds of a round, or a row's share of them.
    p50_ms, p90_ms, p99_ms: percentiles of milliseconds per token.
    p50_s, p90_s, p99_s: percentiles of seconds per sequence.
    task: name of the task, or `ALL`.
    speedup: seconds per token of the baseline over those of this method, each
      the total over the same prompts; None without a baseline.
    speedup_95, block_efficiency_95, acceptance_rate_95: 95% intervals from a
      bootstrap over prompts; None for a single prompt.
    scores: mean of each score over the samples of a prompt, then over prompts;
      `pass@k` is `pass_at_k`.
    paper: figures that the paper reports.
  """

  sequences: int
  tokens: int
  seconds: float
  ms_per_token: float
  tokens_per_second: float
  block_efficiency: float
  acceptance_rate: float | None
  acceptance_by_position: list[float | None]
  round_ms: float
  p50_ms: float
  p90_ms: float
  p99_ms: float
  p50_s: float
  p90_s: float
  p99_s: float
  task: str
  speedup: float | None
  speedup_95: list[float] | None
  block_efficiency_95: list[float] | None
  acceptance_rate_95: list[float] | None
  scores: dict[str, float]
  paper: PaperFigure | None = None

  def plain(self) -> dict[str, Json]:
    paper = self.paper and dataclasses.asdict(self.paper)
    return super().plain() | {'paper': paper}


# The scores of answers: id of a line -> name -> score.
Scores = Mapping[str, Mapping[str, float | str]]


def summarize(lines: Sequence[Line], scores: Scores | None = None) -> list[Row]:
  """Returns a row per method, task and sampling, in order of appearance."""
  groups: dict[tuple, list[Line]] = {}
  for line in lines:
    groups.setdefault((line.label, line.task), []).append(line)
  rows = []
  for (label, task), group in groups.items():
    prompts = {line.prompt for line in group}
    baseline = [
      line
      for line in lines
      if line.is_baseline
      and (line.task, line.sampling) == (task, label.sampling)
      and line.prompt in prompts
    ]
    figures = _figures(group)
    speedup = None
    if baseline:
      speedup = _figures(baseline)['ms_per_token'] / figures['ms_per_token']
    row = Row(
      **vars(label),
      **figures,
      task=task,
      speedup=speedup,
      **_intervals(group, baseline),
      scores=_scores(group, scores or {}),
    )
    rows.append(row)
  return rows


def overall(lines: Sequence[Line], scores: Scores | None = None) -> list[Row]:
  """Returns a row per method and sampling, with all tasks taken as one."""
  if len({line.task for line in lines}) == 1:
    return summarize(lines, scores)
  return summarize(
    [
      # Prompts of two tasks may have the same name.
      dataclasses.replace(line, task=ALL, prompt=f'{line.task} {line.prompt}')
      for line in lines
    ]
  )


def baseline_of(row: Row, rows: Sequence[Row]) -> Row:
  """Returns the autoregressive row of the same sampling."""
  (baseline,) = (
    other
    for other in rows
    if other.is_baseline and other.sampling == row.sampling
  )
  return baseline


def _figures(lines: Sequence[Line]) -> dict[str, Any]:
  column = lambda name: np.asarray([getattr(line, name) for line in lines])
  tokens, rounds, seconds = map(column, ('tokens', 'rounds', 'seconds'))
  drafted = column('num_drafted_per_pos').sum(axis=0)
  accepted = column('num_accepted_per_pos').sum(axis=0)
  percentiles = {
    f'p{percent}_{unit}': float(np.percentile(values, percent))
    for unit, values in (('ms', 1e3 * seconds / tokens), ('s', seconds))
    for percent in (50, 90, 99)
  }
  return dict(
    sequences=len(lines),
    tokens=int(tokens.sum()),
    seconds=float(seconds.sum()),
    ms_per_token=float(1e3 * seconds.sum() / tokens.sum()),
    tokens_per_second=float(tokens.sum() / seconds.sum()),
    block_efficiency=float(block_efficiency(accepted.sum(), rounds.sum())),
    acceptance_rate=_ratio(accepted.sum(), drafted.sum()),
    acceptance_by_position=[*map(_ratio, accepted, drafted)],
    round_ms=float(1e3 * column('decode_seconds').sum() / rounds.sum()),
    **percentiles,
  )


def _ratio(part, whole) -> float | None:
  return float(part / whole) if whole else None


def _intervals(
  lines: Sequence[Line], baseline: Sequence[Line]
) -> dict[str, list[float] | None]:
  """Returns the 95% intervals of a row, from a bootstrap over prompts."""
  names = sorted({line.prompt for line in lines})
  place = {name: i for i, name in enumerate(names)}

  def sums(lines):
    """Returns the seconds, tokens, rounds, .. of the prompts, [prompts, 5]."""
    table = np.zeros((len(names), 5))
    for line in lines:
      table[place[line.prompt]] += (
        line.seconds,
        line.tokens,
        line.rounds,
        sum(line.num_accepted_per_pos),
        sum(line.num_drafted_per_pos),
      )
    return table

  rng = np.random.default_rng(0)
  even = np.full(len(names), 1 / len(names))
  draws = rng.multinomial(len(names), even, size=_RESAMPLES)
  seconds, tokens, rounds, accepted, drafted = (draws @ sums(lines)).T
  values = {
    'block_efficiency_95': block_efficiency(accepted, rounds),
    'acceptance_rate_95': accepted / drafted if drafted.all() else None,
    'speedup_95': None,
  }
  if baseline:
    base = (draws @ sums(baseline)).T
    values['speedup_95'] = base[0] / base[1] / (seconds / tokens)
  return {
    name: np.percentile(v, [2.5, 97.5]).tolist()
    if v is not None and len(names) > 1
    else None
    for name, v in values.items()
  }


def _scores(lines: Sequence[Line], scores: Scores) -> dict[str, float]:
  """Returns the means of the scores over samples, then over prompts."""
  samples = defaultdict(lambda: defaultdict(list))  # of each score and prompt
  for line in lines:
    for name, value in scores.get(line.id, {}).items():
      if isinstance(value, float):
        samples[name][line.prompt].append(value)
  means = {}
  for name, by_prompt in samples.items():
    prompts = by_prompt.values()
    means[name] = float(np.mean([*map(np.mean, prompts)]))
    for k in (10, 100) if name == 'pass@1' else ():
      if k <= min(map(len, prompts)):
        rates = [pass_at_k(len(v), int(sum(v)), k) for v in prompts]
        means[f'pass@{k}'] = float(np.mean(rates))
  return means


def pass_at_k(samples: int, passed: int, k: int) -> float:
  """Returns the chance that one of k samples passes.

  The estimate is 1 - C(n - c, k) / C(n, k), where c of n samples of a problem
  passed: the unbiased estimate of Chen et al. 2107.03374, section 2.1.
  """
  return 1 - math.comb(samples - passed, k) / math.comb(samples, k)
