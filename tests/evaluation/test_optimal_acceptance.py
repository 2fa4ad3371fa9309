"""The bound on acceptance, against all sets of tokens and all rules."""

import itertools

import numpy as np
import pytest

from specsamp.conformance.enumeration import KINDS, make_tables, run_tables
from specsamp.drafting.draft import TokenTree
from specsamp.errors import UserError
from specsamp.evaluation.bounds import best_acceptance
from specsamp.verification import make

VOCAB = 5
LAWS = ('iid', 'without_replacement', 'top_plus_one', 'deterministic')


def _chance(q, draft, law):
  """Returns the probability of these candidates in this order."""
  chance, left = 1.0, q.copy()
  for rank, x in enumerate(draft):
    if law == 'deterministic' or (
      law == 'top_plus_one' and rank < len(draft) - 1
    ):
      chance *= x == left.argmax()
    else:
      chance *= left[x] / left.sum() if left.sum() else 0
    if law != 'iid':
      left[x] = 0
  return chance


def _least_cut(p, q, law, count):
  """Returns 1 + min_H [p(H) - Pr(all in H)] over all sets H."""
  drafts = list(itertools.product(range(len(p)), repeat=count))
  chances = np.array([_chance(q, draft, law) for draft in drafts])
  sets = np.array(list(itertools.product([False, True], repeat=len(p))))
  within = sets[:, drafts].all(axis=-1)
  return 1 + (sets @ p - within @ chances).min()


def _tables(kinds, vocab=VOCAB, width=3):
  cuts = lambda rng: [('', [np.ones(width, bool)])]
  return make_tables(vocab, 1, cuts, seed=4, kinds=kinds)


@pytest.mark.parametrize('count', [1, 2, 3])
@pytest.mark.parametrize('law', LAWS)
def test_it_is_the_least_cut(law, count):
  for table in _tables([k for k in KINDS if not k.startswith('one_hot')]):
    p, q = table.p[0], table.q[0]
    if (q > 0).sum() >= count:
      expected = _least_cut(p, q, law, count)
      found = best_acceptance(p, q, law, count)
      assert abs(found - expected) < 1e-9, table.name


def test_a_peaked_q():
  """The remaining tokens have another time scale than the first."""
  p, q = np.array([0.1, 0.2, 0.7]), np.array([1 - 2e-6, 1e-6, 1e-6])
  for count in (1, 2, 3):
    expected = _least_cut(p, q, 'without_replacement', count)
    found = best_acceptance(p, q, 'without_replacement', count)
    assert abs(found - expected) < 1e-6


def test_no_token_remains():
  p, q = np.array([0.3, 0.7, 0]), np.array([1.0, 0, 0])
  for law in LAWS:
    assert best_acceptance(p, q, law, 0) == 0
    if law in LAWS[:2]:  # the other laws also choose tokens of q = 0
      assert abs(best_acceptance(p, q, law, 3) - 0.3) < 1e-12


@pytest.mark.parametrize('count', [1, 2, 3])
@pytest.mark.parametrize(
  ('rule', 'law'),
  [
    ('multi_candidate', 'iid'),
    ('multi_candidate', 'without_replacement'),
    ('k_seq', 'iid'),
    ('traversal', 'without_replacement'),
    ('greedy_block', 'iid'),
    ('top_plus_one', 'top_plus_one'),
    ('naive', 'deterministic'),
  ],
)
def test_no_rule_accepts_more_than_the_bound(rule, law, count):
  tree = TokenTree.branching((count,))
  for found in run_tables(make(rule), _tables(KINDS, 4, count), tree, law):
    p, q = found.table.p[0], found.table.q[0]
    accepted = 1 - (found.drafts.weight * found.stop[:, 0]).sum()
    if (q > 0).sum() < count:
      continue
    bound = best_acceptance(p, q, law, count)
    assert accepted <= bound + 1e-9, found.table.name
    if law in ('top_plus_one', 'deterministic'):
      assert abs(accepted - bound) < 1e-12, found.table.name


def test_refusals():
  even = np.full(2, 0.5)
  with pytest.raises(UserError, match="law: got 'iiid'"):
    best_acceptance(even, even, 'iiid', 2)
  with pytest.raises(UserError, match='count: got -1'):
    best_acceptance(even, even, 'iid', -1)
