"""Tests of whether a method's completions follow the target's distribution.

A method and the baseline answer the same prompts with independent random bits.
If both draw from the target's distribution, the two answers to a prompt may be
exchanged: all signs of their differences are equally likely. This gives an
exact test of any statistic. Two statistics are tested: the excess
NLL (a rule that prefers likely tokens emits too few unlikely ones), and the
number of times that each token is emitted. The most sensitive test compares the
excess NLL with the target's distribution, under which its mean and variance are
known. Greedy completions must be the same except for near ties.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import pathlib
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specsamp import verification
from specsamp.drafting import checks
from specsamp.drafting.drafter import Drafter
from specsamp.evaluation import runner
from specsamp.evaluation.likelihood import text_likelihood
from specsamp.evaluation.methods import BASELINE, Label, Method
from specsamp.evaluation.metrics import Line
from specsamp.evaluation.reporting import tables
from specsamp.evaluation.reporting.report import Part, Table
from specsamp.evaluation.reporting.run_log import RunLog
from specsamp.evaluation.runner import Settings
from specsamp.evaluation.tasks import Question, Task
from specsamp.evaluation.tasks.task import spread
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import distributed, progress, user_modules
from specsamp.verification import Verifier

ALPHA = 0.01  # chance that a report flags any lossless method
_FLIPS = 20_000  # lower bound on the number of sign flips
_CHUNK = 1_000  # flips that are tried at once
_EXACT = 14  # pairs up to which all flips are tried
_OUTSIDE = 20.0  # nats that a token of probability 0 counts
_NORMAL = 500  # tokens from which their sum is normal enough
_MAX_PAIRS = 1_000  # pairs whose tokens are counted
# Difference between the logits of two passes over the same text.
_NEAR_TIE = {'float32': 1e-3, 'bfloat16': 0.25}


@dataclasses.dataclass(frozen=True)
class Score:
  """Score of a line's answers, and their likelihood: a line of scores.jsonl.

  Attributes:
    id: hash of the text, its reference and its scorer.
    excess_nll, variance, outside, gap: see `TextLikelihood`; sums over all
      turns, but the maximum of `gap`.
    scores: scores of the task by their names, or None.
  """

  id: str
  excess_nll: float
  variance: float
  outside: int
  gap: float
  scores: dict[str, float | str] | None


def score(
  target: LanguageModel,
  tasks: Sequence[Task],
  lines: Sequence[Line],
  settings: Settings,
  path: pathlib.Path,
  allow_code_execution: bool = False,
) -> dict[str, Score]:
  """Scores the lines of `runner.compare`; returns the scores by the line ids.

  Answers of the `RunLog` at the path are not scored again. Answers that are run
  as programs have a score only if `allow_code_execution` is True.
  """
  by_name = {task.name: task for task in tasks}
  prompts = {
    (task.name, prompt.name): prompt
    for task in tasks
    for prompt in task.prompts
  }
  ids = {
    line.id: _id(
      line, prompts[line.task, line.prompt], by_name[line.task].score
    )
    for line in lines
  }
  has_score = {
    task.name: bool(
      task.score and (allow_code_execution or not task.runs_answers)
    )
    for task in tasks
  }
  wanted = {ids[line.id]: has_score[line.task] for line in lines}
  log = RunLog(
    path, Score, lambda score: score.id, lambda score: score.id in wanted
  )
  log.keep(
    id_
    for id_, score in log.records.items()
    if score.scores is not None or not wanted[id_]
  )
  missing = [line for line in lines if ids[line.id] not in log.records]
  known: dict[tuple, Score] = {}  # many greedy texts are equal
  for line in progress.bar('scoring', missing, unit='seq'):
    task, prompt = by_name[line.task], prompts[line.task, line.prompt]
    key = (line.task, line.prompt, line.sampling, str(line.output_tokens))
    if key not in known:
      scores = None
      # The first process of a run executes programs.
      if has_score[line.task] and distributed.is_first():
        scores = task.scored(prompt, line.texts[0])
      likelihood = _likelihood(target, prompt, line, settings)
      known[key] = Score('', **likelihood, scores=scores)
    log.append(dataclasses.replace(known[key], id=ids[line.id]))
  return {id_: log.records[key] for id_, key in ids.items()}


def _id(line: Line, prompt: Question, score: Callable | None) -> str:
  """Returns a hash of a text, its reference and its scorer."""
  scorer = score and [
    score.__module__,
    getattr(score, '__qualname__', type(score).__name__),
    user_modules.source_digest(score),
  ]
  scored = json.dumps([line.id, line.output_tokens, prompt.reference, scorer])
  return hashlib.sha256(scored.encode()).hexdigest()[:16]


def _likelihood(
  target: LanguageModel, prompt: Question, line: Line, settings: Settings
) -> dict[str, float]:
  """Returns the likelihood of all turns of a line."""
  sampling = SamplingParams(
    line.temperature, top_p=line.top_p, top_k=line.top_k
  )
  turns = []
  for turn, output in enumerate(line.output_tokens):
    tokens, _ = settings.conversation(target, prompt, line.texts[:turn])
    turns.append(text_likelihood(target, tokens, output, sampling))
  return dict(
    excess_nll=sum(turn.excess_nll for turn in turns),
    variance=sum(turn.variance for turn in turns),
    outside=sum(turn.outside for turn in turns),
    gap=max(turn.gap for turn in turns),
  )


class Test(NamedTuple):
  """Result of a sign-flip permutation test."""

  p: float  # share of flips whose sum is at least as long as the observed one
  smallest: float  # smallest p that this number of pairs can have


def sign_flip_test(differences: np.ndarray, flips: int = _FLIPS) -> Test:
  """Tests paired differences, whose signs are random if both laws are equal.

  The statistic is the length of their sum. All signs of up to 14 pairs are
  tried, and random signs of more pairs. Pairs without a difference do not
  count.

  Args:
    differences: [pairs, figures].
    flips: number of flips that are tried for more than 14 pairs.
  """
  differences = differences[differences.any(axis=1)]
  pairs, figures = differences.shape
  if not pairs:
    return Test(1.0, 1.0)
  if figures > pairs:  # fewer figures with the same lengths
    differences = np.linalg.qr(differences.T, mode='r').T
  observed = np.square(differences.sum(axis=0)).sum()
  rng = np.random.default_rng(0)
  total = 2**pairs if pairs <= _EXACT else flips
  longer = 0
  for start in range(0, total, _CHUNK):
    number = np.arange(start, min(start + _CHUNK, total))
    if pairs <= _EXACT:
      bits = (number[:, None] >> np.arange(pairs)) & 1
    else:
      bits = rng.integers(0, 2, (len(number), pairs), np.int8)
      bits[number == 0] = 0  # the observed signs are one of the flips
    lengths = np.square((1.0 - 2 * bits) @ differences).sum(axis=1)
    longer += np.sum(lengths >= observed * (1 - 1e-9))
  # The observed signs and their mirror image are always at least as long.
  return Test(float(longer / total), max(2 * 0.5**pairs, 1 / total))


class Parity(NamedTuple):
  """Means of a score for the baseline and a method, and p of the difference."""

  baseline: float
  method: float
  p: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding(Label):
  """Result of the tests of a method's completions.

  Excess NLL is in nats per token beyond the entropy of the target's
  distribution. Draws from that distribution have a mean of 0.

  Attributes:
    texts: number of completions.
    same: number of completions that are equal to the baseline's.
    baseline_excess_nll, excess_nll: excess NLL of the baseline and the method.
    p_target: p-value of the excess NLL under the target's distribution; None
      for few tokens. All p-values are None for greedy completions.
    p_nll: p-value of the excess NLL against the baseline's, by sign flips.
    p_tokens: p-value of the token counts, by sign flips.
    gap: in greedy completions, largest distance of a logit from the best.
    near_tie: largest gap that is allowed.
    scores: scores of the tasks.
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


