"""The rules for trees are lossless: every draft is enumerated, in float64."""

import dataclasses
import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from rounds import (
  check_float32,
  check_lossless,
  check_same,
  cut_tables,
  expected_tokens,
)

from specsamp.conformance.enumeration import (
  TOLERANCE,
  enumerate_drafts,
  run_tables,
)
from specsamp.drafting.draft import TokenTree
from specsamp.verification import (
  KSeqVerifier,
  NaiveVerifier,
  TraversalVerifier,
  k_seq,
  make,
  probs,
  tree_ops,
)

IID, WITHOUT, FIXED = 'iid', 'without_replacement', 'deterministic'
TOP = 'top_plus_one'
# Each rule under each law that it accepts.
PAIRS = (
  ('multi_candidate', IID),
  ('multi_candidate', WITHOUT),
  ('naive', IID),
  ('naive', WITHOUT),
  ('naive', TOP),
  ('naive', FIXED),
  ('top_plus_one', TOP),
  ('k_seq', IID),
  ('traversal', IID),
  ('traversal', WITHOUT),
  ('traversal', TOP),
)
# In even trees all nodes of a depth have the same number of children.
EVEN = {
  'chain3': TokenTree.chain(3),
  '2x2': TokenTree.branching((2, 2)),
  '2x1x1': TokenTree.branching((2, 1, 1)),
}
UNEVEN = {
  'leaf_early': TokenTree((-1, 0, 0, 1, 1)),
  'not_by_levels': TokenTree((-1, 0, 1, 0, 1, 3)),
}
TREES = EVEN | UNEVEN
STAR = TokenTree.branching((3,))


@functools.cache
def _tables(tree, vocab):
  # With this seed rows stop with weights other than 0 and 1 on every tree.
  return cut_tables(vocab, tree, seed=1)


@functools.cache
def _drafts(law, tree, vocab):
  return [enumerate_drafts(table, tree, law) for table in _tables(tree, vocab)]


@functools.cache
def _outcomes(rule, law, tree, vocab=3):
  tables, drafts = _tables(tree, vocab), _drafts(law, tree, vocab)
  # The naive rule reads no law: with one law for all it is compiled once.
  stated = FIXED if rule == 'naive' else law
  return run_tables(make(rule), tables, tree, stated, drafts)


def _expected(rule, law, tree, vocab=3):
  outcomes = _outcomes(rule, law, tree, vocab)
  return np.array(list(map(expected_tokens, outcomes)))


all_rules = pytest.mark.parametrize(('rule', 'law'), PAIRS)
all_trees = pytest.mark.parametrize('name', TREES)
even_trees = pytest.mark.parametrize('name', EVEN)


@all_trees
@all_rules
def test_emits_the_targets_distribution(rule, law, name):
  for outcome in _outcomes(rule, law, TREES[name]):
    check_lossless(outcome)


@all_rules
def test_more_tokens_than_candidates_and_as_many(rule, law):
  for outcome in _outcomes(rule, law, STAR, vocab=4):
    check_lossless(outcome)


@all_rules
def test_float32_is_as_good_as_float32_can_be(rule, law):
  tree = TREES['leaf_early']
  for outcome in run_tables(
    make(rule), _tables(tree, 3), tree, law, dtype=np.float32
  ):
    check_float32(outcome)


@pytest.mark.parametrize(
  ('rule', 'law', 'chain_rule'),
  [
    ('multi_candidate', IID, 'token'),
    ('multi_candidate', WITHOUT, 'token'),
    ('top_plus_one', TOP, 'token'),
    ('traversal', IID, 'block'),
    ('traversal', WITHOUT, 'block'),
    ('traversal', TOP, 'block'),
    ('k_seq', IID, 'token'),
  ],
)
def test_on_a_chain_it_is_the_rule_for_chains(rule, chain_rule, law):
  tree = TREES['chain3']
  check_same(_outcomes(rule, law, tree), _outcomes(chain_rule, IID, tree))


# Which rule accepts more: exact sums over all drafts of each rule's law.


@even_trees
@pytest.mark.parametrize(
  ('more', 'fewer'),
  [
    (('multi_candidate', WITHOUT), ('multi_candidate', IID)),
    (('multi_candidate', IID), ('naive', IID)),
    (('multi_candidate', WITHOUT), ('naive', WITHOUT)),
    (('top_plus_one', TOP), ('naive', TOP)),
  ],
  ids=str,
)
def test_order_of_expected_tokens(more, fewer, name):
  """Yang et al., appendix C: MCSS >= MCNS on samples of either law.

  On trees with even levels. On (-1, 0, 0, 2) it is false: a later sibling goes
  deeper, and MCSS prefers the first.
  """
  gains = _expected(*more, TREES[name]) - _expected(*fewer, TREES[name])
  assert gains.min() >= -TOLERANCE
  if more[0] != fewer[0] or TREES[name].width > 1:
    assert gains.max() > 1e-2


@all_trees
@pytest.mark.parametrize(
  ('rule', 'law'),
  [
    ('multi_candidate', IID),
    ('multi_candidate', WITHOUT),
    ('top_plus_one', TOP),
  ],
)
def test_traversal_expects_no_fewer_tokens_than_top_down(rule, law, name):
  tree = TREES[name]
  gains = _expected('traversal', law, tree) - _expected(rule, law, tree)
  assert gains.min() >= -TOLERANCE
  if tree.depth > 1:
    assert gains.max() > 1e-2


