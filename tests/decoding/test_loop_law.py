"""Emitted texts have the target's distribution: chi-square of sampled texts.

The verifiers' own exactness is proved by enumeration, in float64, so one of
them will do for each kind of loop: a chain, a tree, with extra tokens, with
rows that draft nothing, coupled. Here the whole path is held to the
distribution: caches, rewinding, keys, cuts. Mistakes that are known to creep in
must fail the same test. Other verifiers, shapes and drafters are --slow.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import tiny
from flax import struct

import specsamp
from specsamp import SamplingParams
from specsamp.drafting import (
  LanguageModelDrafter,
  TokenTree,
  adaptive_drafter,
  lookahead_drafter,
  model_drafter,
  ngram_drafter,
  ngram_or_model,
)
from specsamp.drafting.adaptive import Policy
from specsamp.drafting.trained import trained_drafter
from specsamp.sampling import draw, transforms
from specsamp.verification.token import TokenVerifier

pytestmark = [
  pytest.mark.integration,
  pytest.mark.usefixtures('optimized'),
]

VOCAB = 4
# Three tokens do not reach the round after four accepted at once; five do.
LENGTH = 5
WINDOWS = {'first three': (0, 1, 2), 'last three': (2, 3, 4)}


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
CI, FULL = 6, 400  # batches: 3,072 and 204,800 texts of each group

sizes = pytest.mark.parametrize(
  'batches',
  [
    pytest.param(CI, id='ci'),
    pytest.param(FULL, id='full', marks=pytest.mark.slow),
  ],
)


@pytest.fixture(scope='module')
def pair():
  """Target and draft, whose distributions overlap by about a half."""
  return tiny.model(VOCAB, 0, max_length=8), tiny.draft(VOCAB, 1, max_length=8)


@pytest.fixture(scope='module')
def distributions(pair):
  return distributions_of(pair[0])


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

  of_rows = _stack(GROUPS, len(texts))
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


def _stack(groups, rows_each):
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
  sampling = _stack(groups, each)
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


def _p_values(groups, counts, distributions):
  """(group, window) -> p of the joint distribution of its tokens."""
  result = {}
  for group, count in zip(groups, counts, strict=True):
    for window, kept in WINDOWS.items():
      gone = tuple(t for t in range(LENGTH) if t not in kept)
      result[group.name, window] = _p_value(
        count.sum(axis=gone), distributions[group.name].sum(axis=gone)
      )
  return result


def _drafter(pair, shape, law='iid', coupled=False):
  _, draft = pair
  return model_drafter(draft, shape, law, coupled)


def check_distribution(groups, counts, distributions):
  p_values = _p_values(groups, counts, distributions)
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


@sizes
def test_autoregressive(pair, distributions, batches):
  counts, stats = texts(pair, GROUPS, batches, seed=1)
  check_distribution(GROUPS, counts, distributions)
  assert all((got.rounds == LENGTH).all() for got in stats)


@sizes
@pytest.mark.parametrize(
  ('verifier', 'draft_len'),
  [
    ('block', 3),
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in (('block', 1), ('token', 1), ('token', 3))
    ),
  ],
)
def test_speculative(pair, distributions, verifier, draft_len, batches):
  args = dict(drafter=_drafter(pair, draft_len), verifier=verifier, seed=2)
  counts, stats = texts(pair, GROUPS, batches, **args)
  check_distribution(GROUPS, counts, distributions)
  check_events(pair, stats, **args)


@pytest.mark.slow  # a trained drafter's tree below, and one of a model in
# `test_vocabulary_law.py`
@sizes
@pytest.mark.parametrize(
  ('verifier', 'law', 'tree'),
  [
    ('multi_candidate', 'without_replacement', TokenTree.branching((2, 2))),
    ('multi_candidate', 'iid', TokenTree.branching((3, 1))),
    ('traversal', 'without_replacement', TokenTree.branching((3, 1))),
    ('k_seq', 'iid', TokenTree.branching((2, 2))),
    ('greedy_block', 'iid', TokenTree.branching((2, 1, 1))),
    # As many candidates as tokens, and levels of unlike nodes.
    ('top_plus_one', 'top_plus_one', TokenTree((-1, 0, 0, 0, 0, 1, 1, 4))),
    ('naive', 'deterministic', TokenTree.branching((2, 1, 1))),
    # Uneven: three candidates, of which the first has two and the last has one.
    ('traversal', 'iid', TokenTree((-1, 0, 0, 0, 1, 1, 3))),
  ],
)
def test_trees(pair, distributions, verifier, law, tree, batches):
  """Candidates are more than the support in the rows with top-k."""
  drafter = _drafter(pair, tree, law)
  args = dict(drafter=drafter, verifier=verifier, seed=5)
  counts, stats = texts(pair, GROUPS, batches, **args)
  check_distribution(GROUPS, counts, distributions)
  check_events(pair, stats, **args)
  assert all(got.num_accepted_per_rank[:, 1].any() for got in stats)


_CHAIN = TokenTree.chain(3)
_NARROW, _WIDE = TokenTree.branching((2, 2)), TokenTree.branching((3, 1))
# Leaves at every depth, and nodes of a level with one and two children.
_UNEVEN = TokenTree((-1, 0, 0, 0, 1, 1, 3, 4))


@sizes
@pytest.mark.parametrize(
  ('kind', 'verifier', 'law', 'tree'),
  [
    ('eagle', 'traversal', 'without_replacement', _UNEVEN),
    ('eagle3', 'multi_candidate', 'without_replacement', _UNEVEN),
    ('dflash', 'multi_candidate', 'without_replacement', _UNEVEN),
    # The same loop with other heads or masks than above.
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in (
        ('eagle_parallel', 'multi_candidate', 'without_replacement', _UNEVEN),
        ('eagle', 'block', 'iid', _CHAIN),
        ('eagle_parallel', 'token', 'iid', _CHAIN),
        ('hydra', 'token', 'iid', _CHAIN),
        ('hydra', 'naive', 'deterministic', _NARROW),
        ('medusa', 'block', 'iid', _CHAIN),
        ('medusa', 'multi_candidate', 'without_replacement', _WIDE),
        ('medusa_parallel', 'token', 'iid', _CHAIN),
        ('eagle3', 'block', 'iid', _CHAIN),
        ('dflash', 'token', 'iid', _CHAIN),
        ('dflash', 'block', 'iid', _CHAIN),
        ('dflash', 'naive', 'deterministic', _NARROW),
        ('medusa_parallel', 'traversal', 'without_replacement', _NARROW),
      )
    ),
  ],
)
def test_trained_drafters(
  pair, distributions, kind, verifier, law, tree, batches
):
  fields = {}
  if kind == 'eagle3':  # q is 0 of a token that the target may well emit
    pair = tiny.model(VOCAB, 0, max_length=8, num_layers=6), None
    distributions, fields = distributions_of(pair[0]), {'draft_vocab': 3}
  target, _ = pair
  trained = tiny.trained(target, kind, **fields)
  drafter = trained_drafter(trained, target, tree, law)
  args = dict(drafter=drafter, verifier=verifier, seed=7)
  counts, stats = texts(pair, GROUPS, batches, **args)
  check_distribution(GROUPS, counts, distributions)
  check_events(pair, stats, **args)


def _lookup(pair, kind, tree):
  documents = ([1, 0, 2, 1, 3, 0, 0], [2, 3, 3, 1, 2, 0], [3, 2, 1, 1, 0, 3])
  match kind:
    case 'lookahead':
      return lookahead_drafter(tree, window=1)
    case 'ngram':
      return ngram_drafter(tree, 3, 2, datastore=documents)
    case 'ngram or model':  # some rows do one, some the other
      return ngram_or_model(
        ngram_drafter(tree, 3, 2, datastore=documents), _drafter(pair, tree)
      )


@sizes
@pytest.mark.parametrize(
  ('kind', 'verifier', 'tree'),
  [
    ('lookahead', 'naive', TokenTree.branching((2, 1))),
    ('ngram or model', 'block', TokenTree.chain(2)),
    # The same loop with other shapes and rules than above.
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in (
        ('ngram', 'naive', _CHAIN),
        ('ngram', 'naive', _WIDE),
        ('lookahead', 'naive', TokenTree.chain(2)),
        ('ngram or model', 'token', _CHAIN),
      )
    ),
  ],
)
def test_lookups(pair, distributions, kind, verifier, tree, batches):
  """Deterministic drafts; some rows have none while others do."""
  drafter = _lookup(pair, kind, tree)
  args = dict(drafter=drafter, verifier=verifier, seed=8)
  counts, stats = texts(pair, GROUPS, batches, **args)
  check_distribution(GROUPS, counts, distributions)
  (first, *_) = stats
  all_of_it = first.num_accepted_per_pos[:, -1] > 0
  assert (all_of_it & (first.rounds > 1)).mean() > 0.01
  assert (
    first.num_accepted_per_pos[:, 0] < first.num_drafted_per_pos[:, 0]
  ).mean() > 0.1
  none = first.num_drafted_per_pos[:, 0] < first.rounds
  assert none.any() == (kind != 'ngram or model')


@sizes
@pytest.mark.parametrize(
  'kind', ['model', pytest.param('eagle', marks=pytest.mark.slow)]
)
def test_adaptive(pair, distributions, kind, batches, monkeypatch):
  """A round without a draft, one with, and so on: caches lag and catch up."""
  in_turn = lambda self, *_: jnp.where(self.waited > 0, 2, 0)
  monkeypatch.setattr(Policy, 'choose', in_turn)
  target, _ = pair
  drafter = _drafter(pair, 3)
  if kind == 'eagle':
    drafter = trained_drafter(tiny.trained(target, kind), target, 3)
  drafter = adaptive_drafter(drafter, (0, 1, 3), (1, 1, 1), 0.3)
  counts, (first, *_) = texts(
    pair, GROUPS, batches, drafter=drafter, verifier='block', seed=9
  )
  check_distribution(GROUPS, counts, distributions)
  # Rounds without a draft, and drafts that were cut short.
  per_pos = first.num_drafted_per_pos
  assert (per_pos[:, 0] < first.rounds).all() and per_pos[:, 0].all()
  assert (per_pos[:, 2] < per_pos[:, 0]).any() and per_pos[:, 2].any()


@sizes
def test_coupled(pair, distributions, batches):
  """Over seeds, of which each has one text."""
  drafter = _drafter(pair, TokenTree.branching((2, 2)), 'deterministic', True)
  args = dict(drafter=drafter, verifier='gumbel', seed=6)
  counts, stats = texts(pair, GROUPS, batches, **args)
  check_distribution(GROUPS, counts, distributions)
  check_events(pair, stats, **args)


def test_one_way_of_sampling(pair, distributions):
  """Batches that skip the steps which no row of theirs asks for."""
  drafter = _drafter(pair, 3)
  for group in GROUPS[:2]:
    args = dict(drafter=drafter, verifier='block', seed=3)
    counts, _ = texts(pair, [group], 6, **args)
    assert counts.sum() >= 20_000
    check_distribution([group], counts, distributions)


# What must not pass. Wrong verifiers are found out by enumeration too.


def _check_fails(pair, distributions, drafter, verifier):
  counts, _ = texts(pair, GROUPS, 5, drafter=drafter, verifier=verifier, seed=4)
  p_values = _p_values(GROUPS, counts, distributions)
  assert p_values[PLAIN.name, 'first three'] < 1e-6


@dataclasses.dataclass(frozen=True)
class WrongResidual(TokenVerifier):
  """After a rejection it draws from p, and not from what is left of it."""

  def leave_probs(self, draft, p_bnv, node_b):
    return jnp.take_along_axis(p_bnv, node_b[:, None, None], axis=1)[:, 0]


@pytest.mark.slow
def test_a_wrong_residual_fails(pair, distributions):
  _check_fails(pair, distributions, _drafter(pair, 1), WrongResidual())


@struct.dataclass
class WrongQ(LanguageModelDrafter):
  """It reports q at a temperature that it has not drawn from."""

  def propose(self, *args):
    draft, state = super().propose(*args)
    q = jnp.sqrt(draft.q)
    return draft.replace(q=q / q.sum(axis=-1, keepdims=True)), state


def _as(kind, drafter):
  names = [field.name for field in dataclasses.fields(drafter)]
  return kind(**{name: getattr(drafter, name) for name in names})


def test_a_wrong_q_fails(pair, distributions):
  _check_fails(pair, distributions, _as(WrongQ, _drafter(pair, 1)), 'token')


@dataclasses.dataclass(frozen=True)
class Retraced(TokenVerifier):
  """The right rule by another name, so that it is compiled anew."""


@struct.dataclass
class Mislabelled(LanguageModelDrafter):
  """Its candidates may be the same token twice, and it states otherwise."""

  def propose(self, *args):
    draft, state = super().propose(*args)
    return draft.replace(law='without_replacement'), state


@pytest.mark.slow
def test_draws_with_replacement_called_without_fail(pair, distributions):
  drafter = _drafter(pair, TokenTree.branching((3,)))
  drafter = _as(Mislabelled, drafter)
  _check_fails(pair, distributions, drafter, 'multi_candidate')


def test_bits_shared_by_draft_and_verdict_fail(
  pair, distributions, monkeypatch
):
  stream_keys = draw.stream_keys
  monkeypatch.setattr(
    draw,
    'stream_keys',
    lambda keys, at, stream: stream_keys(keys, at, draw.Stream.DRAFT),
  )
  _check_fails(pair, distributions, _drafter(pair, 1), Retraced())