_Pair = tuple[Line, Line]  # the answers of the baseline and of a method


def examine(
  lines: Sequence[Line], scores: Mapping[str, Score], dtype: str
) -> list[Finding]:
  """Tests each method's completions against the baseline's, per sampling.

  The dtype of the target determines the size of a near tie.
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
  # There are three tests per sampled method, and none may fail by chance.
  sampled = sum(label.temperature > 0 for label in methods)
  level = ALPHA / max(3 * sampled, 1)
  return [
    _examine(
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


def _examine(
  label: Label, pairs: Sequence[_Pair], scores, dtype: str, level: float
) -> Finding:
  tokens = [
    sum(line.tokens for line in side) for side in zip(*pairs, strict=True)
  ]
  of_pairs = lambda name: np.asarray(
    [[getattr(scores[x.id], name) for x in pair] for pair in pairs]
  )
  excess, gaps = of_pairs('excess_nll'), of_pairs('gap')
  finding = Finding(
    **vars(label),
    texts=len(pairs),
    same=sum(a.output_tokens == b.output_tokens for a, b in pairs),
    baseline_excess_nll=float(excess[:, 0].sum() / tokens[0]),
    excess_nll=float(excess[:, 1].sum() / tokens[1]),
    gap=float(gaps[:, 1].max()),
    # On some devices two passes of the target differ by more.
    near_tie=max(
      _NEAR_TIE.get(dtype, _NEAR_TIE['bfloat16']), 2 * float(gaps[:, 0].max())
    ),
    scores=_parity(pairs, scores),
    verdict='lossless',
  )
  if not label.temperature:
    if finding.gap > finding.near_tie:
      return dataclasses.replace(finding, verdict='LOSSY')
    return finding
  p_target = None
  variance = of_pairs('variance')[:, 1].sum()
  if tokens[1] >= _NORMAL and variance:  # a sum of martingale differences
    z = excess[:, 1].sum() / math.sqrt(variance)
    p_target = math.erfc(abs(z) / math.sqrt(2))
  flips = max(_FLIPS, math.ceil(4 / level))
  excess = excess + _OUTSIDE * of_pairs('outside')
  nll = sign_flip_test(excess[:, 1:] - excess[:, :1], flips)
  counts = sign_flip_test(_count_differences(pairs), flips)
  smallest = max(nll.smallest, counts.smallest)
  verdict = 'lossless'
  if min(p for p in (p_target, nll.p, counts.p) if p is not None) < level:
    verdict = 'LOSSY'
  elif smallest >= level and finding.same < finding.texts:
    verdict = 'too few texts'
  return dataclasses.replace(
    finding, verdict=verdict, p_target=p_target, p_nll=nll.p, p_tokens=counts.p
  )


def _count_differences(pairs: Sequence[_Pair]) -> np.ndarray:
  """Returns the differences of token counts, [pairs, tokens].

  It compares square roots of counts: frequent tokens then do not hide others.
  """
  outputs = [
    [list(itertools.chain(*line.output_tokens)) for line in pair]
    for pair in spread(pairs, _MAX_PAIRS)
  ]
  tokens = np.unique(np.concatenate([*itertools.chain(*outputs)]))
  differences = np.zeros((len(outputs), len(tokens)))
  for row, pair in zip(differences, outputs, strict=True):
    for sign, side in zip((-1, 1), pair, strict=True):
      emitted, counts = np.unique(side, return_counts=True)
      row[np.searchsorted(tokens, emitted)] += sign * np.sqrt(counts)
  return differences


def _parity(pairs: Sequence[_Pair], scores) -> dict[str, Parity]:
  values = defaultdict(list)
  for pair in pairs:
    baseline, method = (scores[line.id].scores for line in pair)
    if baseline and method:
      for name, value in baseline.items():
        if isinstance(value, float):
          both = value, method[name]
          values[f'{name}, {pair[0].task}'].append(both)
  parities = {}
  for name, both in values.items():
    array = np.asarray(both)
    test = sign_flip_test(array[:, 1:] - array[:, :1])
    parities[name] = Parity(*array.mean(axis=0).tolist(), test.p)
  return parities


def section(findings: Sequence[Finding]) -> list[Part]:
  """Returns the findings as a section of a report."""
  table = [
    tables.heads(finding)
    | {
      'texts': finding.texts,
      'as the baseline': finding.same,
      'excess NLL of baseline': finding.baseline_excess_nll,
      'of method': finding.excess_nll,
      'p (target)': finding.p_target,
      'p (NLL)': finding.p_nll,
      'p (tokens)': finding.p_tokens,
      'verdict': finding.verdict,
    }
    for finding in findings
  ]
  parity = [
    tables.heads(finding)
    | {
      'score': name,
      'baseline': score.baseline,
      'of method': score.method,
      'p of the difference': score.p,
    }
    for finding in findings
    for name, score in finding.scores.items()
  ]
  parts = [
    '## Losslessness',
    'Texts of each method against those of the target alone, after the same '
    'prompts, from independent random bits. Excess NLL: nats per token beyond '
    "the entropy of the target's distribution, with a mean of 0 for draws from "
    'it. p (target): chance that such draws have at least this much. p (NLL), '
    'p (tokens): chance that the two texts of each prompt, exchanged at '
    'random, differ at least this much in NLL and in the count of each token. '
    f'LOSSY: so small a p occurs in one of {1 / ALPHA:.0f} reports of lossless '
    'methods. Greedy texts may differ if the two best logits are nearly equal.',
    Table(table, digits=3),
  ]
  return parts + ([Table(parity, digits=3)] if parity else [])


def check(
  target: LanguageModel,
  drafter: Drafter,
  prompts: Sequence[str],
  verifier: str | Verifier | None = None,
  *,
  temperatures: Sequence[float] = (0.0, 1.0),
  samples: int = 4,
  max_new_tokens: int = 32,
  seed: int = 0,
) -> list[Finding]:
  """Tests completions of a drafter and a verifier against the target's.

  If the method is lossless, a finding's `verdict` is LOSSY with a chance of 1%.

  Args:
    target: the target.
    drafter: the drafter.
    prompts: texts. The test needs at least 500 tokens of output in all to be
      sensitive.
    verifier: see `specsamp.generate`.
    temperatures: temperatures, with a finding for each.
    samples: samples of each prompt at temperatures above 0.
    max_new_tokens: upper bound on the tokens of each completion.
    seed: seed of all draws.

  Raises:
    UserError: the verifier states that it is not lossless.
  """
  verification.check_lossless('losslessness', verifier)
  questions = [Question(f'{i}', prompt) for i, prompt in enumerate(prompts)]
  tasks = [Task('prompts', questions, ends=False)]
  checks.check_parts(drafter)
  rule = verifier or verification.default_name(drafter.law, drafter.tree)
  methods = [
    Method(*method, temperature, 1.0)
    for temperature in temperatures
    for method in ((BASELINE, None, 'token'), ('drafter', drafter, rule))
  ]
  settings = Settings(
    max_prompt_tokens=target.config.max_length - max_new_tokens,
    max_new_tokens=max_new_tokens,
    seed=seed,
    samples=samples,
  )
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder)
    lines = runner.compare(
      target, methods, tasks, settings, path / 'metrics.jsonl'
    )
    scores = score(target, tasks, lines, settings, path / 'scores.jsonl')
  return examine(lines, scores, target.config.dtype)
