"""Typical acceptance against a plain implementation, on random trees."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specsamp.drafting import Draft, TokenTree
from specsamp.verification import TypicalLossyVerifier, make

LAWS = ('iid', 'without_replacement', 'deterministic')
BATCH, VOCAB = 512, 6


def _random_tree(rng):
  size = int(rng.integers(1, 12))
  return TokenTree((-1, *(int(rng.integers(n)) for n in range(1, size))))


def _round(rng, tree):
  """Returns tokens, also of twins, validity, and dense, sharp or one-hot p."""
  tokens = rng.integers(VOCAB, size=(BATCH, tree.size))
  valid = rng.random(tokens.shape) < 0.85
  logits = rng.standard_normal((BATCH, tree.size, VOCAB))
  logits *= rng.choice([0.1, 2, 6], size=(BATCH, tree.size, 1))
  p = np.exp(logits - logits.max(-1, keepdims=True))
  p /= p.sum(-1, keepdims=True)
  best = np.eye(VOCAB)[rng.integers(3, size=(BATCH, tree.size))]
  p[: BATCH // 4] = best[: BATCH // 4]  # greedy rows
  mixed = rng.random((BATCH, tree.size, 1)) < 0.2
  return tokens, valid, np.where(mixed, best, p).astype(np.float32)


def _draft(tree, tokens, valid, law='deterministic'):
  shape = (len(tokens), len(tree.internal), VOCAB)
  return Draft(
    tokens=jnp.asarray(tokens, jnp.int32),
    q=None if law == 'deterministic' else jnp.full(shape, jnp.nan),  # not read
    tree=tree,
    law=law,
    valid=jnp.asarray(valid),
  )


def _by_hand(tree, tokens, valid, p, epsilon, delta):
  """Returns the node at which one row stops, as the paper defines it."""
  accepted, stop = {0}, 0
  for node, parent in enumerate(tree.parents[1:], start=1):
    law = p[parent].astype(np.float64)
    some = law[law > 0]
    entropy = -(some * np.log(some)).sum()
    threshold = min(epsilon, delta * np.exp(-entropy))
    if parent in accepted and valid[node] and law[tokens[node]] > threshold:
      accepted.add(node)
      if tree.depths[node] > tree.depths[stop]:
        stop = node
  return stop


@functools.partial(jax.jit, static_argnums=0)
def _stop(verifier, draft, p):
  return verifier.stop_probs(draft, p)


@pytest.mark.parametrize(('epsilon', 'delta'), [(0.09, 0.3), (0.3, 0.9)])
def test_it_is_the_rule_of_the_paper(epsilon, delta):
  rng = np.random.default_rng(0)
  stops = []
  for law in LAWS:
    tree = _random_tree(rng)
    tokens, valid, p = _round(rng, tree)
    draft = _draft(tree, tokens, valid, law)
    stop = _stop(TypicalLossyVerifier(epsilon, delta), draft, jnp.asarray(p))
    expected = [
      _by_hand(tree, *row, epsilon, delta)
      for row in zip(tokens, valid, p, strict=True)
    ]
    np.testing.assert_array_equal(stop, np.eye(tree.size)[expected])
    stops += expected
  assert len(set(stops)) > 5


def test_the_first_of_equally_long_paths_wins():
  tree = TokenTree((-1, 0, 0, 0, 2, 3, 3))
  p = np.full((1, 7, VOCAB), [0.3, 0.3, 0.35, 0.05, 0, 0], np.float32)
  # 1 alone; 2 and 4; 3 and 5 or 6: of 4, 5 and 6, 5 is the likeliest.
  tokens = np.array([[0, 0, 1, 0, 1, 2, 0]])
  for invalid, winner in (((), 4), ((4,), 5), ((2,), 5), ((3, 4), 1)):
    valid = ~np.isin(np.arange(7), invalid)[None]
    stop = _stop(make('typical_lossy'), _draft(tree, tokens, valid), p)
    assert stop[0].argmax() == winner and stop[0, winner] == 1


def test_a_nan_accepts_no_child():
  tree = TokenTree((-1, 0, 0, 1, 2))
  p = np.full((2, 5, VOCAB), 1 / VOCAB, np.float32)
  p[0, 1], p[1, 0] = np.nan, np.nan
  draft = _draft(tree, np.zeros((2, 5)), np.ones((2, 5), bool))
  stop = _stop(make('typical_lossy'), draft, jnp.asarray(p))
  np.testing.assert_array_equal(stop.argmax(1), [4, 0])
  np.testing.assert_array_equal(stop.sum(1), 1)
