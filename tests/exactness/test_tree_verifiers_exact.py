"""The rules for trees are lossless: every draft is enumerated, in float64."""

import dataclasses
import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from rounds import expected_tokens, possible
from scipy import optimize

from specsamp.conformance.enumeration import (
  TOLERANCE,
  enumerate_drafts,
  make_tables,
  run,
)
from specsamp.drafting.draft import TokenTree
from specsamp.verification import (
  KSeqVerifier,
  NaiveVerifier,
  TopPlusOneVerifier,
  TraversalVerifier,
  k_seq,
  make,
  probs,
  top_plus_one,
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
)
# Levels of these are even: all nodes of a depth have as many children.
EVEN = {
  'chain3': TokenTree.chain(3),
  '2x2': TokenTree.branching((2, 2)),
  '2x1x1': TokenTree.branching((2, 1, 1)),
  # Parts of those above, and the star below with a level more.
  'chain1': TokenTree.chain(1),
  'chain2': TokenTree.chain(2),
  '3x1': TokenTree.branching((3, 1)),
}
_SLOW = ('chain1', 'chain2', '3x1')
UNEVEN = {
  'leaf_early': TokenTree((-1, 0, 0, 1, 1)),
  'not_by_levels': TokenTree((-1, 0, 1, 0, 1, 3, 0)),
}
TREES = EVEN | UNEVEN
STAR = TokenTree.branching((3,))


@functools.cache
def _tables(tree, vocab):
  """Tables of all kinds, wholly drafted and with candidates missing."""
  shapes = [(vocab,) * i + (tree.width,) for i in range(tree.depth)]

  def cuts(rng):
    yield 'whole', [np.ones(shape, bool) for shape in shapes]
    yield 'some', [rng.random(shape) < 0.7 for shape in shapes]

  # Where rows stop with weights that are neither 0 nor 1 on every tree.
  return make_tables(vocab, tree.depth, cuts, seed=1)


@functools.cache
def _drafts(law, tree, vocab):
  return [enumerate_drafts(table, tree, law) for table in _tables(tree, vocab)]


@functools.cache
def _rounds(rule, law, tree, vocab=3):
  tables, drafts = _tables(tree, vocab), _drafts(law, tree, vocab)
  # The naive rule does not read the law: stating one for all, it is compiled
  # once.
  stated = FIXED if rule == 'naive' else law
  return run(make(rule), tables, tree, stated, drafts)


def _expected(rule, law, tree, vocab=3):
  rounds = _rounds(rule, law, tree, vocab)
  return np.array(list(map(expected_tokens, rounds)))


all_rules = pytest.mark.parametrize(('rule', 'law'), PAIRS)


def _each(trees):
  return pytest.mark.parametrize(
    'name',
    [
      pytest.param(name, marks=[pytest.mark.slow] if name in _SLOW else [])
      for name in trees
    ],
  )


all_trees, even_trees = _each(TREES), _each(EVEN)


@all_trees
@all_rules
def test_emits_the_targets_distribution(rule, law, name):
  """In one test: workers that share a file would each enumerate the drafts."""
  for round_ in _rounds(rule, law, TREES[name]):
    assert round_.error <= TOLERANCE, round_.table.name
    for chances in (round_.stop, round_.leave):
      assert (chances >= 0).all(), round_.table.name  # and no NaN
      np.testing.assert_allclose(
        chances.sum(-1), 1, rtol=0, atol=TOLERANCE, err_msg=round_.table.name
      )
    # Never what the target cannot emit.
    assert (round_.leave[round_.drafts.p == 0] == 0).all(), round_.table.name
    assert (round_.stop[~possible(round_)] == 0).all(), round_.table.name


@all_rules
def test_more_tokens_than_candidates_and_as_many(rule, law):
  for round_ in _rounds(rule, law, STAR, vocab=4):
    assert round_.error <= TOLERANCE, round_.table.name


@all_rules
def test_float32_is_as_good_as_float32_can_be(rule, law):
  tree = TREES['leaf_early']
  for round_ in run(make(rule), _tables(tree, 3), tree, law, dtype=np.float32):
    assert round_.error <= 1e-6, round_.table.name
    assert (round_.leave[round_.drafts.p == 0] == 0).all(), round_.table.name


