"""Counts of sampled texts of tiny models, and their exact distribution."""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
import pytest
import scipy.stats

import specsamp
from specsamp import SamplingParams
from specsamp.drafting import model_drafter
from specsamp.sampling import transforms

VOCAB = 4
# Three tokens do not reach the round after four accepted at once; five do.
LENGTH = 5
WINDOWS = {'first three': (0, 1, 2), 'last three': (2, 3, 4)}

CI, FULL = 6, 400  # batches: 3,072 and 204,800 texts of each group

sizes = pytest.mark.parametrize(
  'batches',
  [
    pytest.param(CI, id='ci'),
    pytest.param(FULL, id='full', marks=pytest.mark.slow),
  ],
)


class Group(NamedTuple):
  """Rows of a batch with one prompt and one way of sampling."""

  name: str
  prompt: tuple[int, ...]
  sampling: SamplingParams


PLAIN = Group('temperature 1', (2,), SamplingParams())
GROUPS = (
  PLAIN,
  Group('temperature 0.6', (1, 3), SamplingParams(temperature=0.6)),
  Group('top-k', (0, 2, 1), SamplingParams(top_k=2)),
  Group('top-p', (3, 3), SamplingParams(top_p=0.8)),
  Group('min-p', (1,), SamplingParams(min_p=0.2)),
  Group('all', (0,), SamplingParams(0.7, top_k=3, top_p=0.95, min_p=0.05)),
  Group('greedy', (2, 0), SamplingParams(temperature=0.0)),
)
ROWS = 512 * len(GROUPS)  # of a batch


def distributions_of(target):
  """Returns the target's distribution of five tokens by group's name.

  Each is float64 [V, .., V].
  """
  texts = np.indices((VOCAB,) * LENGTH).reshape(LENGTH, -1).T
  rows = np.zeros((len(GROUPS), len(texts), 8), np.int32)
  for i, group in enumerate(GROUPS):
    start = len(group.prompt)
    rows[i, :, :start] = group.prompt
    rows[i, :, start : start + LENGTH] = texts

  def conditionals(params, tokens, sampling):
    out = target.transformer.apply({'params': params}, tokens)
    return transforms.probabilities(out.logits, sampling)

  probs = jax.jit(conditionals)(
    target.params, rows.reshape(-1, 8), stack(GROUPS, len(texts))
  ).reshape(len(GROUPS), len(texts), 8, VOCAB)
  probs = np.asarray(probs, np.float64)
  result = {}
  for i, group in enumerate(GROUPS):
    joint = np.ones(len(texts))
    for t in range(LENGTH):
      at = len(group.prompt) - 1 + t
      joint *= np.take_along_axis(probs[i, :, at], texts[:, t : t + 1], 1)[:, 0]
    assert abs(joint.sum() - 1) < 1e-5
    result[group.name] = (joint / joint.sum()).reshape((VOCAB,) * LENGTH)
  return result


def stack(groups, rows_each):
  """Returns the sampling values of the groups' rows, [B]."""
  values = {
    field.name: np.repeat(
      np.asarray([getattr(group.sampling, field.name) for group in groups]),
      rows_each,
    )
    for field in dataclasses.fields(SamplingParams)
  }
  return SamplingParams(**values)


def count(tokens, groups):
  """Counts texts, int [rows, LENGTH]: [groups, V, .., V]."""
  index = np.asarray(tokens) @ VOCAB ** np.arange(LENGTH)[::-1]
  counts = [
    np.bincount(rows, minlength=VOCAB**LENGTH)
    for rows in index.reshape(len(groups), -1)
  ]
  return np.asarray(counts).reshape(-1, *(VOCAB,) * LENGTH)


def texts(target, groups, batches, *, seed, drafter=None, verifier='token'):
  """Returns the counts of each group's texts, and each batch's `Generation`."""
  rows_each = ROWS // len(groups)
  outs = [
    specsamp.generate(
      target,
      [group.prompt for group in groups for _ in range(rows_each)],
      drafter=drafter,
      verifier=verifier,
      sampling=stack(groups, rows_each),
      max_new_tokens=LENGTH,
      seed=seed + batch * ROWS,
      stop_tokens=[],
    )
    for batch in range(batches)
  ]
  return sum(count(out.tokens, groups) for out in outs), outs


def engine_counts(engine, batches: int = 3):
  """Returns the counts of each group's texts, from requests to an engine."""
  rows_each = 512
  prompts = [group.prompt for group in GROUPS for _ in range(rows_each)]
  tokens = [
    [
      completion.tokens
      for completion in engine.generate(
        prompts,
        sampling=stack(GROUPS, rows_each),
        max_new_tokens=LENGTH,
        seed=10_000 * batch,
        stop_tokens=[],
      )
    ]
    for batch in range(batches)
  ]
  return sum(count(texts, GROUPS) for texts in tokens)


def _p_value(counts, probs) -> float:
  """Returns the p-value of Pearson's chi-square test.

  Cells that expect fewer than 5 are merged.
  """
  counts, probs = counts.reshape(-1), probs.reshape(-1)
  if counts[probs == 0].any():
    return 0.0
  order = np.argsort(probs, kind='stable')
  expected, observed = probs[order] * counts.sum(), counts[order]
  # The smallest cells merge until they expect 5 together and no cell is left
  # that expects fewer.
  merged = np.searchsorted(expected, 5)
  while merged < len(expected) and expected[:merged].sum() < 5:
    merged += 1
  merge = lambda cells: np.r_[cells[:merged].sum(), cells[merged:]]
  expected, observed = merge(expected), merge(observed)
  expected, observed = expected[expected > 0], observed[expected > 0]
  if len(expected) == 1:
    return 1.0
  statistic = ((observed - expected) ** 2 / expected).sum()
  return float(scipy.stats.chi2.sf(statistic, len(expected) - 1))


def p_values_of(groups, counts, distributions):
  """Returns p of the joint distribution of tokens, by (group, window)."""
  result = {}
  for group, group_counts in zip(groups, counts, strict=True):
    for window, kept in WINDOWS.items():
      others = tuple(t for t in range(LENGTH) if t not in kept)
      result[group.name, window] = _p_value(
        group_counts.sum(axis=others),
        distributions[group.name].sum(axis=others),
      )
  return result


def drafter_of(pair, shape, law='iid', coupled=False):
  return model_drafter(pair[1], shape, law, coupled)


def check_distribution(groups, counts, distributions):
  p_values = p_values_of(groups, counts, distributions)
  for key, p in p_values.items():
    # All of a test together are wrong once in a thousand seeds.
    assert p > 0.001 / len(p_values), (key, p)
  for group, group_counts in zip(groups, counts, strict=True):
    if group.name == 'greedy':
      certain = distributions['greedy'] == 1
      assert certain.sum() == 1
      np.testing.assert_array_equal(group_counts > 0, certain)


def check_law(target, distributions, batches, *, drafter, verifier, seed):
  """Checks the distribution, and that rounds of each kind occurred."""
  args = dict(drafter=drafter, verifier=verifier, seed=seed)
  counts, outs = texts(target, GROUPS, batches, **args)
  check_distribution(GROUPS, counts, distributions)
  rejected = outs[0].num_accepted_per_pos[:, 0] < outs[0].rounds
  assert rejected.mean() > 0.2
  check_whole_drafts(outs[0])
  return outs


def check_whole_drafts(out):
  """Checks that drafts were accepted in full by rows with several rounds."""
  is_whole = out.num_accepted_per_pos[:, -1] > 0
  assert (is_whole & (out.rounds > 1)).mean() > 0.01
