"""The bound on acceptance, against all sets of tokens, all rules and rounds."""

import itertools

import jax
import numpy as np
import pytest
from testing import tiny

from specsamp.conformance.enumeration import KINDS, make_tables, run_tables
from specsamp.drafting import TokenTree, model_drafter
from specsamp.evaluation import bounds
from specsamp.evaluation.bounds import best_acceptance, best_accepted_length
from specsamp.evaluation.methods import Method
from specsamp.sampling import transforms
from specsamp.sampling.transforms import SamplingParams
from specsamp.verification import make

VOCAB = 5
LAWS = ('iid', 'without_replacement', 'top_plus_one', 'deterministic')
PROMPTS = [[1, 0, 2], [3], [2, 2, 1, 0]]


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


@pytest.mark.parametrize(
  ('rule', 'law', 'count'),
  [
    ('multi_candidate', 'iid', 2),
    ('multi_candidate', 'without_replacement', 3),
    ('k_seq', 'iid', 2),
    ('traversal', 'without_replacement', 2),
    ('greedy_block', 'iid', 2),
    ('top_plus_one', 'top_plus_one', 3),
    ('naive', 'deterministic', 2),
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


@pytest.mark.parametrize('law', LAWS)
def test_bound_of_a_tree_of_one_level(law):
  """Linear programming finds the least cut."""
  for table in _tables(['dense', 'zeros', 'close'], 4, 2):
    p, q = table.p[0], table.q[0]
    count = min(2, (q > 0).sum()) if law != 'iid' else 2
    expected = best_acceptance(p, q, law, count)
    found = best_accepted_length(table, TokenTree.branching((2,)), law)
    assert abs(found - expected) < 1e-6, table.name


@pytest.mark.parametrize(
  ('rule', 'law', 'factors'),
  [('block', 'iid', (1, 1, 1)), ('naive', 'deterministic', (2, 2))],
)
def test_bound_of_drafts_whose_best_rule_is_known(rule, law, factors):
  """Block verification is optimal on chains: Sun et al. 2403.10444."""
  tree = TokenTree.branching(factors)
  valid = [np.ones((3,) * i + (tree.width,), bool) for i in range(tree.depth)]
  tables = make_tables(3, tree.depth, lambda rng: [('', valid)], seed=3)
  for found in run_tables(make(rule), tables, tree, law):
    lengths = found.stop * np.array(tree.depths)
    accepted = (found.drafts.weight[:, None] * lengths).sum()
    bound = best_accepted_length(found.table, tree, law)
    assert abs(accepted - bound) < 1e-6, found.table.name


@pytest.fixture(scope='module')
def pair():
  return tiny.model(5, 0), tiny.draft(5, 1)


def _method(pair, verifier, law, temperature=0.8, coupled=False):
  drafter = model_drafter(pair[1], TokenTree.branching((3,)), law, coupled)
  return Method('m', drafter, verifier, temperature, 0.9)


def _after_prompts(model):
  """Returns p after each prompt, from a separate pass."""
  padded = np.zeros((len(PROMPTS), 4), np.int32)
  for row, prompt in zip(padded, PROMPTS, strict=True):
    row[: len(prompt)] = prompt

  @jax.jit
  def probs(params, tokens_bt):
    logits = model.transformer.apply({'params': params}, tokens_bt).logits
    sampling = SamplingParams(0.8, top_p=0.9).broadcast(4)
    return jax.vmap(transforms.probabilities, (0, None))(logits, sampling)

  p_btv = np.asarray(probs(model.params, padded))
  return [p_btv[i, len(prompt) - 1] for i, prompt in enumerate(PROMPTS)]


def test_bound_of_p_and_q_after_each_prompt(pair):
  law = 'without_replacement'
  expected = [
    best_acceptance(p, q, law, min(3, (q > 0).sum()))
    for p, q in zip(*map(_after_prompts, pair), strict=True)
  ]
  method = _method(pair, 'multi_candidate', law)
  found = bounds.measure(pair[0], method, PROMPTS, 1, seed=0)
  assert found.rounds == 3
  np.testing.assert_allclose(found.at_most, np.mean(expected), atol=1e-5)


@pytest.mark.parametrize(
  ('verifier', 'law'),
  [('top_plus_one', 'top_plus_one'), ('naive', 'deterministic')],
)
def test_optimal_rules_reach_the_bound(pair, verifier, law):
  """Within 4 standard deviations of the number of rounds."""
  method = _method(pair, verifier, law)
  found = bounds.measure(pair[0], method, PROMPTS * 8, 40, seed=0)
  assert found.rounds > 300
  assert abs(found.accepted - found.at_most) < 2 / np.sqrt(found.rounds)


def test_methods_without_a_bound(pair):
  assert bounds.is_bounded(_method(pair, 'traversal', 'iid'))
  for method in (
    _method(pair, 'naive', 'iid', temperature=0.0),
    _method(pair, 'typical_lossy', 'iid'),
    _method(pair, 'gumbel', 'deterministic', coupled=True),
    Method('autoregressive', None, 'token', 1.0, 1.0),
  ):
    assert not bounds.is_bounded(method)