@pytest.mark.parametrize(
  'length',
  [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2)), 3],
)
@pytest.mark.parametrize(
  ('rule', 'law', 'chain_rule'),
  [
    ('multi_candidate', IID, 'token'),
    ('multi_candidate', WITHOUT, 'token'),
    ('top_plus_one', TOP, 'token'),
    ('traversal', IID, 'block'),
    ('traversal', WITHOUT, 'block'),
  ],
)
def test_on_a_chain_it_is_the_rule_for_chains(rule, chain_rule, law, length):
  tree = TokenTree.chain(length)
  pairs = zip(
    _rounds(rule, law, tree), _rounds(chain_rule, IID, tree), strict=True
  )
  for tree_round, chain_round in pairs:
    # What is left at a node that a row hardly stops at is made of rounding.
    ended, chain_ended = (
      round_.stop[..., None] * round_.leave
      for round_ in (tree_round, chain_round)
    )
    np.testing.assert_allclose(
      ended, chain_ended, rtol=0, atol=TOLERANCE, err_msg=tree_round.table.name
    )


# Which rule keeps more. Exact sums over all drafts, so no sampling error; each
# rule judges samples of its own law.


@even_trees
@pytest.mark.parametrize(
  ('more', 'fewer'),
  [
    (('multi_candidate', WITHOUT), ('multi_candidate', IID)),
    (('multi_candidate', IID), ('naive', IID)),
    (('multi_candidate', WITHOUT), ('naive', WITHOUT)),
    (('naive', WITHOUT), ('naive', IID)),
    (('top_plus_one', TOP), ('naive', TOP)),
  ],
  ids=str,
)
def test_order_of_expected_tokens(more, fewer, name):
  """Yang et al., appendix C: MCSS >= MCNS on samples of either law.

  On trees with even levels. Elsewhere it is false: see the next test.
  """
  gains = _expected(*more, TREES[name]) - _expected(*fewer, TREES[name])
  assert gains.min() >= -TOLERANCE
  if more[0] != fewer[0] or TREES[name].width > 1:
    assert gains.max() > 1e-2


def test_a_later_sibling_that_goes_deeper_turns_the_order():
  """MCSS prefers the first sibling, the naive rule none."""
  tree = TokenTree((-1, 0, 0, 2))
  candidates = _expected('multi_candidate', WITHOUT, tree)
  gains = candidates - _expected('naive', WITHOUT, tree)
  assert gains.min() < -0.1
  assert gains.max() > 0.1


@all_trees
@pytest.mark.parametrize('law', [IID, WITHOUT])
def test_traversal_expects_no_fewer_tokens_than_multi_candidate(law, name):
  tree = TREES[name]
  gains = _expected('traversal', law, tree) - _expected(
    'multi_candidate', law, tree
  )
  assert gains.min() >= -TOLERANCE
  if tree.depth > 1:
    assert gains.max() > 1e-2


def _subsets(vocab):
  """bool [2^V, V]: all sets of tokens."""
  return np.array(list(itertools.product([False, True], repeat=vocab)))


def _best_acceptance(p, q, count):
  """The most that any lossless rule accepts of `count` independent candidates.

  Moving p onto candidates is a flow from sets of candidates to the tokens in
  them. A cut leaves a set A of tokens on the sink's side at p(A) and then must
  stop each set that is not within A: p(A) + 1 - q(A)^C, the least over A.
  """
  sets = _subsets(len(p))
  return (sets @ p + 1 - (sets @ q) ** count).min()


def test_best_acceptance_is_that_of_the_linear_program():
  for table in _tables(STAR, 4)[::6]:
    p, q = table.p[0], table.q[0]
    drafts = list(itertools.product(range(4), repeat=2))
    reward = [-(y in draft) for draft in drafts for y in range(4)]
    moved = np.eye(len(drafts) * 4).reshape(len(drafts), 4, -1)
    result = optimize.linprog(
      reward,
      A_eq=np.concatenate([moved.sum(1), moved.sum(0)]),
      b_eq=np.concatenate([[q[a] * q[b] for a, b in drafts], p]),
    )
    assert abs(-result.fun - _best_acceptance(p, q, 2)) < 1e-8, table.name


@pytest.mark.parametrize('rule', ['k_seq', 'multi_candidate', 'naive'])
def test_k_seq_is_near_the_best_and_no_rule_beats_it(rule):
  """SpecTr: K-SEQ accepts at least 1 - 1/e of what can be accepted."""
  for round_ in _rounds(rule, IID, STAR, vocab=4):
    table = round_.table
    count = table.valid[0].sum()
    best = _best_acceptance(table.p[0], table.q[0], count)
    accepted = expected_tokens(round_) - 1
    assert accepted <= best + TOLERANCE, table.name
    if rule == 'k_seq':
      # rho stops short of its root by up to C / 2^24.
      assert accepted >= (1 - 1 / np.e) * best - 1e-6, table.name


