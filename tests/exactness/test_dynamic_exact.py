"""Dynamic trees: the naive rule on each row's parents is that on a static tree.

`test_tree_verifiers_exact.py` enumerates the latter, so the former is lossless.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specsamp.drafting.draft import Draft, DynamicTree, TokenTree, lineage
from specsamp.verification import (
  GumbelVerifier,
  MultiCandidateVerifier,
  check_law,
  make,
)

# One size, depths 4, 3, 2 and 1; some are not numbered level by level.
TREES = (
  TokenTree((-1, 0, 1, 2, 3, 0)),
  TokenTree((-1, 0, 1, 0, 1, 4)),
  TokenTree((-1, 0, 0, 1, 1, 2)),
  TokenTree((-1, 0, 0, 0, 0, 0)),
)
BOUNDS = DynamicTree.of(6, 4, 5)
VOCAB, ROWS_PER_TREE = 3, 64


@pytest.fixture(scope='module')
def rows():
  """Drafts of all trees in one batch: tokens, validity and p of each row."""
  rng = np.random.default_rng(0)
  batch = ROWS_PER_TREE * len(TREES)
  tokens = rng.integers(VOCAB, size=(batch, BOUNDS.size)).astype(np.int32)
  valid = rng.random(tokens.shape) < 0.8
  valid[:, 0] = True
  trees = np.repeat(TREES, ROWS_PER_TREE)
  for row, tree in zip(valid, trees, strict=True):
    for node, parent in enumerate(tree.parents[1:], start=1):
      row[node] &= row[parent]
  p = rng.gamma(0.5, size=(*tokens.shape, VOCAB))
  p[rng.random(p.shape) < 0.2] = 0
  p[..., 0] += 1e-3
  return tokens, valid, p / p.sum(-1, keepdims=True)


def _stop_and_leave(verifier, draft, p):
  """Returns stop [B, N] and leave [B, N, V]."""
  leave = lambda node: verifier.leave_probs(
    draft, p, jnp.full(len(p), node, jnp.int32)
  )
  leaves = jnp.stack([leave(node) for node in range(draft.tree.size)], axis=1)
  return verifier.stop_probs(draft, p), leaves


def test_the_naive_rule_is_that_of_each_rows_tree(rows):
  with jax.enable_x64(True):
    tokens, valid, p = map(jnp.asarray, rows)
    parents = np.asarray([tree.parents for tree in TREES], np.int32)
    parents = jnp.asarray(np.repeat(parents, ROWS_PER_TREE, axis=0))
    draft = Draft(tokens, None, BOUNDS, 'deterministic', valid, parents=parents)
    stop, leave = _stop_and_leave(make('naive'), draft, p)
    assert stop.dtype == jnp.float64
    np.testing.assert_allclose(stop.sum(-1), 1, rtol=0, atol=1e-12)
    for i, tree in enumerate(TREES):
      part = slice(i * ROWS_PER_TREE, (i + 1) * ROWS_PER_TREE)
      static = Draft(tokens[part], None, tree, 'deterministic', valid[part])
      wanted = _stop_and_leave(make('naive'), static, p[part])
      np.testing.assert_allclose(stop[part], wanted[0], rtol=0, atol=1e-14)
      np.testing.assert_allclose(leave[part], wanted[1], rtol=0, atol=1e-14)


def test_lineage_and_paths_are_those_of_each_rows_tree():
  parents = jnp.asarray([tree.parents for tree in TREES], jnp.int32)
  depths, mask = lineage(parents, BOUNDS.depth)
  draft = Draft(parents, None, BOUNDS, 'deterministic', parents, None, parents)
  for i, tree in enumerate(TREES):
    np.testing.assert_array_equal(depths[i], tree.depths)
    np.testing.assert_array_equal(mask[i], tree.ancestor_mask)
  nodes = np.arange(BOUNDS.size, dtype=np.int32)[:, None]
  nodes = np.repeat(nodes, len(TREES), axis=1)
  all_paths = jax.jit(jax.vmap(draft.path_to))(nodes)
  for node, paths in enumerate(all_paths):
    for i, tree in enumerate(TREES):
      path = tree.paths[node]
      np.testing.assert_array_equal(paths[i, : len(path)], path)
      assert (paths[i, len(path) :] == -1).all()


def test_other_rules_refuse_them():
  for rule in (make('typical_lossy'), MultiCandidateVerifier()):
    with pytest.raises(ValueError, match='naive or gumbel|law'):
      check_law(rule, 'deterministic', BOUNDS)
  check_law(GumbelVerifier(), 'deterministic', BOUNDS)


@pytest.mark.parametrize(
  ('sizes', 'message'),
  [
    ((1, 1, 1), 'depth below'),
    ((4, 4, 2), 'depth below'),
    ((4, 0, 2), 'depth below'),
    ((4, 2, 0), 'at least 1 child'),
    ((9, 2, 2), 'at most 7'),
  ],
)
def test_bounds_that_no_tree_has(sizes, message):
  with pytest.raises(ValueError, match=message):
    DynamicTree.of(*sizes)
