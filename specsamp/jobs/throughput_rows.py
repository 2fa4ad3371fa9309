"""What decoding a queue of requests costs, way beside way."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specsamp.evaluation.reporting import tables

BATCHES, ENGINE = 'batches', 'engine'  # ways
PLAIN = 'plain'  # the method without a draft
_OF_EACH = 'the best γ of each part'


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
      median(rate / rates[part, BATCHES, method])
      if (part, BATCHES, method) in rates
      else None,
      median(rate / rates[part, way, PLAIN]),
      median(rate * fastest(part, way) / tokens[part]),
    )
    for each in tokens
    for (part, way, method), rate in rates.items()
    if part == each
  ]


def render(rows: list[Row], style: str) -> str:
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
