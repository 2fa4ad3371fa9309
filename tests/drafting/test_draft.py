"""TokenTree against brute force, and its errors."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsamp.drafting import TokenTree
from specsamp.errors import UserError


@st.composite
def _trees(draw):
  size = draw(st.integers(1, 9))
  return TokenTree(
    (-1, *(draw(st.integers(0, node - 1)) for node in range(1, size)))
  )


def _path(tree, node):
  """Returns the nodes from the root to `node`, by climbing."""
  path = [node]
  while tree.parents[path[0]] != -1:
    path.insert(0, tree.parents[path[0]])
  return path


@settings(max_examples=60, deadline=None)
@given(_trees())
def test_properties_match_climbing(tree):
  paths = [_path(tree, node) for node in range(tree.size)]
  assert tree.depths == tuple(len(path) - 1 for path in paths)
  assert tree.depth == max(tree.depths)
  for i, j in itertools.product(range(tree.size), repeat=2):
    assert tree.ancestor_mask[i, j] == (j in paths[i])
    assert (j in tree.children(i)) == (tree.parents[j] == i)
  for path, row in zip(paths, tree.paths, strict=True):
    assert row.tolist() == path + [-1] * (tree.depth + 1 - len(path))
  assert tree.internal == tuple(
    node for node in range(tree.size) if tree.children(node)
  )
  assert tree.is_chain == (tree.depth == tree.size - 1)
  assert all(
    list(tree.children(node)) == sorted(tree.children(node))
    for node in range(tree.size)
  )


def test_branching_is_breadth_first():
  tree = TokenTree.branching((4, 2, 1))
  assert tree.depths == (0,) + (1,) * 4 + (2,) * 8 + (3,) * 8
  assert tree.children(4) == (11, 12)
  assert tree.children(5) == (13,)
  assert tree.children(20) == ()
  assert tree.factors == (4, 2, 1)
  assert TokenTree.branching(()) == TokenTree.chain(0)
  assert TokenTree.branching((1, 1)) == TokenTree.chain(2)


def test_branching_of_single_nodes():
  tree = TokenTree.branching((3, (2, 0, 1), (0, 1), 1))
  assert tree.parents == (-1, 0, 0, 0, 1, 1, 3, 5, 7)
  assert tree.ranks == (0, 0, 1, 2, 0, 1, 0, 0, 0)
  assert tree.factors is None
  assert TokenTree.branching(((2,), 1)) == TokenTree.branching((2, 1))


@pytest.mark.parametrize(
  ('make', 'args', 'message'),
  [
    (TokenTree, (), r'parent of node 0 must be -1 .* got \(\)'),
    (TokenTree, (0,), r'parent of node 0 must be -1 .* got \(0,\)'),
    (TokenTree, (-1, 1), r'parent of node 1 must be in \[0, 1\), got 1'),
    (TokenTree, (-1, 0, -1), r'parent of node 2 must be in \[0, 2\), got -1'),
    (TokenTree.chain, -1, '^draft length must be at least 0, got -1$'),
    (TokenTree.chain, 20_000, 'got 20001 nodes, expected at most 16384'),
    (TokenTree.branching, (2, 0), r'at least 1, got \(2, '),
    (TokenTree.branching, (2, (0, 0)), r'at least 1, got \(2, '),
    (TokenTree.branching, (2, ()), r'at least 1, got \(2, '),
    (TokenTree.branching, (2, (2, -1)), r'at least 1, got \(2, '),
    (TokenTree.branching, (2, (1, 1, 1)), r'3 counts \(1, 1, 1\) .* 2 nodes'),
  ],
)
def test_invalid_trees(make, args, message):
  with pytest.raises(UserError, match=message):
    make(args)
