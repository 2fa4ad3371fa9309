"""Tree search against all small trees, greedy growth and closed forms."""

import functools
import heapq
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsamp.drafting import TokenTree
from specsamp.planning.tree_search import (
  best_tree,
  branchings,
  expected_tokens,
  fastest_tree,
)


@st.composite
def _acceptance(draw, max_ranks=4):
  """Draws sixteenths in any order, also zeros: exact in float at any depth."""
  cuts = draw(st.lists(st.integers(0, 16), max_size=max_ranks))
  return np.diff([0, *sorted(cuts)]) / 16


@functools.cache
def _all_trees(max_size):
  """Returns every ordered tree, breadth first: parents never decrease."""
  return [
    TokenTree((-1, *parents))
    for size in range(1, max_size + 1)
    for parents in itertools.product(*map(range, range(1, size)))
    if list(parents) == sorted(parents)
  ]


@functools.cache
def _ranks(tree):
  """Returns the ranks on the path from the root to each node."""
  ranks = [()]
  for node, parent in enumerate(tree.parents[1:], start=1):
    ranks.append((*ranks[parent], tree.parents[1:node].count(parent)))
  return ranks


def _value(tree, acceptance):
  """Returns the tokens per round, path by path; 0 for too many children."""
  if any(rank >= len(acceptance) for path in _ranks(tree) for rank in path):
    return 0.0
  return sum(
    math.prod(acceptance[rank] for rank in path) for path in _ranks(tree)
  )


def _decreasing(ranks, share):
  """Returns probabilities that halve with rank and sum to `share`."""
  chances = 0.5 ** np.arange(ranks)
  return share * chances / chances.sum()


def test_all_trees_are_all():
  sizes = [tree.size for tree in _all_trees(7)]
  # Catalan numbers.
  assert [sizes.count(n) for n in range(1, 8)] == [1, 1, 2, 5, 14, 42, 132]


@settings(max_examples=150, deadline=None)
@given(_acceptance(), st.integers(1, 7), st.none() | st.integers(0, 7))
def test_best_of_all_small_trees(acceptance, num_nodes, max_depth):
  trees = [
    tree
    for tree in _all_trees(7)
    if tree.size <= num_nodes and (max_depth is None or tree.depth <= max_depth)
  ]
  value = lambda tree: _value(tree, acceptance)
  expected = max((value(tree), -tree.size, -tree.depth) for tree in trees)
  tree = best_tree(acceptance, num_nodes, max_depth)
  assert (value(tree), -tree.size, -tree.depth) == expected
  # Breadth first with siblings adjacent.
  assert list(tree.parents) == sorted(tree.parents)
  assert expected_tokens(tree, acceptance) == value(tree)


@settings(max_examples=30, deadline=None)
@given(_acceptance(), st.integers(0, 2**32 - 1))
def test_expected_tokens_of_any_numbering(acceptance, seed):
  """Numbering need not be breadth first."""
  rng = np.random.default_rng(seed)
  tree = TokenTree((-1, *(int(rng.integers(n)) for n in range(1, 7))))
  if max(len(tree.children(n)) for n in range(7)) <= len(acceptance):
    assert expected_tokens(tree, acceptance) == _value(tree, acceptance)


@pytest.mark.parametrize('max_depth', [None, 3, 10])
@pytest.mark.parametrize('share', [0.3, 0.8, 1.0])
def test_large_trees_match_greedy_growth(share, max_depth):
  """The most probable nodes are the best tree if acceptance decreases."""
  num_nodes, acceptance = 128, _decreasing(16, share)
  # A node is less probable than its parent and its earlier siblings, so the
  # most probable nodes are connected.
  total, heap = 0.0, [(-1.0, 0)]
  for _ in range(num_nodes):
    chance, depth = heapq.heappop(heap)
    total -= chance
    if depth != max_depth:
      for step in acceptance:
        heapq.heappush(heap, (chance * step, depth + 1))
  tree = best_tree(acceptance, num_nodes, max_depth)
  assert expected_tokens(tree, acceptance) == pytest.approx(total, rel=1e-12)
  assert tree.size == num_nodes
  assert max_depth is None or tree.depth <= max_depth
  assert list(tree.parents) == sorted(tree.parents)


