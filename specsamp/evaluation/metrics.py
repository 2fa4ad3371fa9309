"""From the lines of single sequences to the figures of a run."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# What tells the lines of one row of a report from those of another.
KEYS = (
  'method', 'task', 'temperature', 'top_p', 'verifier', 'lossless', 'law',
  'draft_len', 'branching', 'nodes', 'tree_attention',
)  # fmt: skip


ALL = 'all tasks'

_RESAMPLES = 2_000


def summarize(
  lines: Sequence[dict[str, Any]],
  scores: Mapping[str, dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
  """One row for each method, task and sampling, in order of appearance.

  Times include the prompt pass. Speedup is the autoregressive run's seconds a
  token, all its seconds over all its tokens of the same prompts, over this
  run's. Block efficiency counts tokens a round, the bonus or residual token
  included, before the budget cuts the last one; the acceptance rate is accepted
  over drafted tokens, where each depth of a tree counts as one, and by position
  the share of the rounds that accepted the token drafted there. Percentiles are
  over sequences: milliseconds a token, and seconds a sequence. Intervals
  (`speedup_95`, `block_efficiency_95`, `acceptance_rate_95`) are 95% of a
  bootstrap over prompts, None of a single one.

  Args:
    lines: of `runner.compare`.
    scores: of `scores.score`; figures of a task are means over its samples, and
      `pass@k` is `pass_at_k`.
  """
  groups: dict[tuple, list] = {}
  for line in lines:
    groups.setdefault(tuple(line[key] for key in KEYS), []).append(line)
  rows = []
  for key, group in groups.items():
    prompts = {line['prompt'] for line in group}
    row = dict(zip(KEYS, key, strict=True)) | _figures(group)
    baseline = [
      line
      for line in lines
      if line['method'] == 'autoregressive'
      and all(line[k] == row[k] for k in ('task', 'temperature', 'top_p'))
      and line['prompt'] in prompts
    ]
    row['speedup'] = None
    if baseline:
      row['speedup'] = _figures(baseline)['ms_per_token'] / row['ms_per_token']
    row |= _intervals(group, baseline)
    row['scores'] = _scores(group, scores or {})
    rows.append(row)
  return rows


def overall(
  lines: Sequence[dict[str, Any]],
  scores: Mapping[str, dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
  """`summarize` of all tasks together, as one task if there are several."""
  if len({line['task'] for line in lines}) == 1:
    return summarize(lines, scores)
  return summarize(
    [
      # A prompt is another one in another task.
      line | {'task': ALL, 'prompt': (line['task'], line['prompt'])}
      for line in lines
    ]
  )


def _figures(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
  column = lambda key: np.asarray([line[key] for line in lines])
  tokens, rounds = column('tokens'), column('rounds')
  seconds = column('prefill_seconds') + column('decode_seconds')
  drafted = column('num_drafted_per_pos').sum(axis=0)
  accepted = column('num_accepted_per_pos').sum(axis=0)
  found = {
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
  }
  for unit, values in (('ms', 1e3 * seconds / tokens), ('s', seconds)):
    for percent in (50, 90, 99):
      found[f'p{percent}_{unit}'] = float(np.percentile(values, percent))
  return found


def _intervals(lines, baseline) -> dict[str, list[float] | None]:
  """Of what depends on which prompts were drawn; None of a single one."""
  names = sorted({line['prompt'] for line in lines})
  prompts = {name: i for i, name in enumerate(names)}

  def sums(lines):
    """[prompts, 5]: seconds, tokens, rounds, accepted, drafted."""
    found = np.zeros((len(prompts), 5))
    for line in lines:
      found[prompts[line['prompt']]] += (
        line['prefill_seconds'] + line['decode_seconds'],
        line['tokens'],
        line['rounds'],
        sum(line['num_accepted_per_pos']),
        sum(line['num_drafted_per_pos']),
      )
    return found

  rng = np.random.default_rng(0)
  even = np.full(len(prompts), 1 / len(prompts))
  draws = rng.multinomial(len(prompts), even, size=_RESAMPLES)
  seconds, tokens, rounds, accepted, drafted = (draws @ sums(lines)).T
  values = {
    'block_efficiency_95': 1 + accepted / rounds,
    'acceptance_rate_95': accepted / drafted if drafted.all() else None,
    'speedup_95': None,
  }
  if baseline:
    base = (draws @ sums(baseline)).T
    values['speedup_95'] = base[0] / base[1] / (seconds / tokens)
  return {
    name: np.percentile(v, [2.5, 97.5]).tolist()
    if v is not None and len(prompts) > 1
    else None
    for name, v in values.items()
  }


def _scores(lines, scores) -> dict[str, float]:
  """Means over samples, then over prompts; pass@k for what was run."""
  by_prompt: dict[str, dict[str, list[float]]] = {}
  for line in lines:
    found = scores.get(line['id'], {}).get('scores') or {}
    for name, value in found.items():
      if isinstance(value, float):
        of_prompt = by_prompt.setdefault(name, {})
        of_prompt.setdefault(line['prompt'], []).append(value)
  means = {}
  for name, prompts in by_prompt.items():
    samples = list(prompts.values())
    means[name] = float(np.mean([np.mean(values) for values in samples]))
    if name == 'pass@1':
      most = min(map(len, samples))
      for k in (10, 100):
        if k <= most:
          means[f'pass@{k}'] = float(
            np.mean([pass_at_k(len(v), int(sum(v)), k) for v in samples])
          )
  return means


def pass_at_k(samples: int, passed: int, k: int) -> float:
  """The chance that one of k samples passes: 1 - C(n - c, k) / C(n, k).

  The unbiased estimate of Chen et al. 2107.03374, section 2.1.

  Args:
    samples: n, drawn for a problem.
    passed: c, of them.
    k: at most n.
  """
  return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


def _ratio(part, whole) -> float | None:
  return float(part / whole) if whole else None
