"""Emitted texts have the target's distribution: chi-square of sampled texts.

The verifiers' own exactness is proved by enumeration, in float64, so one of
them will do for each kind of loop: a chain, a tree, with extra tokens, with
rows that draft nothing, coupled. Here the whole path is held to the
distribution: caches, rewinding, keys, cuts. Other verifiers, shapes and
drafters are --slow; mistakes that are known to creep in must fail the same test
(`test_loop_law_mutants.py`).
"""

import jax.numpy as jnp
import pytest
from laws import (
  GROUPS,
  LENGTH,
  VOCAB,
  check_distribution,
  check_events,
  distributions_of,
  drafter_of,
  sizes,
  texts,
)
from testing import tiny

from specsamp.drafting import (
  DynamicTree,
  TokenTree,
  adaptive_drafter,
  lookahead_drafter,
  ngram_drafter,
  ngram_or_model,
)
from specsamp.drafting.policy import Policy
from specsamp.drafting.trained import trained_drafter

pytestmark = [
  pytest.mark.integration,
  pytest.mark.usefixtures('optimized'),
]


@pytest.fixture(scope='module')
def pair():
  """Target and draft, whose distributions overlap by about a half."""
  return tiny.model(VOCAB, 0, max_length=8), tiny.draft(VOCAB, 1, max_length=8)


@pytest.fixture(scope='module')
def distributions(pair):
  return distributions_of(pair[0])


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
  args = dict(drafter=drafter_of(pair, draft_len), verifier=verifier, seed=2)
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
  drafter = drafter_of(pair, tree, law)
  args = dict(drafter=drafter, verifier=verifier, seed=5)
  counts, stats = texts(pair, GROUPS, batches, **args)
  check_distribution(GROUPS, counts, distributions)
  check_events(pair, stats, **args)
  assert all(got.num_accepted_per_rank[:, 1].any() for got in stats)


_CHAIN = TokenTree.chain(3)
_NARROW, _WIDE = TokenTree.branching((2, 2)), TokenTree.branching((3, 1))
# Leaves at every depth, and nodes of a level with one and two children.
_UNEVEN = TokenTree((-1, 0, 0, 0, 1, 1, 3, 4))
_DYNAMIC = DynamicTree.of(6, 3, 2)


@sizes
@pytest.mark.parametrize(
  ('kind', 'verifier', 'law', 'tree'),
  [
    ('eagle', 'traversal', 'without_replacement', _UNEVEN),
    ('eagle3', 'multi_candidate', 'without_replacement', _UNEVEN),
    ('dflash', 'multi_candidate', 'without_replacement', _UNEVEN),
    ('eagle', 'naive', 'deterministic', _DYNAMIC),
    # The same loop with other heads or masks than above.
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in (
        ('eagle_parallel', 'multi_candidate', 'without_replacement', _UNEVEN),
        ('eagle', 'block', 'iid', _CHAIN),
        ('eagle_parallel', 'token', 'iid', _CHAIN),
        ('eagle_parallel', 'naive', 'deterministic', _DYNAMIC),
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
        ngram_drafter(tree, 3, 2, datastore=documents),
        drafter_of(pair, TokenTree.chain(tree.depth - 1)),
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
  in_turn = lambda self, *_: jnp.where(self.of_all.waited > 0, 1, 0)
  monkeypatch.setattr(Policy, 'choose', in_turn)
  target, _ = pair
  drafter = drafter_of(pair, 3)
  if kind == 'eagle':
    drafter = trained_drafter(tiny.trained(target, kind), target, 3)
  drafter = adaptive_drafter(drafter, (0, 3), (1, 1), 0.3)
  counts, (first, *_) = texts(
    pair, GROUPS, batches, drafter=drafter, verifier='block', seed=9
  )
  check_distribution(GROUPS, counts, distributions)
  # Rounds without a draft, and drafts that were cut short.
  per_pos = first.num_drafted_per_pos
  assert (per_pos[:, 0] < first.rounds).all() and per_pos[:, 0].all()
  assert (per_pos[:, 2] < per_pos[:, 0]).any() and per_pos[:, 2].any()


@sizes
def test_dynamic_trees(pair, distributions, batches):
  """A model's cache holds more nodes than are kept, and in another order."""
  drafter = drafter_of(pair, _DYNAMIC, 'deterministic')
  args = dict(drafter=drafter, verifier='naive', seed=10)
  counts, stats = texts(pair, GROUPS, batches, **args)
  check_distribution(GROUPS, counts, distributions)
  check_events(pair, stats, **args)


@sizes
def test_coupled(pair, distributions, batches):
  """Over seeds, of which each has one text."""
  drafter = drafter_of(pair, TokenTree.branching((2, 2)), 'deterministic', True)
  args = dict(drafter=drafter, verifier='gumbel', seed=6)
  counts, stats = texts(pair, GROUPS, batches, **args)
  check_distribution(GROUPS, counts, distributions)
  check_events(pair, stats, **args)


def test_one_way_of_sampling(pair, distributions):
  """Batches that skip the steps which no row of theirs asks for."""
  drafter = drafter_of(pair, 3)
  for group in GROUPS[:2]:
    args = dict(drafter=drafter, verifier='block', seed=3)
    counts, _ = texts(pair, [group], 6, **args)
    assert counts.sum() >= 20_000
    check_distribution([group], counts, distributions)
