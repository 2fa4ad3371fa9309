"""What decoding a queue of requests costs, way beside way."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specsamp.decoding.state import block_efficiency
from specsamp.evaluation.reporting import tables

BATCHES, ENGINE = 'batches', 'engine'  # ways
PLAIN = 'plain'  # the method without a draft
_OF_EACH = 'the best γ of each part'


class Run(NamedTuple):
  """All texts of a part, once.

  Attributes:
    seconds: that they took.
    rounds: of all texts together.
    drafted: tokens that were drafted.
    accepted: those of them that were accepted.
  """

  seconds: float
  rounds: int
  drafted: int
  accepted: int


class Row(NamedTuple):
  """What it costs.

  Attributes:
    part: of the queue.
    way: as of the `Contender`.
    method: likewise.
    block_efficiency: τ of all turns together, see `state.block_efficiency`.
    drafted_per_round: tokens drafted in one, likewise.
    tokens_per_second: the median over the turns.
    over_batches: of the same method, the median of each turn's ratio; None
      where there are none.
    over_plain: the same way without a draft, likewise.
    over_fixed: the same way with the best fixed draft length, likewise.
  """

  part: str
  way: str
  method: str
  block_efficiency: float
  drafted_per_round: float
  tokens_per_second: float
  over_batches: float | None
  over_plain: float
  over_fixed: float


def summarize(
  runs: Mapping[tuple[str, str, str], Sequence[Run]],
  tokens: Mapping[str, int],
  fixed: Sequence[str],
) -> list[Row]:
  """A row for each part, way and method, of which `plain` is one; of several
  parts also for all of it, and for whoever knew the best fixed draft length of
  each: more than that no choice by part can gain.

  Args:
    runs: of each turn, by part, way and method.
    tokens: of each part.
    fixed: the methods of fixed draft lengths.
  """
  found = {key: np.asarray(each).T for key, each in runs.items()}  # [4, turns]

  def fastest(part, way):
    """With the best fixed draft length."""
    each_way = (found[part, way, each] for each in fixed)
    return min(each_way, key=lambda run: np.median(run[0]))

  if len(tokens) > 1:
    ways = dict.fromkeys(key[1:] for key in found)
    whole = {
      ('all', *way): sum(found[part, *way] for part in tokens) for way in ways
    }
    if len(fixed) > 1:
      whole |= {
        ('all', way, _OF_EACH): sum(fastest(part, way) for part in tokens)
        for way, _ in ways
      }
    found |= whole
    tokens = {**tokens, 'all': sum(tokens.values())}
  median = lambda values: float(np.median(values))

  def row(part, way, method):
    seconds, *counts = found[part, way, method]
    rounds, drafted, accepted = np.sum(counts, axis=1)
    over = lambda other: median(other[0] / seconds)
    in_batches = found.get((part, BATCHES, method))
    return Row(
      part,
      way,
      method,
      float(block_efficiency(accepted, rounds)),
      float(drafted / rounds),
      median(tokens[part] / seconds),
      None if in_batches is None else over(in_batches),
      over(found[part, way, PLAIN]),
      over(fastest(part, way)),
    )

  return [row(*key) for each in tokens for key in found if key[0] == each]


def render(rows: list[Row], style: str) -> str:
  cells = [
    {
      'part': row.part,
      'way': row.way,
      'method': row.method,
      'τ': row.block_efficiency,
      'drafted': row.drafted_per_round,
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
