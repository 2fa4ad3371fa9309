"""What a comparison found, in tables and sentences for its report."""

from collections.abc import Sequence
from typing import Any

import tabulate

from specsamp.evaluation import report


def best(rows: Sequence[dict[str, Any]]) -> str:
  """The best of each name and temperature, beside a chain of the same length.

  As table 2 of Yang et al. 2401.06706 has "SD (same γ)" and "SD (best γ)".
  """
  cells = []

  def add(row, which):
    cells.append(
      {
        'sampling': report.sampling_name(row),
        'method': report.method_name(row),
        'which': which,
        'draft': row['branching'],
        'speedup': row['speedup'],
        'τ': row['block_efficiency'],
      }
    )

  for (temperature, _), group in alternatives(rows).items():
    fastest = max(group, key=lambda row: row['speedup'])
    longest = max(group, key=lambda row: row['block_efficiency'])
    add(fastest, 'fastest')
    if longest is not fastest:
      add(longest, 'highest τ')
    chain = f'γ={fastest["draft_len"]}'
    for row in rows:
      if (
        row['method'] != fastest['method']
        and row['branching'] == chain
        and row['temperature'] == temperature
      ):
        add(row, 'as long as the fastest above')
  table = tabulate.tabulate(
    cells, headers='keys', tablefmt='github', floatfmt='.2f'
  )
  return f'## Best of each\n\n{table}'


def alternatives(rows) -> dict[tuple, list[dict[str, Any]]]:
  """Drafting rows by temperature and name."""
  groups: dict[tuple, list] = {}
  for row in rows:
    if row['draft_len']:
      key = (row['temperature'], row['method'])
      groups.setdefault(key, []).append(row)
  return groups


def break_even(chain, tree, chain_cost, tree_cost) -> str:
  """At which cost of its pass the tree would be as fast as the chain."""
  gain = tree['block_efficiency'] / chain['block_efficiency']
  rest = tree_cost['round_ms'] - tree_cost['score_ms']
  allowed = gain * chain_cost['round_ms'] - rest
  size = tree_cost['score_ms'] / chain_cost['score_ms']
  text = (
    f'{report.sampling_name(tree)}: {tree["branching"]} '
    f'({report.method_name(tree)}) says {gain:.2f} times the tokens of '
    f'{chain["branching"]} a round. Its '
    f'pass over {tree["nodes"]} nodes takes {tree_cost["score_ms"]:.2f} ms, '
    f'{size:.2f} times the {chain_cost["score_ms"]:.2f} ms over '
    f'{chain["nodes"]}, and the rest of its round {rest:.2f} ms. '
  )
  if allowed <= 0:
    text += (
      'That rest alone costs more than it gains: it would be slower whatever '
      'the pass took.'
    )
  else:
    text += (
      'It is the faster one where its pass takes less than '
      f'{allowed:.2f} ms, {allowed / chain_cost["score_ms"]:.2f} times the '
      "chain's."
    )
  return text


def at_paper_cost(rows, costs) -> str:
  """Parts of rounds, and the speedup if a round cost what the paper's does.

  What a round costs in plain steps of the target is τ over speedup, of a paper
  too. Another machine has other costs; its τ would be the same.

  Args:
    rows: of the methods, with `paper` as speedup / τ where there is one.
    costs: of `parts.measure`, with the methods' names.
  """
  cells = []
  for cost in costs:
    row = next(
      row
      for row in rows
      if report.method_name(row) == cost['method']
      and all(row[k] == cost[k] for k in ('branching', 'temperature', 'top_p'))
    )
    cell = {
      'sampling': report.sampling_name(row),
      'method': cost['method'],
      'draft': row['branching'],
      'draft ms': cost['draft_ms'],
      'score ms': cost['score_ms'],
      'τ': row['block_efficiency'],
      'speedup': row['speedup'],
      'round in steps': row['block_efficiency'] / row['speedup'],
      "paper's round": None,
      "speedup at the paper's": None,
    }
    if row['paper']:
      speedup, tau = map(float, row['paper'].split('/'))
      cell["paper's round"] = tau / speedup
      cell["speedup at the paper's"] = row['block_efficiency'] * speedup / tau
    cells.append(cell)
  table = tabulate.tabulate(
    cells, headers='keys', tablefmt='github', floatfmt='.2f'
  )
  return (
    '## What rounds cost\n\nA round in plain steps of the target is τ over '
    f"speedup; the paper's follows from its own figures.\n\n{table}"
  )
