"""Sections of a comparison that papers have too."""

from collections.abc import Sequence

from specsamp.evaluation.methods import Label
from specsamp.evaluation.metrics import Row, baseline_of
from specsamp.evaluation.reporting import tables
from specsamp.evaluation.reporting.report import Part, Table
from specsamp.evaluation.timing import RoundCost


def best(rows: Sequence[Row]) -> list[Part]:
  """Returns the best rows of each name and sampling, each row once.

  Chains as long as the fastest tree follow it, like "SD (same γ)" and "SD (best
  γ)" in table 2 of Yang et al. 2401.06706.

  Args:
    rows: rows of all methods.
  """
  speedup = lambda row: row.speedup
  tau = lambda row: row.block_efficiency
  groups = [
    (max(group, key=speedup), max(group, key=tau))
    for group in alternatives(rows)
  ]
  best_labels = {row.label for pair in groups for row in pair}
  chosen: dict[Label, tuple[Row, str]] = {}
  for fastest, longest in groups:
    chosen[fastest.label] = fastest, 'fastest'
    if longest is not fastest:
      chosen[longest.label] = longest, 'highest τ'
    for row in rows if not fastest.tree.is_chain else ():
      if (
        row.label not in best_labels
        and row.method != fastest.method
        and row.tree.is_chain
        and row.tree.depth == fastest.tree.depth
        and row.sampling == fastest.sampling
      ):
        chosen.setdefault(row.label, (row, 'as long as the fastest above'))
  cells = [
    {
      'sampling': row.sampling_name,
      'method': row.method_name,
      'which': which,
      'draft': row.draft_name,
      'speedup': row.speedup,
      'τ': row.block_efficiency,
    }
    for row, which in chosen.values()
  ]
  return ['## Best of each', Table(cells)]


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
  """Returns the cost of a tree's pass at which it is as fast as a chain."""
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

  A round of a paper costs τ over speedup, in steps of the target alone. Another
  machine has other costs and the same τ.

  Args:
    rows: rows that include the baselines.
    costs: methods with the costs of their rounds; None if the rounds differ.
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
