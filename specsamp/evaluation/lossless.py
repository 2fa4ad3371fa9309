"""Whether a method says what the target alone would: tests of its texts.

A method and the baseline answer the same prompts with independent random bits.
If both draw from the target's law, the two answers to a prompt may be
exchanged; all exchanges of a report are as likely, which gives an exact test of
any statistic, whatever the texts. Two are tested: how surprised the target is
(a rule that prefers likely tokens says too few unlikely ones), and how often
each token is said. Greedy texts must be the same but for near ties.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tabulate

from specsamp.evaluation import report

ALPHA = 0.01  # the chance that a report flags any lossless method
_EXCHANGES = 20_000
_METHOD = (
  'method', 'branching', 'verifier', 'law', 'tree_attention', 'temperature',
  'top_p',
)  # fmt: skip
# Logits of two passes over the same text differ by so much.
_NEAR_TIE = {'float32': 1e-3, 'bfloat16': 0.25}


def exchange_test(differences_nk: np.ndarray, seed: int = 0) -> float:
  """The p-value of paired differences that have either sign by chance.

  The statistic is the squared length of their sum. All signs are tried for up
  to 14 pairs, 20,000 random ones beyond that.

  Args:
    differences_nk: of n pairs, k figures each.
    seed: of the signs.
  """
  gram_nn = differences_nk @ differences_nk.T
  pairs = len(gram_nn)
  if pairs <= 14:
    signs = 1 - 2 * ((np.arange(2**pairs)[:, None] >> np.arange(pairs)) & 1)
  else:
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1, 1], size=(_EXCHANGES, pairs))
    signs[0] = 1  # what was seen is one of the exchanges
  lengths = np.einsum('rn,rn->r', signs @ gram_nn, signs)
  seen = gram_nn.sum()
  return float(np.mean(lengths >= seen - 1e-9 * max(abs(seen), 1)))


def examine(
  lines: Sequence[dict[str, Any]],
  scores: dict[str, dict[str, Any]],
  dtype: str,
) -> list[dict[str, Any]]:
  """A row for each method and law: what its texts say about it.

  Args:
    lines: of `runner.compare`, the baselines' among them.
    scores: of `scores.score`.
    dtype: of the target, which says how near a tie is.

  Returns:
    Rows with the fields of the method and `texts`, `same` (texts equal to the
    baseline's), `surprise` and `baseline_surprise` (nats a token beyond the
    law's entropy; 0 on average for draws from it), `p_surprise`, `p_tokens`,
    `gap` (greedy: how far below the best logit a token was), `scores` (figure
    by figure: the baseline's, the method's, p of their difference) and
    `verdict`: lossless, LOSSY, or too few texts.
  """
  groups: dict[tuple, dict[tuple, dict]] = {}
  for line in lines:
    key = tuple(line[name] for name in _METHOD)
    answer = (line['task'], line['prompt'], line['sample'])
    groups.setdefault(key, {})[answer] = line
  baselines = {
    key[-2:]: group
    for key, group in groups.items()
    if key[0] == 'autoregressive'
  }
  rows = []
  for key, group in groups.items():
    if key[0] != 'autoregressive' and key[-2:] in baselines:
      base = baselines[key[-2:]]
      pairs = [(base[answer], group[answer]) for answer in group]
      rows.append(_row(pairs, scores, dtype))
  # Two tests a row, and none may fail by chance.
  level = ALPHA / max(2 * sum(row['temperature'] > 0 for row in rows), 1)
  for row in rows:
    row['verdict'] = _verdict(row, level)
  return rows


def _row(pairs, scores, dtype) -> dict[str, Any]:
  own = pairs[0][1]
  names = ('method', 'temperature', 'top_p', 'branching', 'verifier', 'law')
  row = {name: own[name] for name in (*names, 'lossless')}
  tokens = [
    sum(line['tokens'] for line in side) for side in zip(*pairs, strict=True)
  ]
  excess = np.asarray(
    [[scores[line['id']]['excess'] for line in pair] for pair in pairs]
  )
  row |= {
    'texts': len(pairs),
    'same': sum(a['said'] == b['said'] for a, b in pairs),
    'baseline_surprise': float(excess[:, 0].sum() / tokens[0]),
    'surprise': float(excess[:, 1].sum() / tokens[1]),
    'gap': max(scores[line['id']]['gap'] for _, line in pairs),
    'near_tie': _NEAR_TIE.get(dtype, _NEAR_TIE['bfloat16']),
    'p_surprise': None,
    'p_tokens': None,
    'scores': _parity(pairs, scores),
  }
  if own['temperature']:
    row['p_surprise'] = exchange_test(excess[:, 1:] - excess[:, :1])
    row['p_tokens'] = exchange_test(_histograms(pairs))
  return row


def _histograms(pairs) -> np.ndarray:
  """How much more often the second of each pair says each token; roots of
  counts, so that what is said all the time does not hide the rest."""
  said = [
    [np.concatenate([*line['said'], []]).astype(int) for line in pair]
    for pair in pairs
  ]
  tokens = np.unique(np.concatenate([side for pair in said for side in pair]))
  roots = np.zeros((len(pairs), 2, len(tokens)))
  for i, pair in enumerate(said):
    for j, side in enumerate(pair):
      found, counts = np.unique(side, return_counts=True)
      roots[i, j, np.searchsorted(tokens, found)] = np.sqrt(counts)
  return roots[:, 1] - roots[:, 0]


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
      exchange_test(found[:, 1:] - found[:, :1]),
    )
    for name, found in ((name, np.asarray(f)) for name, f in values.items())
  }


def _verdict(row, level: float) -> str:
  if row['temperature'] == 0:
    return 'lossless' if row['gap'] <= row['near_tie'] else 'LOSSY'
  if min(row['p_surprise'], row['p_tokens']) < level:
    return 'LOSSY'
  # Two exchanges in 2^n show what was seen, or its mirror image.
  fewest = max(2 * 0.5 ** row['texts'], 1 / _EXCHANGES)
  return 'lossless' if fewest < level else 'too few texts'


def section(rows: Sequence[dict[str, Any]]) -> str:
  """The rows of `examine` as a section of a report."""
  cells = [
    {
      'sampling': report.sampling_name(row),
      'method': report.method_name(row),
      'draft': row['branching'],
      'texts': row['texts'],
      'as the baseline': row['same'],
      'surprise of baseline': row['baseline_surprise'],
      'of method': row['surprise'],
      'p (surprise)': row['p_surprise'],
      'p (tokens)': row['p_tokens'],
      'looks': row['verdict'],
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
    'prompts, from independent random bits. Surprise: nats a token beyond the '
    "entropy of the target's law, 0 on average for draws from it. p: how often "
    'the two texts of each prompt, exchanged at random, differ as much, in '
    f'surprise and in how often each token is said; LOSSY where a p would be '
    f'found once in {1 / ALPHA:.0f} such reports of lossless methods. Greedy '
    'texts may differ where the two best logits are nearly equal.',
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
