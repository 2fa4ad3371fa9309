"""Texts of tiny models, counted, beside their target's distribution."""

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
  """Group name -> float64 [V, .., V]: the target's, of five tokens."""
  texts = np.indices((VOCAB,) * LENGTH).reshape(LENGTH, -1).T
  rows = np.zeros((len(GROUPS), len(texts), 8), np.int32)
  for i, group in enumerate(GROUPS):
    start = len(group.prompt)
    rows[i, :, :start] = group.prompt
    rows[i, :, start : start + LENGTH] = texts

  def conditionals(params, tokens, sampling):
    out = target.transformer.apply({'params': params}, tokens)
    return transforms.probabilities(out.logits, sampling)

  of_rows = stack(GROUPS, len(texts))
  probs = jax.jit(conditionals)(
    target.params, rows.reshape(-1, 8), of_rows
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
  """The sampling values of the groups' rows, [B]."""
  values = {
    field.name: np.repeat(
      np.asarray([getattr(group.sampling, field.name) for group in groups]),
      rows_each,
    )
    for field in dataclasses.fields(SamplingParams)
  }
  return SamplingParams(**values)


def texts(
  pair, groups, batches, *, seed, drafter=None, verifier='token', length=LENGTH
):
  """Counts [V, .., V] of each group's texts, and what `generate` returned."""
  target, _ = pair
  each = ROWS // len(groups)
  prompts = [group.prompt for group in groups for _ in range(each)]
  sampling = stack(groups, each)
  counts = np.zeros((len(groups), VOCAB**length), np.int64)
  stats = []
  for batch in range(batches):
    got = specsamp.generate(
      target,
      prompts,
      drafter=drafter,
      verifier=verifier,
      sampling=sampling,
      max_new_tokens=length,
      seed=seed + batch * ROWS,
      stop_tokens=[],
    )
    stats.append(got)
    tokens = np.asarray(got.tokens).reshape(len(groups), each, length)
    index = tokens @ VOCAB ** np.arange(length)[::-1]
    for i in range(len(groups)):
      counts[i] += np.bincount(index[i], minlength=VOCAB**length)
  return counts.reshape(-1, *(VOCAB,) * length), stats


def _p_value(counts, probs) -> float:
  """Of Pearson's chi-square; cells that expect fewer than 5 are one cell."""
  counts, probs = counts.reshape(-1), probs.reshape(-1)
  if counts[probs == 0].any():
    return 0.0
  order = np.argsort(probs, kind='stable')
  expected, observed = probs[order] * counts.sum(), counts[order]
  # The smallest cells merge, until they expect 5 together and none is left
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
  """(group, window) -> p of the joint distribution of its tokens."""
  result = {}
  for group, count in zip(groups, counts, strict=True):
    for window, kept in WINDOWS.items():
      gone = tuple(t for t in range(LENGTH) if t not in kept)
      result[group.name, window] = _p_value(
        count.sum(axis=gone), distributions[group.name].sum(axis=gone)
      )
  return result


def drafter_of(pair, shape, law='iid', coupled=False):
  _, draft = pair
  return model_drafter(draft, shape, law, coupled)


def check_distribution(groups, counts, distributions):
  p_values = p_values_of(groups, counts, distributions)
  for key, p in p_values.items():
    # All of a test together are wrong once in a thousand seeds.
    assert p > 0.001 / len(p_values), (key, p)
  for group, count in zip(groups, counts, strict=True):
    if group.name == 'greedy':
      assert distributions['greedy'].max() == 1
      np.testing.assert_array_equal(count > 0, distributions['greedy'] == 1)


def check_events(pair, stats, **args):
  """Each kind of round must have occurred, or nothing has been shown."""
  rejected = stats[0].num_accepted_per_pos[:, 0] < stats[0].rounds
  assert rejected.mean() > 0.2
  # The same rows, cut after γ + 1 tokens: who has them in one round has all of
  # its draft accepted, and in the run that is tested a round after that.
  draft_len = args['drafter'].tree.depth
  assert draft_len + 1 < LENGTH
  _, (short,) = texts(pair, GROUPS, 1, length=draft_len + 1, **args)
  full = short.rounds == 1
  assert (short.num_accepted_per_pos[full] == 1).all()
  assert (stats[0].rounds[full] > 1).all()
  assert full.mean() > 0.01