def _best_acceptance(p, q, count):
  """Returns the most that a lossless rule accepts of independent candidates.

  A minimal cut: p(A) + 1 - q(A)^C, minimized over sets A of tokens.
  """
  sets = np.array(list(itertools.product([False, True], repeat=len(p))))
  return (sets @ p + 1 - (sets @ q) ** count).min()


@pytest.mark.parametrize('rule', ['k_seq', 'multi_candidate', 'naive'])
def test_k_seq_is_near_the_best_and_no_rule_beats_it(rule):
  """SpecTr: K-SEQ accepts at least 1 - 1/e of what can be accepted."""
  for outcome in _outcomes(rule, IID, STAR, vocab=4):
    table = outcome.table
    count = table.valid[0].sum()
    best = _best_acceptance(table.p[0], table.q[0], count)
    accepted = expected_tokens(outcome) - 1
    assert accepted <= best + TOLERANCE, table.name
    if rule == 'k_seq':
      # rho stops short of its root by up to C / 2^24.
      assert accepted >= (1 - 1 / np.e) * best - 1e-6, table.name


# The proof can fail: these rules are wrong in the ways of real code bases.


@dataclasses.dataclass(frozen=True)
class CountsTwinsTwice(NaiveVerifier):
  """Goes down to either of two siblings with the same token."""

  def stop_probs(self, draft, p_bnv):
    tree = draft.tree
    descend = probs.at_tokens(p_bnv, tree.parents[1:], draft)
    end = 1 - tree_ops.at(descend, tree_ops.children(tree), 0).sum(-1)
    return tree_ops.reach(tree, descend) * jnp.maximum(end, 0)


@dataclasses.dataclass(frozen=True)
class TraversalThatLeavesAsCandidates(TraversalVerifier):
  """Stops as traversal does and leaves as multi-candidate does."""

  def leave_probs(self, draft, p_bnv, node_b):
    return make('multi_candidate').leave_probs(draft, p_bnv, node_b)


@dataclasses.dataclass(frozen=True)
class RhoOfOne(KSeqVerifier):
  """Accepts each candidate as if it were the only one."""


def _error(verifier, tree, drawn, stated, change=lambda drafts: drafts):
  """Returns the error of drafts of the law `drawn` that state another law."""
  vocab = 4 if tree is STAR else 3  # as in other tests, to share compilations
  tables = [t for t in _tables(tree, vocab) if t.name.endswith('whole')]
  drafts = [change(enumerate_drafts(table, tree, drawn)) for table in tables]
  outcomes = run_tables(verifier, tables, tree, stated, drafts)
  return max(outcome.error for outcome in outcomes)


@pytest.mark.parametrize(
  ('verifier', 'tree', 'drawn', 'stated'),
  [
    (make('multi_candidate'), STAR, WITHOUT, IID),
    (make('multi_candidate'), STAR, IID, WITHOUT),
    (make('top_plus_one'), STAR, FIXED, TOP),
    (make('traversal'), STAR, WITHOUT, IID),
    (make('traversal'), STAR, FIXED, TOP),
    (make('k_seq'), STAR, WITHOUT, IID),
    (CountsTwinsTwice(), STAR, IID, IID),
    (TraversalThatLeavesAsCandidates(), TREES['2x1x1'], WITHOUT, WITHOUT),
  ],
  ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_wrong_rules_are_found_out(verifier, tree, drawn, stated):
  assert _error(verifier, tree, drawn, stated) > 1e-3


def test_rho_below_its_bound_is_found_out(monkeypatch):
  ones = lambda p, q, count, max_count: jnp.ones(count.shape, p.dtype)
  monkeypatch.setattr(k_seq, '_solve', ones)
  assert _error(RhoOfOne(), STAR, IID, IID) > 1e-3


@pytest.mark.parametrize(
  ('rule', 'law'),
  [('multi_candidate', WITHOUT), ('traversal', WITHOUT), ('traversal', TOP)],
)
def test_siblings_in_another_order_are_found_out(rule, law):
  """The order tells from which q each was drawn, or that it was not."""
  turn = lambda drafts: dataclasses.replace(
    drafts, tokens=drafts.tokens[:, [0, 3, 2, 1]]
  )
  assert _error(make(rule), STAR, law, law, turn) > 1e-3


@pytest.mark.parametrize(
  ('rule', 'law'),
  [('multi_candidate', IID), ('traversal', WITHOUT), ('naive', IID)],
)
def test_validity_that_looks_at_the_token_is_found_out(rule, law):
  """`Draft.valid` forbids to drop a candidate because it is improbable.

  The naive rule stays exact, because it reads no q.
  """

  def drop(drafts):
    q = np.take_along_axis(drafts.q[:, 0], drafts.tokens, axis=1)
    valid = drafts.valid & (q > 0.2)
    valid[:, 0] = True
    return dataclasses.replace(drafts, valid=valid)

  error = _error(make(rule), STAR, law, law, drop)
  if rule == 'naive':
    assert error <= TOLERANCE
  else:
    assert error > 1e-3
