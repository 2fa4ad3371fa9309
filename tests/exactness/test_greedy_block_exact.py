"""Greedy block verification: every draft of K paths, in float64."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest
from rounds import expected_tokens, possible

from specsamp.conformance.enumeration import (
  TOLERANCE,
  Table,
  make_tables,
  normalize,
  run,
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
  '2': TokenTree.branching((2,)),
  '3': TokenTree.branching((3,)),
  '2x1': TokenTree.branching((2, 1)),
  '3x1': TokenTree.branching((3, 1)),
  '2x1x1': TokenTree.branching((2, 1, 1)),
  'path_by_path': TokenTree((-1, 0, 1, 0, 3)),
}
all_trees = pytest.mark.parametrize('name', TREES)


@functools.cache
def _tables(tree):
  """Of all kinds, and one with ties of p / q."""
  shapes = [(3,) * i + (tree.width,) for i in range(tree.depth)]

  def cuts(rng):
    yield 'whole', [np.ones(shape, bool) for shape in shapes]
    yield 'some', [rng.random(shape) < 0.7 for shape in shapes]

  tables = make_tables(3, tree.depth, cuts, seed=2)
  rng = np.random.default_rng(3)
  p, q = (
    [normalize(rng.integers(1, 3, (3,) * (i + 1))) for i in range(depths)]
    for depths in (tree.depth + 1, tree.depth)
  )
  every = [np.ones(shape, bool) for shape in shapes]
  return [*tables, Table('ties-whole', p, q, every)]


@functools.cache
def _rounds(rule, tree):
  return run(make(rule), _tables(tree), tree, 'iid')


@all_trees
def test_emits_the_targets_distribution(name):
  for round_ in _rounds('greedy_block', TREES[name]):
    assert round_.error <= TOLERANCE, round_.table.name
    for chances in (round_.stop, round_.leave):
      assert (chances >= 0).all(), round_.table.name  # and no NaN
      np.testing.assert_allclose(
        chances.sum(-1), 1, rtol=0, atol=TOLERANCE, err_msg=round_.table.name
      )
    assert (round_.leave[round_.drafts.p == 0] == 0).all(), round_.table.name
    assert (round_.stop[~possible(round_)] == 0).all(), round_.table.name


@dataclasses.dataclass(frozen=True)
class Changed(GreedyBlockVerifier):
  """By another name, so that what is changed below is compiled anew."""

  how: str


@pytest.mark.parametrize('edges', [(), (1.0,)])
def test_any_order_will_do(edges, monkeypatch):
  monkeypatch.setattr(greedy_block, '_EDGES', edges)
  tree = TREES['3x1']
  for round_ in run(Changed(f'edges {edges}'), _tables(tree), tree, 'iid'):
    assert round_.error <= TOLERANCE, round_.table.name


def test_float32_is_as_good_as_float32_can_be():
  tree = TREES['3x1']
  for round_ in run(
    make('greedy_block'), _tables(tree), tree, 'iid', dtype=np.float32
  ):
    assert round_.error <= 1e-6, round_.table.name


def test_of_one_path_it_is_block_verification():
  tree = TREES['chain2']
  for one, other in zip(
    _rounds('greedy_block', tree), _rounds('block', tree), strict=True
  ):
    ended, block_ended = (
      round_.stop[..., None] * round_.leave for round_ in (one, other)
    )
    np.testing.assert_allclose(
      ended, block_ended, rtol=0, atol=TOLERANCE, err_msg=one.table.name
    )


@pytest.mark.parametrize('name', ['2', '3', '2x1', '3x1', '2x1x1'])
def test_expects_no_fewer_tokens_than_the_block_rule_on_one_path(name):
  """In these tables; the next test has one where it does not."""
  tree, chain = TREES[name], TokenTree.chain(TREES[name].depth)
  rounds = [r for r in _rounds('greedy_block', tree) if 'whole' in r.table.name]
  one = lambda table: dataclasses.replace(
    table, valid=[valid[..., :1] for valid in table.valid]
  )
  blocks = run(make('block'), [one(r.table) for r in rounds], chain, 'iid')
  gains = np.asarray(
    [
      expected_tokens(round_) - expected_tokens(block)
      for round_, block in zip(rounds, blocks, strict=True)
    ]
  )
  assert gains.min() >= -TOLERANCE
  assert gains.max() > 0.1
  first = [
    1 - (found.drafts.weight * found.stop[:, 0]).sum()
    for found in (*rounds, *blocks)
  ]
  assert (np.subtract(*np.split(np.array(first), 2)) >= -TOLERANCE).all()


def test_a_longer_draft_may_still_expect_fewer():
  """How many paths race depends on the next token alone.

  More of the first token is kept with two, but less of the second token's
  paths, and what follows the first is never accepted.
  """
  tree, chain = TREES['2x1'], TokenTree.chain(2)
  p = [np.array([0.63, 0.37]), np.eye(2)[::-1], np.full((2, 2, 2), 0.5)]
  q = [np.full(2, 0.5), np.eye(2)[[0, 0]]]
  every = [np.ones((2,) * i + (2,), bool) for i in range(2)]
  table = Table('made', p, q, every)
  (more,) = run(make('greedy_block'), [table], tree, 'iid')
  (fewer,) = run(make('block'), [table], chain, 'iid')
  first = lambda round_: 1 - (round_.drafts.weight * round_.stop[:, 0]).sum()
  np.testing.assert_allclose([first(more), first(fewer)], [0.88, 0.87])
  tokens = [expected_tokens(more), expected_tokens(fewer)]
  np.testing.assert_allclose(tokens, [2.13, 2.24])


def test_paths_that_are_not_drafted_do_not_race():
  """Three would be best, and of two the first alone is better than both."""
  p = [np.array([0.5107198, 0.11166664, 0.37761356]), np.full((3, 3), 1 / 3)]
  q = [np.array([0.71987113, 0.21130701, 0.06882186])]
  accepted = {}
  for count in (1, 2, 3):
    table = Table('made', p, q, [np.arange(3) < count])
    (found,) = run(make('greedy_block'), [table], TREES['3'], 'iid')
    assert found.error <= TOLERANCE
    accepted[count] = 1 - (found.drafts.weight * found.stop[:, 0]).sum()
  assert accepted[2] == pytest.approx(accepted[1], abs=TOLERANCE)
  assert accepted[3] > accepted[1] + 0.02


# The proof can fail.


_ONE_MORE = ((0, 0), (1, 0))


@pytest.mark.parametrize(
  'how',
  ['q for its law', 'all paths are left', 'others are not', 'one path more'],
)
def test_a_broken_rule_is_found_out(how, monkeypatch):
  ranking, left_after = greedy_block.Ranking, greedy_block._left_after
  factors = ranking.factors
  match how:
    case 'q for its law':
      ones = lambda self, left_bk: jnp.ones_like(self.upto_bm)
      monkeypatch.setattr(ranking, 'factors', ones)
    case 'all paths are left':
      same = lambda left_bk, *args: left_bk
      monkeypatch.setattr(greedy_block, '_left_after', same)
    case 'others are not':
      alone = lambda *args: jnp.eye(2)[:1] + 0 * left_after(*args)
      monkeypatch.setattr(greedy_block, '_left_after', alone)
    case 'one path more':
      more = lambda self, left_bk: factors(self, jnp.pad(left_bk, _ONE_MORE))
      monkeypatch.setattr(ranking, 'factors', more)
  tree = TREES['2x1']
  tables = [t for t in _tables(tree) if t.name == 'dense-whole']
  (round_,) = run(Changed(how), tables, tree, 'iid')
  assert round_.error > 1e-3


@pytest.mark.parametrize('law', ['without_replacement', 'top_plus_one'])
def test_paths_that_were_drawn_otherwise_are_refused(law):
  with pytest.raises(ValueError, match=f"got law '{law}', expected 'iid'"):
    check_law(make('greedy_block'), law, TREES['2x1'])


@pytest.mark.parametrize(
  'tree', [TokenTree.branching((2, 2)), TokenTree((-1, 0, 0, 1))], ids=str
)
def test_other_trees_are_refused(tree):
  with pytest.raises(UserError, match='paths of one length that part at'):
    check_law(make('greedy_block'), 'iid', tree)
