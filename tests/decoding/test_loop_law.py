"""Emitted texts have the target's distribution: chi-square of sampled texts.

The exactness of verifiers is proved by enumeration, in float64, so one verifier
is enough for each kind of loop: a chain, a tree, extra tokens, rows without a
draft, coupling. Here the whole path is compared with the distribution: caches,
rewinding, keys, cuts. Other verifiers, shapes and drafters are slow. Known
mistakes must fail the same test (`test_loop_law_mutants.py`).
"""

import dataclasses

import jax.numpy as jnp
import pytest
from laws import (
  GROUPS,
  LENGTH,
  VOCAB,
  check_distribution,
  check_law,
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
  model_drafter,
  ngram_drafter,
  ngram_or_model,
)
from specsamp.drafting.policy import Policy
from specsamp.drafting.trained import trained_drafter

pytestmark = [
  pytest.mark.integration,
  pytest.mark.usefixtures('optimized'),
]

_CHAIN = TokenTree.chain(3)
_NARROW, _WIDE = TokenTree.branching((2, 2)), TokenTree.branching((3, 1))
# Leaves at every depth, and nodes of a level with one and two children.
_UNEVEN = TokenTree((-1, 0, 0, 0, 1, 1, 3, 4))
_DYNAMIC = DynamicTree.of(6, 3, 2)


def _slow(*case):
  return pytest.param(*case, marks=pytest.mark.slow)


@pytest.fixture(scope='module')
def pair():
  """Target and draft, whose distributions overlap by about a half."""
  return tiny.model(VOCAB, 0, max_length=8), tiny.draft(VOCAB, 1, max_length=8)


@pytest.fixture(scope='module')
def distributions(pair):
  return distributions_of(pair[0])


@sizes
def test_autoregressive(pair, distributions, batches):
  counts, outs = texts(pair[0], GROUPS, batches, seed=1)
  check_distribution(GROUPS, counts, distributions)
  assert all((out.rounds == LENGTH).all() for out in outs)


@sizes
@pytest.mark.parametrize(
  ('verifier', 'draft_len'),
  [('block', 3), _slow('block', 1), _slow('token', 1), _slow('token', 3)],
)
def test_speculative(pair, distributions, verifier, draft_len, batches):
  drafter = drafter_of(pair, draft_len)
  check_law(
    pair[0], distributions, batches, drafter=drafter, verifier=verifier, seed=2
  )


@pytest.mark.slow  # quick trees: a trained drafter's, and two vocabularies
@sizes
@pytest.mark.parametrize(
  ('verifier', 'law', 'tree'),
  [
    ('multi_candidate', 'without_replacement', _NARROW),
    ('multi_candidate', 'iid', _WIDE),
    ('traversal', 'without_replacement', _WIDE),
    ('k_seq', 'iid', _NARROW),
    ('greedy_block', 'iid', TokenTree.branching((2, 1, 1))),
    # As many candidates as tokens, and levels of unlike nodes.
    ('top_plus_one', 'top_plus_one', TokenTree((-1, 0, 0, 0, 0, 1, 1, 4))),
    ('naive', 'deterministic', TokenTree.branching((2, 1, 1))),
    # Uneven: the first of three candidates has two children, the last has one.
    ('traversal', 'iid', TokenTree((-1, 0, 0, 0, 1, 1, 3))),
  ],
)
def test_trees(pair, distributions, verifier, law, tree, batches):
  """In the rows with top-k there are more candidates than tokens."""
  drafter = drafter_of(pair, tree, law)
  outs = check_law(
    pair[0], distributions, batches, drafter=drafter, verifier=verifier, seed=5
  )
  assert all(out.num_accepted_per_rank[:, 1].any() for out in outs)


@sizes
@pytest.mark.parametrize(
  ('kind', 'verifier', 'law', 'tree'),
  [
    ('eagle', 'traversal', 'without_replacement', _UNEVEN),
    ('eagle3', 'multi_candidate', 'without_replacement', _UNEVEN),
    ('dflash', 'multi_candidate', 'without_replacement', _UNEVEN),
    ('eagle', 'naive', 'deterministic', _DYNAMIC),
    # The same loop with other heads or masks than above.
    _slow('eagle_parallel', 'multi_candidate', 'without_replacement', _UNEVEN),
    _slow('eagle', 'block', 'iid', _CHAIN),
    _slow('eagle_parallel', 'token', 'iid', _CHAIN),
    _slow('eagle_parallel', 'naive', 'deterministic', _DYNAMIC),
    _slow('hydra', 'token', 'iid', _CHAIN),
    _slow('hydra', 'naive', 'deterministic', _NARROW),
    _slow('medusa', 'block', 'iid', _CHAIN),
    _slow('medusa', 'multi_candidate', 'without_replacement', _WIDE),
    _slow('medusa_parallel', 'token', 'iid', _CHAIN),
    _slow('medusa_parallel', 'traversal', 'without_replacement', _NARROW),
    _slow('eagle3', 'block', 'iid', _CHAIN),
    _slow('dflash', 'block', 'iid', _CHAIN),
  ],
)
def test_trained_drafters(
  pair, distributions, kind, verifier, law, tree, batches
):
  target, fields = pair[0], {}
  if kind == 'eagle3':  # q is 0 for a token that the target emits
    target = tiny.model(VOCAB, 0, max_length=8, num_layers=6)
    distributions, fields = distributions_of(target), {'draft_vocab': 3}
  trained = tiny.trained(target, kind, **fields)
  drafter = trained_drafter(trained, target, tree, law)
  check_law(
    target, distributions, batches, drafter=drafter, verifier=verifier, seed=7
  )