def test_one_candidate_of_k_seq_is_the_token_rule():
  tree = TREES['chain3']
  for k_seq_round, token_round in zip(
    _rounds('k_seq', IID, tree), _rounds('token', IID, tree), strict=True
  ):
    np.testing.assert_allclose(
      k_seq_round.stop, token_round.stop, rtol=0, atol=TOLERANCE
    )


# The proof can fail: rules that are wrong in the ways of real code bases.


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
  """The error for drafts of the law `drawn`, verified as the law `stated`."""
  vocab = 4 if tree is STAR else 3  # as elsewhere, to share compilations
  tables = [t for t in _tables(tree, vocab) if t.name.endswith('whole')]
  drafts = [change(enumerate_drafts(table, tree, drawn)) for table in tables]
  rounds = run(verifier, tables, tree, stated, drafts)
  return max(round_.error for round_ in rounds)


@pytest.mark.parametrize(
  ('verifier', 'tree', 'drawn', 'stated'),
  [
    (make('multi_candidate'), STAR, WITHOUT, IID),
    (make('multi_candidate'), STAR, IID, WITHOUT),
    (make('multi_candidate'), STAR, FIXED, WITHOUT),
    (make('top_plus_one'), STAR, FIXED, TOP),
    (make('traversal'), STAR, WITHOUT, IID),
    (make('traversal'), STAR, FIXED, WITHOUT),
    (make('k_seq'), STAR, WITHOUT, IID),
    (make('k_seq'), STAR, FIXED, IID),
    (CountsTwinsTwice(), STAR, IID, IID),
    (TraversalThatLeavesAsCandidates(), TREES['2x1x1'], IID, IID),
    (TraversalThatLeavesAsCandidates(), TREES['2x1x1'], WITHOUT, WITHOUT),
  ],
  ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_wrong_rules_are_found_out(verifier, tree, drawn, stated):
  assert _error(verifier, tree, drawn, stated) > 1e-3


@pytest.mark.parametrize('law', [IID, WITHOUT, FIXED])
def test_typical_acceptance_is_not_lossless(law):
  """But where p is a one-hot, as in greedy rows."""
  for round_ in run(make('typical_lossy'), _tables(STAR, 4), STAR, law):
    kind = round_.table.name.rsplit('-', 1)[0]
    if kind in ('one_hot_p', 'one_hot_both'):
      assert round_.error <= TOLERANCE, round_.table.name
    elif kind == 'mild':
      assert round_.error > 1e-2, round_.table.name


def test_rho_below_its_bound_is_found_out(monkeypatch):
  ones = lambda overlap, count, most, dtype: jnp.ones(count.shape, dtype)
  monkeypatch.setattr(k_seq, 'solve', ones)
  assert _error(RhoOfOne(), STAR, IID, IID) > 1e-3


@dataclasses.dataclass(frozen=True)
class AllOfQ(TopPlusOneVerifier):
  """Accepts the token that was drawn as if it were drawn from q."""


def test_q_for_that_of_the_draw_is_found_out(monkeypatch):
  excess = top_plus_one._excess
  whole = lambda *args: (excess(*args)[0], jnp.ones_like(excess(*args)[1]))
  monkeypatch.setattr(top_plus_one, '_excess', whole)
  assert _error(AllOfQ(), STAR, TOP, TOP) > 1e-3


@pytest.mark.parametrize('rule', ['multi_candidate', 'traversal'])
def test_siblings_in_another_order_are_found_out(rule):
  """Without replacement the order tells from which q each was drawn."""
  turn = lambda drafts: dataclasses.replace(
    drafts, tokens=drafts.tokens[:, [0, 3, 2, 1]]
  )
  assert _error(make(rule), STAR, WITHOUT, WITHOUT, turn) > 1e-3


@pytest.mark.parametrize(('rule', 'law'), [p for p in PAIRS if FIXED not in p])
def test_validity_that_looks_at_the_token_is_found_out(rule, law):
  """Throwing a candidate away for being improbable: `Draft.valid` forbids it.

  The naive rule does not mind: it reads no q, and trusts none.
  """

  def throw(drafts):
    q = np.take_along_axis(drafts.q[:, 0], drafts.tokens, axis=1)
    valid = drafts.valid & (q > 0.2)
    valid[:, 0] = True
    return dataclasses.replace(drafts, valid=valid)

  error = _error(make(rule), STAR, law, law, throw)
  if rule == 'naive':
    assert error <= TOLERANCE
  else:
    assert error > 1e-3
