"""What a comparison found, in tables and sentences for its report."""

from collections.abc import Sequence
from typing import Any

import tabulate

from specsamp.evaluation.reporting import report


def best(rows: Sequence[dict[str, Any]]) -> str:
  """The best of each name and temperature, a tree beside chains of its length.

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
    for row in rows if fastest['branching'] != chain else ():
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


def baseline(row, rows) -> dict[str, Any]:
  """The autoregressive row of the same sampling."""
  (found,) = (
    other
    for other in rows
    if other['method'] == 'autoregressive'
    and all(other[key] == row[key] for key in ('temperature', 'top_p'))
  )
  return found


def break_even(chain, tree, chain_cost, tree_cost) -> str:
  """At which cost of its pass the tree would be as fast as the chain."""
  gain = tree['block_efficiency'] / chain['block_efficiency']
  rest = tree_cost['round_ms'] - tree_cost['score_ms']
  allowed = gain * chain_cost['round_ms'] - rest
  size = tree_cost['score_ms'] / chain_cost['score_ms']
  text = (
    f'{report.sampling_name(tree)}: {tree["branching"]} '
    f'({report.method_name(tree)}) emits {gain:.2f} times the tokens of '
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

  What a round costs in steps of the target alone is τ over speedup in a paper;
  another machine has other costs, and the same τ.

  Args:
    rows: of `metrics.summarize`, the baselines among them.
    costs: rows with what `parts.measure` found of their methods, `paper` as
      speedup / τ or '', and as `decode_round_ms` the round of the decoding.
  """
  cells = []
  for cost in costs:
    step_ms = baseline(cost, rows)['round_ms']
    cell = {
      'sampling': report.sampling_name(cost),
      'method': report.method_name(cost),
      'draft': cost['branching'],
      'draft ms': cost['draft_ms'],
      'score ms': cost['score_ms'],
      'τ': cost['block_efficiency'],
      'speedup': cost['speedup'],
      'round in steps': cost['decode_round_ms'] / step_ms,
      "paper's round": None,
      "speedup at the paper's": None,
    }
    if '/' in cost['paper']:
      speedup, tau = map(float, cost['paper'].lstrip('~').split('/'))
      cell["paper's round"] = tau / speedup
      cell["speedup at the paper's"] = cost['block_efficiency'] * speedup / tau
    cells.append(cell)
  table = tabulate.tabulate(
    cells, headers='keys', tablefmt='github', floatfmt='.2f'
  )
  return (
    "## What rounds cost\n\nIn steps of the target alone. The paper's rounds, "
    'τ over speedup of its own figures, are over its token trees.\n\n' + table
  )