@pytest.mark.slow  # checkpoints/test_heads.py compares each step with torch
@sizes
@pytest.mark.parametrize(
  ('kind', 'verifier', 'law', 'tree'),
  [
    ('eagle3', 'block', 'iid', _CHAIN),
    ('eagle3', 'traversal', 'without_replacement', _UNEVEN),
    ('eagle', 'block', 'iid', _CHAIN),
    ('eagle', 'multi_candidate', 'without_replacement', _UNEVEN),
    ('medusa', 'token', 'iid', _CHAIN),
    ('medusa', 'multi_candidate', 'without_replacement', _UNEVEN),
  ],
)
def test_published_drafters(kind, verifier, law, tree, batches):
  layers = 6 if kind == 'eagle3' else 2
  target = tiny.model(VOCAB, 0, max_length=8, num_layers=layers)
  drafter = trained_drafter(tiny.published(target, kind), target, tree, law)
  distributions = distributions_of(target)
  check_law(
    target, distributions, batches, drafter=drafter, verifier=verifier, seed=9
  )


@pytest.mark.extended
@sizes
@pytest.mark.parametrize(
  ('rows', 'letters', 'verifier', 'law', 'tree'),
  [
    # The draft lacks a token, and the target's embedding is padded.
    (6, 3, 'multi_candidate', 'without_replacement', _WIDE),
    _slow(VOCAB, 6, 'block', 'iid', _CHAIN),
    _slow(VOCAB, 3, 'token', 'iid', _CHAIN),
    _slow(6, 5, 'token', 'iid', _CHAIN),
  ],
)
def test_two_vocabularies(
  pair, distributions, rows, letters, verifier, law, tree, batches
):
  """A token that the draft lacks is not drafted, a padded row not emitted."""
  padded = pair[0].for_target(tiny.model(rows, 9))
  target = dataclasses.replace(padded, tokenizer=pair[0].tokenizer)
  draft = tiny.draft(letters, 1, max_length=8).for_target(target)
  assert draft.config.vocab_size == target.config.vocab_size == rows
  assert target.config.num_tokens == VOCAB
  assert draft.config.num_tokens == min(letters, VOCAB)
  drafter = model_drafter(draft, tree, law)
  check_law(
    target, distributions, batches, drafter=drafter, verifier=verifier, seed=9
  )


def _lookup(pair, kind, tree):
  documents = ([1, 0, 2, 1, 3, 0, 0], [2, 3, 3, 1, 2, 0], [3, 2, 1, 1, 0, 3])
  if kind == 'lookahead':
    return lookahead_drafter(tree, window=1)
  ngram = ngram_drafter(tree, 3, 2, datastore=documents)
  if kind == 'ngram':
    return ngram
  return ngram_or_model(ngram, drafter_of(pair, tree.depth - 1))


@sizes
@pytest.mark.parametrize(
  ('kind', 'verifier', 'tree'),
  [
    ('lookahead', 'naive', TokenTree.branching((2, 1))),
    ('ngram or model', 'block', TokenTree.chain(2)),
    _slow('ngram', 'naive', _CHAIN),
    _slow('ngram', 'naive', _WIDE),
    _slow('lookahead', 'naive', TokenTree.chain(2)),
    _slow('ngram or model', 'token', _CHAIN),
  ],
)
def test_lookups(pair, distributions, kind, verifier, tree, batches):
  """Deterministic drafts; some rows have none while others do."""
  drafter = _lookup(pair, kind, tree)
  args = dict(drafter=drafter, verifier=verifier, seed=8)
  counts, (first, *_) = texts(pair[0], GROUPS, batches, **args)
  check_distribution(GROUPS, counts, distributions)
  is_whole = first.num_accepted_per_pos[:, -1] > 0
  assert (is_whole & (first.rounds > 1)).mean() > 0.01
  accepted, drafted = first.num_accepted_per_pos, first.num_drafted_per_pos
  assert (accepted[:, 0] < drafted[:, 0]).mean() > 0.1
  has_none = drafted[:, 0] < first.rounds
  assert has_none.any() == (kind != 'ngram or model')


@sizes
@pytest.mark.parametrize('kind', ['model', _slow('eagle')])
def test_adaptive(pair, distributions, kind, batches, monkeypatch):
  """Rounds without a draft alternate with others: caches lag and catch up."""
  alternate = lambda self, *_: jnp.where(self.shared.waited > 0, 1, 0)
  monkeypatch.setattr(Policy, 'choose', alternate)
  drafter = drafter_of(pair, 3)
  if kind == 'eagle':
    drafter = trained_drafter(tiny.trained(pair[0], kind), pair[0], 3)
  drafter = adaptive_drafter(drafter, (0, 3), (1, 1), 0.3)
  counts, (first, *_) = texts(
    pair[0], GROUPS, batches, drafter=drafter, verifier='block', seed=9
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
  check_law(
    pair[0], distributions, batches, drafter=drafter, verifier='naive', seed=10
  )


@sizes
def test_coupled(pair, distributions, batches):
  """The distribution is over seeds: each seed has one text."""
  drafter = drafter_of(pair, _NARROW, 'deterministic', True)
  check_law(
    pair[0], distributions, batches, drafter=drafter, verifier='gumbel', seed=6
  )


def test_one_way_of_sampling(pair, distributions):
  """Batches skip the transforms that none of their rows needs."""
  for group in GROUPS[:2]:
    args = dict(drafter=drafter_of(pair, 3), verifier='block', seed=3)
    counts, _ = texts(pair[0], [group], 6, **args)
    assert counts.sum() >= 20_000
    check_distribution([group], counts, distributions)
