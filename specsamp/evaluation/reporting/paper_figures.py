"""What a comparison found, as papers report it: tables and sentences."""

from collections.abc import Sequence

from specsamp.evaluation.metrics import Row, baseline_of
from specsamp.evaluation.reporting import tables
from specsamp.evaluation.timing import RoundCost


def best(rows: Sequence[Row], style: str = 'github') -> str:
  """The best of each name and sampling, a tree beside chains of its length.

  As table 2 of Yang et al. 2401.06706 has "SD (same γ)" and "SD (best γ)". No
  row stands there twice.

  Args:
    rows: of all methods.
    style: of tabulate.
  """
  cells, added = [], set()
  groups = [
    (
      max(group, key=lambda row: row.speedup),
      max(group, key=lambda row: row.block_efficiency),
    )
    for group in alternatives(rows)
  ]
  best_labels = {row.label for pair in groups for row in pair}

  def add(row, which):
    added.add(row.label)
    cells.append(
      {
        'sampling': row.sampling_name,
        'method': row.method_name,
        'which': which,
        'draft': row.draft_name,
        'speedup': row.speedup,
        'τ': row.block_efficiency,
      }
    )

  for fastest, longest in groups:
    add(fastest, 'fastest')
    if longest is not fastest:
      add(longest, 'highest τ')
    for row in rows if not fastest.tree.is_chain else ():
      if (
        row.label not in best_labels | added
        and row.method != fastest.method
        and row.tree.is_chain
        and row.tree.depth == fastest.tree.depth
        and row.sampling == fastest.sampling
      ):
        add(row, 'as long as the fastest above')
  return f'## Best of each\n\n{tables.render(cells, style)}'


def alternatives(rows: Sequence[Row]) -> list[list[Row]]:
  """Drafting rows of one sampling and name."""
  groups: dict[tuple, list[Row]] = {}
  for row in rows:
    if row.tree.depth:
      groups.setdefault((row.sampling, row.method), []).append(row)
  return list(groups.values())


def break_even(
  chain: Row, tree: Row, chain_cost: RoundCost, tree_cost: RoundCost
) -> str:
  """At which cost of its pass the tree would be as fast as the chain."""
  gain = tree.block_efficiency / chain.block_efficiency
  rest = tree_cost.round_ms - tree_cost.score_ms
  allowed = gain * chain_cost.round_ms - rest
  size = tree_cost.score_ms / chain_cost.score_ms
  text = (
    f'{tree.sampling_name}: {tree.draft_name} ({tree.method_name}) emits '
    f'{gain:.2f} times the tokens of {chain.draft_name} a round. Its pass over '
    f'{tree.tree.size} nodes takes {tree_cost.score_ms:.2f} ms, {size:.2f} '
    f'times the {chain_cost.score_ms:.2f} ms over {chain.tree.size}, and the '
    f'rest of its round {rest:.2f} ms. '
  )
  if allowed <= 0:
    return text + (
      'That rest alone costs more than it gains: it would be slower whatever '
      'the pass took.'
    )
  return text + (
    'It is the faster one where its pass takes less than '
    f"{allowed:.2f} ms, {allowed / chain_cost.score_ms:.2f} times the chain's."
  )


def at_paper_cost(
  rows: Sequence[Row],
  costs: Sequence[tuple[Row, RoundCost | None]],
  style: str = 'github',
) -> str:
  """Parts of rounds, and the speedup if a round cost what the paper's does.

  What a round costs in steps of the target alone is τ over speedup in a paper;
  another machine has other costs, and the same τ.

  Args:
    rows: the baselines among them.
    costs: methods with what their rounds cost; None where there are no parts
      to tell.
    style: of tabulate.
  """
  cells = []
  for row, cost in costs:
    cell = tables.heads(row) | {
      'draft ms': cost and cost.draft_ms,
      'score ms': cost and cost.score_ms,
      'τ': row.block_efficiency,
      'speedup': row.speedup,
      'round in steps': row.round_ms / baseline_of(row, rows).round_ms,
      "paper's round": None,
      "speedup at the paper's": None,
    }
    if row.paper and row.paper.tau:
      round_in_steps = row.paper.tau / row.paper.speedup
      cell["paper's round"] = round_in_steps
      cell["speedup at the paper's"] = row.block_efficiency / round_in_steps
    cells.append(cell)
  return (
    "## What rounds cost\n\nIn steps of the target alone. The paper's rounds, "
    'τ over speedup of its own figures, are over its token trees.\n\n'
    + tables.render(cells, style)
  )
