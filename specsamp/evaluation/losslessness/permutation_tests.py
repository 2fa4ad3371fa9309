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

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specsamp.evaluation.losslessness.scores import Score
from specsamp.evaluation.methods import Label
from specsamp.evaluation.metrics import Line
from specsamp.evaluation.reporting import tables
from specsamp.evaluation.tasks.task import spread

ALPHA = 0.01  # the chance that a report flags any lossless method
_FLIPS = 20_000  # at least
_CHUNK = 1_000  # flips at once
_OUTSIDE = 20.0  # nats that a token of probability 0 counts
_NORMAL = 500  # tokens from which on a sum of them is as good as normal
_MOST_PAIRS = 1_000  # whose tokens are counted
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


class Parity(NamedTuple):
  """A figure of a task, of the baseline and of a method.

  Attributes:
    baseline: the baseline's mean.
    method: the method's.
    p: of the difference.
  """

  baseline: float
  method: float
  p: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding(Label):
  """What the texts of a method tell about it.

  Excess NLL is in nats a token beyond the entropy of the target's distribution;
  0 on average for draws from it.

  Attributes:
    texts: how many.
    same: of them, those that are equal to the baseline's.
    baseline_excess_nll: of the baseline's texts.
    excess_nll: of the method's texts.
    p_target: of the excess NLL under the target's distribution; None of few
      tokens, and of greedy ones, as are the next two of these.
    p_nll: beside the baseline's, of sign flips.
    p_tokens: of the counts of tokens, likewise.
    gap: greedy: how far below the best logit a token was.
    near_tie: how far it may be.
    scores: figures of the tasks.
    verdict: lossless, LOSSY, or too few texts.
  """

  texts: int
  same: int
  baseline_excess_nll: float
  excess_nll: float
  gap: float
  near_tie: float
  scores: dict[str, Parity]
  verdict: str
  p_target: float | None = None
  p_nll: float | None = None
  p_tokens: float | None = None


_Pair = tuple[Line, Line]  # the baseline's answer to a prompt, and a method's


def examine(
  lines: Sequence[Line], scores: Mapping[str, Score], dtype: str
) -> list[Finding]:
  """What its texts tell of each method and sampling.

  Args:
    lines: of `runner.compare`, the baselines' among them.
    scores: of `scores.score`.
    dtype: of the target, which tells how near a tie is.
  """
  groups: dict[Label, dict[tuple, Line]] = {}
  for line in lines:
    answer = (line.task, line.prompt, line.sample)
    groups.setdefault(line.label, {})[answer] = line
  baselines = {
    label.sampling: group
    for label, group in groups.items()
    if label.is_baseline
  }
  methods = [label for label in groups if not label.is_baseline]
  # Three tests a sampled method, and none may fail by chance.
  sampled = sum(label.temperature > 0 for label in methods)
  level = ALPHA / max(3 * sampled, 1)
  return [
    _find(
      label,
      [
        (baselines[label.sampling][answer], line)
        for answer, line in groups[label].items()
      ],
      scores,
      dtype,
      level,
    )
    for label in methods
  ]


def _find(
  label: Label, pairs: Sequence[_Pair], scores, dtype: str, level: float
) -> Finding:
  tokens = [
    sum(line.tokens for line in side) for side in zip(*pairs, strict=True)
  ]
  of_pairs = lambda name: np.asarray(
    [[getattr(scores[x.id].likelihood, name) for x in pair] for pair in pairs]
  )
  excess, gaps = of_pairs('excess_nll'), of_pairs('gap')
  found = Finding(
    **vars(label),
    texts=len(pairs),
    same=sum(a.output_tokens == b.output_tokens for a, b in pairs),
    baseline_excess_nll=float(excess[:, 0].sum() / tokens[0]),
    excess_nll=float(excess[:, 1].sum() / tokens[1]),
    gap=float(gaps[:, 1].max()),
    # The target alone is not nearer to itself on some devices.
    near_tie=max(
      _NEAR_TIE.get(dtype, _NEAR_TIE['bfloat16']), 2 * float(gaps[:, 0].max())
    ),
    scores=_parity(pairs, scores),
    verdict='lossless',
  )
  if not label.temperature:
    is_greedy = found.gap <= found.near_tie
    return found if is_greedy else dataclasses.replace(found, verdict='LOSSY')
  p_target = None
  variance = of_pairs('variance')[:, 1].sum()
  if tokens[1] >= _NORMAL and variance:  # a sum of martingale differences
    z = excess[:, 1].sum() / math.sqrt(variance)
    p_target = math.erfc(abs(z) / math.sqrt(2))
  flips = max(_FLIPS, math.ceil(4 / level))
  excess = excess + _OUTSIDE * of_pairs('outside')
  nll = sign_flip_test(excess[:, 1:] - excess[:, :1], flips)
  counts = sign_flip_test(_histograms(pairs), flips)
  verdict = 'too few texts'
  if min(p for p in (p_target, nll.p, counts.p) if p is not None) < level:
    verdict = 'LOSSY'
  elif max(nll.least, counts.least) < level or found.same == found.texts:
    verdict = 'lossless'
  return dataclasses.replace(
    found, verdict=verdict, p_target=p_target, p_nll=nll.p, p_tokens=counts.p
  )


def _histograms(pairs: Sequence[_Pair]) -> np.ndarray:
  """How much more often the second of each pair emits each token; roots of
  counts, so that what is emitted all the time does not hide the rest."""
  outputs = [
    [np.concatenate([*line.output_tokens, []]).astype(int) for line in pair]
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


def _parity(pairs: Sequence[_Pair], scores) -> dict[str, Parity]:
  values: dict[str, list[tuple[float, float]]] = {}
  for pair in pairs:
    both = [scores[line.id].scores for line in pair]
    if all(both):
      for name, value in both[0].items():
        if isinstance(value, float):
          task = f'{name}, {pair[0].task}'
          values.setdefault(task, []).append((value, both[1][name]))
  return {
    name: Parity(
      float(found[:, 0].mean()),
      float(found[:, 1].mean()),
      sign_flip_test(found[:, 1:] - found[:, :1]).p,
    )
    for name, found in ((name, np.asarray(f)) for name, f in values.items())
  }


def section(findings: Sequence[Finding], style: str = 'github') -> str:
  """The findings as a section of a report, tables in a style of tabulate's."""
  table = [
    tables.heads(found)
    | {
      'texts': found.texts,
      'as the baseline': found.same,
      'excess NLL of baseline': found.baseline_excess_nll,
      'of method': found.excess_nll,
      'p (target)': found.p_target,
      'p (NLL)': found.p_nll,
      'p (tokens)': found.p_tokens,
      'verdict': found.verdict,
    }
    for found in findings
  ]
  parity = [
    tables.heads(found)
    | {
      'score': name,
      'baseline': each.baseline,
      'of method': each.method,
      'p of the difference': each.p,
    }
    for found in findings
    for name, each in found.scores.items()
  ]
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
    tables.render(table, style, digits=3),
  ]
  if parity:
    lines += ['', tables.render(parity, style, digits=3)]
  return '\n'.join(lines)
