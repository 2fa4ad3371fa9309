"""Greedy block verification is lossless: every draft of K paths, in float64."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest
from rounds import (
  accepted_first,
  check_float32,
  check_lossless,
  check_same,
  cut_tables,
  expected_tokens,
)

from specsamp.conformance.enumeration import (
  TOLERANCE,
  Table,
  normalize,
  run_tables,
)
from specsamp.drafting.draft import TokenTree
from specsamp.errors import UserError
from specsamp.verification import (
  GreedyBlockVerifier,
  check_law,
  greedy_block,
  make,
)

TREES = {
  'chain2': TokenTree.chain(2),
  '3': TokenTree.branching((3,)),
  '2x1': TokenTree.branching((2, 1)),
  '2x1x1': TokenTree.branching((2, 1, 1)),
  'path_by_path': TokenTree((-1, 0, 1, 0, 3)),
}


@functools.cache
def _tables(tree):
  """Returns tables of all kinds, and one with ties of p / q."""
  rng = np.random.default_rng(3)
  p, q = (
    [normalize(rng.integers(1, 3, (3,) * (i + 1))) for i in range(depths)]
    for depths in (tree.depth + 1, tree.depth)
  )
  every = [np.ones((3,) * i + (tree.width,), bool) for i in range(tree.depth)]
  return [*cut_tables(3, tree, seed=2), Table('ties-whole', p, q, every)]


@functools.cache
def _outcomes(rule, tree):
  return run_tables(make(rule), _tables(tree), tree, 'iid')


@pytest.mark.parametrize('name', TREES)
def test_emits_the_targets_distribution(name):
  for outcome in _outcomes('greedy_block', TREES[name]):
    check_lossless(outcome)


@dataclasses.dataclass(frozen=True)
class Changed(GreedyBlockVerifier):
  """The rule under another name, so that a patched module is compiled again."""

  how: str


def test_any_order_will_do(monkeypatch):
  monkeypatch.setattr(greedy_block, '_EDGES', ())
  tree = TREES['3']
  verifier = Changed('edges')
  for outcome in run_tables(verifier, _tables(tree), tree, 'iid'):
    assert outcome.error <= TOLERANCE, outcome.table.name


def test_float32_is_as_good_as_float32_can_be():
  tree, rule = TREES['2x1'], make('greedy_block')
  for outcome in run_tables(rule, _tables(tree), tree, 'iid', dtype=np.float32):
    check_float32(outcome)


def test_of_one_path_it_is_block_verification():
  tree = TREES['chain2']
  check_same(_outcomes('greedy_block', tree), _outcomes('block', tree))


@pytest.mark.parametrize('name', ['3', '2x1'])
def test_expects_no_fewer_tokens_than_the_block_rule_on_one_path(name):
  """In these tables. A longer draft may expect fewer in others."""
  tree, chain = TREES[name], TokenTree.chain(TREES[name].depth)
  outcomes = [
    o for o in _outcomes('greedy_block', tree) if 'whole' in o.table.name
  ]
  one_path = [
    dataclasses.replace(o.table, valid=[v[..., :1] for v in o.table.valid])
    for o in outcomes
  ]
  blocks = run_tables(make('block'), one_path, chain, 'iid')
  pairs = list(zip(outcomes, blocks, strict=True))
  gains = [expected_tokens(a) - expected_tokens(b) for a, b in pairs]
  assert min(gains) >= -TOLERANCE
  assert max(gains) > 0.1
  for outcome, block in pairs:
    assert accepted_first(outcome) >= accepted_first(block) - TOLERANCE


@pytest.mark.parametrize(
  'how',
  ['q for q^G', 'all paths are left', 'others are not left', 'one path more'],
)
def test_a_broken_rule_is_found_out(how, monkeypatch):
  classes, left_after = greedy_block.Classes, greedy_block._left_after
  factors = classes.factors
  match how:
    case 'q for q^G':
      ones = lambda self, left_bk: jnp.ones_like(self.upto_bm)
      monkeypatch.setattr(classes, 'factors', ones)
    case 'all paths are left':
      same = lambda left_bk, *args: left_bk
      monkeypatch.setattr(greedy_block, '_left_after', same)
    case 'others are not left':
      alone = lambda *args: jnp.eye(2)[:1] + 0 * left_after(*args)
      monkeypatch.setattr(greedy_block, '_left_after', alone)
    case 'one path more':
      one_more = ((0, 0), (1, 0))
      more = lambda self, left_bk: factors(self, jnp.pad(left_bk, one_more))
      monkeypatch.setattr(classes, 'factors', more)
  tree = TREES['2x1']
  tables = [t for t in _tables(tree) if t.name == 'dense-whole']
  (outcome,) = run_tables(Changed(how), tables, tree, 'iid')
  assert outcome.error > 1e-3


def test_other_trees_are_refused():
  for tree in TokenTree.branching((2, 2)), TokenTree((-1, 0, 0, 1)):
    with pytest.raises(UserError, match='paths of one length that part at'):
      check_law(make('greedy_block'), 'iid', tree)
