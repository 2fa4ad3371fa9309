"""Tree search against all small trees and greedy growth."""

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
  expected_tokens,
  fastest_tree,
)

_MAX_SIZE = 6


@st.composite
def _acceptance(draw):
  """Draws sixteenths in any order, also zeros: exact in float at any depth."""
  cuts = draw(st.lists(st.integers(0, 16), max_size=4))
  return np.diff([0, *sorted(cuts)]) / 16


@functools.cache
def _all_trees():
  """Returns every ordered tree, breadth first: parents never decrease."""
  return [
    TokenTree((-1, *parents))
    for size in range(1, _MAX_SIZE + 1)
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


@settings(max_examples=100, deadline=None)
@given(_acceptance(), st.integers(1, _MAX_SIZE), st.none() | st.integers(0, 6))
def test_best_of_all_small_trees(acceptance, num_nodes, max_depth):
  trees = [
    tree
    for tree in _all_trees()
    if tree.size <= num_nodes and (max_depth is None or tree.depth <= max_depth)
  ]
  value = lambda tree: _value(tree, acceptance)
  expected = max((value(tree), -tree.size, -tree.depth) for tree in trees)
  tree = best_tree(acceptance, num_nodes, max_depth)
  assert (value(tree), -tree.size, -tree.depth) == expected
  # Breadth first with siblings adjacent.
  assert list(tree.parents) == sorted(tree.parents)
  assert expected_tokens(tree, acceptance) == value(tree)


def test_nodes_need_not_be_numbered_breadth_first():
  tree = TokenTree((-1, 0, 1, 0))  # 0.5, its child, and 0.25
  assert expected_tokens(tree, [0.5, 0.25]) == 1 + 0.5 + 0.25 + 0.25


@pytest.mark.parametrize('max_depth', [None, 3])
def test_large_trees_match_greedy_growth(max_depth):
  """The most probable nodes are the best tree if acceptance decreases."""
  num_nodes, acceptance = 128, 0.8 * 0.5 ** np.arange(1, 13)
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


@settings(max_examples=40, deadline=None)
@given(
  _acceptance(),
  st.dictionaries(st.integers(1, _MAX_SIZE), st.integers(1, 9), min_size=1),
  st.integers(0, 3),
  st.none() | st.integers(0, 6),
)
def test_fastest_of_all_small_trees(acceptance, pass_ms, draft_ms, max_depth):
  def rate(tree, size):
    return _value(tree, acceptance) / (pass_ms[size] + tree.depth * draft_ms)

  tree, tokens_per_ms = fastest_tree(acceptance, pass_ms, draft_ms, max_depth)
  assert tokens_per_ms == max(
    rate(tree, size)
    for size in pass_ms
    for tree in _all_trees()
    if tree.size <= size and (max_depth is None or tree.depth <= max_depth)
  )
  assert tokens_per_ms == max(
    rate(tree, size) for size in pass_ms if size >= tree.size
  )
  assert max_depth is None or tree.depth <= max_depth


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (lambda: best_tree([0.5, -0.1], 4), 'expected probabilities that sum to'),
    (lambda: best_tree([0.5, float('nan')], 4), 'got .*nan.* expected'),
    (lambda: best_tree([0.7, 0.4], 4), r'got \[0.7, 0.4\], expected'),
    (lambda: best_tree([0.5], 0), 'num_nodes must be at least 1, got 0'),
    (
      lambda: expected_tokens(TokenTree((-1, 0, 1, 1)), [0.5]),
      'a node has 2 children, but acceptance covers 1 ranks',
    ),
  ],
)
def test_bad_values(call, message):
  with pytest.raises(ValueError, match=message):
    call()


def test_acceptance_may_sum_to_one_after_rounding():
  assert best_tree([0.9, 0.1 + 1e-7], 3, max_depth=1).size == 3
