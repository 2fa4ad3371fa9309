"""Sections of a report that set a comparison next to a paper's figures."""

from collections.abc import Sequence

from specsamp.evaluation.metrics import Row, baseline_of
from specsamp.evaluation.reporting import tables
from specsamp.evaluation.reporting.report import Part, Table
from specsamp.evaluation.timing import RoundCost


def alternatives(rows: Sequence[Row]) -> list[list[Row]]:
  """Groups the drafting rows by sampling and name."""
  groups: dict[tuple, list[Row]] = {}
  for row in rows:
    if row.tree.depth:
      groups.setdefault((row.sampling, row.method), []).append(row)
  return list(groups.values())


def break_even(
  chain: Row, tree: Row, chain_cost: RoundCost, tree_cost: RoundCost
) -> str:
  """Returns text with the pass cost below which a tree beats a chain."""
  gain = tree.block_efficiency / chain.block_efficiency
  rest = tree_cost.round_ms - tree_cost.score_ms
  allowed = gain * chain_cost.round_ms - rest
  text = (
    f'{tree.sampling_name}: {tree.draft_name} ({tree.method_name}) emits '
    f'{gain:.2f} times the tokens of {chain.draft_name} per round. Its pass '
    f'over {tree.tree.size} nodes takes {tree_cost.score_ms:.2f} ms, '
    f'{tree_cost.score_ms / chain_cost.score_ms:.2f} times the '
    f'{chain_cost.score_ms:.2f} ms over {chain.tree.size}, and the rest of its '
    f'round {rest:.2f} ms. '
  )
  if allowed <= 0:
    return f'{text}That rest alone costs more than it gains.'
  return (
    f'{text}It is faster if its pass takes less than {allowed:.2f} ms, '
    f"{allowed / chain_cost.score_ms:.2f} times the chain's."
  )


def at_paper_cost(
  rows: Sequence[Row], costs: Sequence[tuple[Row, RoundCost | None]]
) -> list[Part]:
  """Returns the parts of rounds, and the speedup at the paper's round cost.

  A round in a paper costs τ over speedup, in steps of the target alone. On
  another machine costs differ and τ does not. Costs are None if rounds differ.
  """
  cells = []
  for row, cost in costs:
    cell = tables.heads(row) | {
      'draft ms': cost and cost.draft_ms,
      'score ms': cost and cost.score_ms,
      'τ': row.block_efficiency,
      'speedup': row.speedup,
      'round in steps': row.round_ms / baseline_of(row, rows).round_ms,
    }
    if row.paper and row.paper.tau:
      cell["paper's round"] = row.paper.tau / row.paper.speedup
      speedup = row.block_efficiency / cell["paper's round"]
      cell["speedup at the paper's"] = speedup
    cells.append(cell)
  return [
    '## What rounds cost',
    "In steps of the target alone. The paper's rounds, τ over speedup of its "
    'figures, are over its token trees.',
    Table(cells),
  ]
