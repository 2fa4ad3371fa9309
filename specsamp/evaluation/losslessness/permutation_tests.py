"""Whether a method emits what the target alone would: tests of its texts.

A method and the baseline answer the same prompts with independent random bits.
If both draw from the target's distribution, the two answers to a prompt may be
exchanged: all signs of their differences are as likely, which gives an exact
test of any statistic, whatever the texts. Two are tested: the excess NLL (a
rule that prefers likely tokens emits too few unlikely ones), and how often each
token is emitted. The excess NLL is also held against the target's distribution,
of which its mean and variance are known; that test sees the most. Greedy texts
must be the same but for near ties.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tabulate

from specsamp.evaluation import metrics
from specsamp.evaluation.reporting import report
from specsamp.evaluation.tasks.task import spread

ALPHA = 0.01  # the chance that a report flags any lossless method
_FLIPS = 20_000  # at least
_CHUNK = 1_000  # flips at once
_OUTSIDE = 20.0  # nats that a token of probability 0 counts
_NORMAL = 500  # tokens from which on a sum of them is as good as normal
_MOST_PAIRS = 1_000  # whose tokens are counted
_METHOD = tuple(key for key in metrics.KEYS if key != 'task')
# Logits of two passes over the same text differ by so much.
_NEAR_TIE = {'float32': 1e-3, 'bfloat16': 0.25}


class Test(NamedTuple):
  """A sign-flip permutation test.

  Attributes:
    p: the share of sign flips with a sum at least as long as what was seen.
    least: the smallest p that so many pairs can have.
  """

  p: float
  least: float


def sign_flip_test(differences: np.ndarray, flips: int = _FLIPS) -> Test:
  """Tests paired differences, whose signs are chance if both draw alike.

  The statistic is the length of their sum. All signs of up to 14 pairs are
  tried, random ones beyond that. Pairs without a difference tell nothing.

  Args:
    differences: [pairs, figures].
    flips: how many are tried, of more than 14 pairs.
  """
  differences = differences[differences.any(axis=1)]
  pairs, figures = differences.shape
  if not pairs:
    return Test(1.0, 1.0)
  if figures > pairs:  # the same lengths with fewer figures
    differences = np.linalg.qr(differences.T, mode='r').T
  seen = np.square(differences.sum(axis=0)).sum()
  rng = np.random.default_rng(0)
  total = 2**pairs if pairs <= 14 else flips
  longer = 0
  for start in range(0, total, _CHUNK):
    at = np.arange(start, min(start + _CHUNK, total))
    if pairs <= 14:
      bits = (at[:, None] >> np.arange(pairs)) & 1
    else:
      bits = rng.integers(0, 2, (len(at), pairs), np.int8)
      bits[at == 0] = 0  # what was seen is one of the flips
    lengths = np.square((1.0 - 2 * bits) @ differences).sum(axis=1)
    longer += np.sum(lengths >= seen * (1 - 1e-9))
  # What was seen, and its mirror image.
  return Test(float(longer / total), max(2 * 0.5**pairs, 1 / total))


def examine(
  lines: Sequence[dict[str, Any]],
  scores: dict[str, dict[str, Any]],
  dtype: str,
) -> list[dict[str, Any]]:
  """A row for each method and sampling: what its texts show of it.

  Args:
    lines: of `runner.compare`, the baselines' among them.
    scores: of `scores.score`.
    dtype: of the target, which tells how near a tie is.

  Returns:
    Rows with the fields of the method and `texts`, `same` (texts equal to the
    baseline's), `excess_nll` and `baseline_excess_nll` (nats a token beyond the
    distribution's entropy; 0 on average for draws from it), `p_target` (of the
    excess NLL under the target's distribution; None of few tokens), `p_nll` and
    `p_tokens` (beside the baseline's, of sign flips), `gap` and `near_tie`
    (greedy: how far below the best logit a token was, and may be), `scores`
    (figure by
    figure: the baseline's, the method's, p of their difference) and `verdict`:
    lossless, LOSSY, or too few texts.
  """
  groups: dict[tuple, dict[tuple, dict]] = {}
  for line in lines:
    key = tuple(line[name] for name in _METHOD)
    answer = (line['task'], line['prompt'], line['sample'])
    groups.setdefault(key, {})[answer] = line
  of_sampling = lambda line: (line['temperature'], line['top_p'])
  methods, baselines = [], {}
  for group in groups.values():
    first = next(iter(group.values()))
    if first['method'] == 'autoregressive':
      baselines[of_sampling(first)] = group
    else:
      methods.append((of_sampling(first), group))
  # Three tests a sampled row, and none may fail by chance.
  level = ALPHA / max(3 * sum(sampling[0] > 0 for sampling, _ in methods), 1)
  return [
    _row(
      [(baselines[sampling][answer], line) for answer, line in group.items()],
      scores,
      dtype,
      level,
    )
    for sampling, group in methods
  ]


def _row(pairs, scores, dtype, level) -> dict[str, Any]:
  own = pairs[0][1]
  names = ('method', 'temperature', 'top_p', 'branching', 'verifier', 'law')
  tokens = [
    sum(line['tokens'] for line in side) for side in zip(*pairs, strict=True)
  ]
  of_pairs = lambda key: np.asarray(
    [[scores[line['id']][key] for line in pair] for pair in pairs]
  )
  excess, gaps = of_pairs('excess_nll'), of_pairs('gap')
  row = {name: own[name] for name in (*names, 'lossless')} | {
    'texts': len(pairs),
    'same': sum(a['output_tokens'] == b['output_tokens'] for a, b in pairs),
    'baseline_excess_nll': float(excess[:, 0].sum() / tokens[0]),
    'excess_nll': float(excess[:, 1].sum() / tokens[1]),
    'gap': float(gaps[:, 1].max()),
    # The target alone is not nearer to itself on some devices.
    'near_tie': max(
      _NEAR_TIE.get(dtype, _NEAR_TIE['bfloat16']), 2 * float(gaps[:, 0].max())
    ),
    'p_target': None,
    'p_nll': None,
    'p_tokens': None,
    'scores': _parity(pairs, scores),
  }
  if not own['temperature']:
    is_greedy = row['gap'] <= row['near_tie']
    return row | {'verdict': 'lossless' if is_greedy else 'LOSSY'}
  p_target = None
  variance = of_pairs('variance')[:, 1].sum()
  if tokens[1] >= _NORMAL and variance:  # a sum of martingale differences
    z = excess[:, 1].sum() / math.sqrt(variance)
    p_target = math.erfc(abs(z) / math.sqrt(2))
  flips = max(_FLIPS, math.ceil(4 / level))
  excess = excess + _OUTSIDE * of_pairs('outside')
  nll = sign_flip_test(excess[:, 1:] - excess[:, :1], flips)
  tokens_test = sign_flip_test(_histograms(pairs), flips)
  found = [p for p in (p_target, nll.p, tokens_test.p) if p is not None]
  if min(found) < level:
    verdict = 'LOSSY'
  elif max(nll.least, tokens_test.least) < level or row['same'] == row['texts']:
    verdict = 'lossless'
  else:
    verdict = 'too few texts'
  return row | {
    'p_target': p_target,
    'p_nll': nll.p,
    'p_tokens': tokens_test.p,
    'verdict': verdict,
  }


def _histograms(pairs) -> np.ndarray:
  """How much more often the second of each pair emits each token; roots of
  counts, so that what is emitted all the time does not hide the rest."""
  outputs = [
    [np.concatenate([*line['output_tokens'], []]).astype(int) for line in pair]
    for pair in spread(pairs, _MOST_PAIRS)
  ]
  tokens = np.unique(
    np.concatenate([side for pair in outputs for side in pair])
  )
  differences = np.zeros((len(outputs), len(tokens)))
  for into, pair in zip(differences, outputs, strict=True):
    for sign, side in zip((-1, 1), pair, strict=True):
      found, counts = np.unique(side, return_counts=True)
      into[np.searchsorted(tokens, found)] += sign * np.sqrt(counts)
  return differences


def _parity(pairs, scores) -> dict[str, tuple[float, float, float]]:
  """Figure of a task -> the baseline's, the method's, p of their difference."""
  values: dict[str, list] = {}
  for pair in pairs:
    both = [scores[line['id']]['scores'] for line in pair]
    if all(both):
      for name, value in both[0].items():
        if isinstance(value, float):
          task = f'{name}, {pair[0]["task"]}'
          values.setdefault(task, []).append((value, both[1][name]))
  return {
    name: (
      float(found[:, 0].mean()),
      float(found[:, 1].mean()),
      sign_flip_test(found[:, 1:] - found[:, :1]).p,
    )
    for name, found in ((name, np.asarray(f)) for name, f in values.items())
  }


def section(rows: Sequence[dict[str, Any]]) -> str:
  """The rows of `examine` as a section of a report."""
  cells = [
    {
      'sampling': report.sampling_name(row),
      'method': report.method_name(row),
      'draft': row['branching'],
      'texts': row['texts'],
      'as the baseline': row['same'],
      'excess NLL of baseline': row['baseline_excess_nll'],
      'of method': row['excess_nll'],
      'p (target)': row['p_target'],
      'p (NLL)': row['p_nll'],
      'p (tokens)': row['p_tokens'],
      'verdict': row['verdict'],
    }
    for row in rows
  ]
  table = tabulate.tabulate(
    cells, headers='keys', tablefmt='github', floatfmt='.3f'
  )
  lines = [
    '## Losslessness',
    '',
    'Texts of each method against those of the target alone, after the same '
    'prompts, from independent random bits. Excess NLL: nats a token beyond '
    "the entropy of the target's distribution, 0 on average for draws from "
    'it. p (target): how often such draws have as much. p (NLL), p (tokens): '
    'of sign-flip permutation tests, how often the two texts of each prompt, '
    'exchanged at random, differ as much, in NLL and in the count of each '
    f'token. LOSSY where so small a p comes once in {1 / ALPHA:.0f} reports of '
    'lossless methods. Greedy texts may differ where the two best logits are '
    'nearly equal.',
    '',
    table,
  ]
  parity = [
    {
      'sampling': report.sampling_name(row),
      'method': report.method_name(row),
      'draft': row['branching'],
      'score': name,
      'baseline': base,
      'of method': value,
      'p of the difference': p,
    }
    for row in rows
    for name, (base, value, p) in row['scores'].items()
  ]
  if parity:
    lines += [
      '',
      tabulate.tabulate(
        parity, headers='keys', tablefmt='github', floatfmt='.3f'
      ),
    ]
  return '\n'.join(lines)
