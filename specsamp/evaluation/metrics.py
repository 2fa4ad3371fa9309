"""From the lines of single sequences to the figures of a run."""

from collections.abc import Sequence
from typing import Any

import numpy as np

# What tells the lines of one row of a report from those of another.
KEYS = (
  'method', 'task', 'temperature', 'top_p', 'verifier', 'lossless', 'law',
  'draft_len', 'branching', 'nodes', 'tree_attention',
)  # fmt: skip


def summarize(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """One row for each method and sampling, in order of appearance.

  Times include the prompt pass. Speedup is the autoregressive run's seconds a
  token, all its seconds over all its tokens, over this run's. Block efficiency
  counts tokens a round, the bonus or residual token included, before the
  budget cuts the last one; the acceptance
  rate is accepted over drafted tokens, where each depth of a tree counts as
  one, and by position the share of the
  rounds that accepted the token drafted there. Percentiles are of the
  milliseconds a token of single sequences.
  """
  groups: dict[tuple, list] = {}
  for line in lines:
    groups.setdefault(tuple(line[key] for key in KEYS), []).append(line)
  rows = [
    dict(zip(KEYS, key, strict=True)) | _figures(group)
    for key, group in groups.items()
  ]
  for row in rows:
    baseline = [
      other['ms_per_token']
      for other in rows
      if other['method'] == 'autoregressive'
      and all(other[k] == row[k] for k in ('task', 'temperature', 'top_p'))
    ]
    row['speedup'] = baseline[0] / row['ms_per_token'] if baseline else None
  return rows


def _figures(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
  column = lambda key: np.asarray([line[key] for line in lines])
  tokens, rounds = column('tokens'), column('rounds')
  seconds = column('prefill_seconds') + column('decode_seconds')
  drafted = column('drafted_at').sum(axis=0)
  accepted = column('accepted_at').sum(axis=0)
  per_token = 1e3 * seconds / tokens
  p50, p90, p99 = np.percentile(per_token, [50, 90, 99])
  return {
    'sequences': len(lines),
    'tokens': int(tokens.sum()),
    'seconds': float(seconds.sum()),
    'ms_per_token': float(1e3 * seconds.sum() / tokens.sum()),
    'tokens_per_second': float(tokens.sum() / seconds.sum()),
    'block_efficiency': float(1 + accepted.sum() / rounds.sum()),
    'acceptance_rate': _ratio(accepted.sum(), drafted.sum()),
    'acceptance_by_position': [
      _ratio(a, d) for a, d in zip(accepted, drafted, strict=True)
    ],
    'round_ms': float(1e3 * column('decode_seconds').sum() / rounds.sum()),
    'p50_ms': float(p50),
    'p90_ms': float(p90),
    'p99_ms': float(p99),
  }


def _ratio(part, whole) -> float | None:
  return float(part / whole) if whole else None