@settings(max_examples=60, deadline=None)
@given(
  _acceptance(),
  st.dictionaries(st.integers(1, 7), st.integers(1, 9), min_size=1),
  st.integers(0, 3),
  st.none() | st.integers(0, 7),
)
def test_fastest_of_all_small_trees(acceptance, pass_ms, draft_ms, max_depth):
  def rate(tree, size):
    return _value(tree, acceptance) / (pass_ms[size] + tree.depth * draft_ms)

  tree, tokens_per_ms = fastest_tree(acceptance, pass_ms, draft_ms, max_depth)
  assert tokens_per_ms == max(
    rate(tree, size)
    for size in pass_ms
    for tree in _all_trees(7)
    if tree.size <= size and (max_depth is None or tree.depth <= max_depth)
  )
  assert tokens_per_ms == max(
    rate(tree, size) for size in pass_ms if size >= tree.size
  )
  assert max_depth is None or tree.depth <= max_depth
  assert list(tree.parents) == sorted(tree.parents)


@pytest.mark.parametrize(('budget', 'max_depth'), [(1, 3), (7, 2), (12, 4)])
def test_branchings_are_all_there(budget, max_depth):
  expected = [
    factors
    for depth in range(1, max_depth + 1)
    for factors in itertools.product(range(1, budget + 1), repeat=depth)
    if math.prod(factors) <= budget
  ]
  assert branchings(budget, max_depth) == expected


@pytest.mark.parametrize(
  ('budget', 'max_depth', 'count'),
  [(32, 4, 1073), (32, 6, 4143), (64, 4, 2964), (64, 6, 13272)],
)
def test_branchings_grow_as_documented(budget, max_depth, count):
  assert len(set(branchings(budget, max_depth))) == count


@settings(max_examples=60, deadline=None)
@given(_acceptance(max_ranks=8), st.lists(st.integers(1, 5), max_size=4))
def test_decreasing_factors_are_best_for_their_leaves(acceptance, factors):
  """Yang et al. 2401.06706, section 4.4, for any probabilities in any order.

  A branching emits 1 + S_1 + S_1 S_2 + .. tokens, where S_j is the probability
  of the first k_j ranks. Decreasing factors maximize every product.
  """
  acceptance = np.pad(acceptance, (0, 5))
  values = {
    order: expected_tokens(TokenTree.branching(order), acceptance)
    for order in itertools.permutations(factors)
  }
  first = tuple(sorted(factors, reverse=True))
  assert values[first] == max(values.values())
  shares = [acceptance[:k].sum() for k in first]
  assert values[first] == 1 + np.cumprod(shares).sum()


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (lambda: best_tree([0.5, -0.1], 4), 'at least 0, got -0.1'),
    (lambda: best_tree([0.5, float('nan')], 4), 'at least 0, got nan'),
    (lambda: best_tree([0.7, 0.4], 4), r'sum to at most 1, got 1\.'),
    (lambda: best_tree([0.5], 0), 'num_nodes must be at least 1, got 0'),
    (lambda: best_tree([0.5], 4, -1), 'max_depth must be at least 0, got -1'),
    (
      lambda: expected_tokens(TokenTree((-1, 0, 1, 1)), [0.5]),
      'node 1 has 2 children, but acceptance covers 1 ranks',
    ),
    (lambda: fastest_tree([0.5], {}, 1.0), 'at least one size'),
    (lambda: fastest_tree([0.5], {0: 1.0}, 1.0), 'at least 1, got 0'),
    (
      lambda: fastest_tree([0.5], {4: 0.0}, 1.0),
      r'pass_ms of 4 nodes must be above 0, got 0\.0',
    ),
    (lambda: fastest_tree([0.5], {4: 1.0}, -1.0), 'draft_ms .* got -1'),
    (lambda: branchings(0, 2), 'budget must be at least 1, got 0'),
  ],
)
def test_refusals(call, message):
  with pytest.raises(ValueError, match=message):
    call()


def test_acceptance_may_sum_to_one_after_rounding():
  assert best_tree([0.9, 0.1 + 1e-7], 3, max_depth=1).size == 3
