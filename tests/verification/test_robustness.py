"""Every rule on invalid float32 rows, and on greedy rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specsamp.drafting import Draft, TokenTree
from specsamp.verification import draw_verdict, make

LAWS = ('iid', 'without_replacement', 'top_plus_one', 'deterministic')
RULES = (
  'token',
  'block',
  'multi_candidate',
  'naive',
  'k_seq',
  'traversal',
  'greedy_block',
  'top_plus_one',
  'typical_lossy',
)
CHAIN_RULES = ('token', 'block')
READ_NO_Q = ('naive', 'typical_lossy')
# Rules that read no q read no law: one law is enough.
ACCEPTED = [
  (rule, law)
  for rule in RULES
  for law in LAWS
  if law in make(rule).accepts
  and (law == 'deterministic' or rule not in READ_NO_Q)
]
# Rules whose arithmetic depends on q.
ACCURATE = [pair for pair in ACCEPTED if pair[0] not in READ_NO_Q]
CHAIN = TokenTree.chain(4)
# Leaves at three depths, one to three children, numbered in no order.
TREE = TokenTree((-1, 0, 0, 1, 0, 2, 1, 3, 5, 5, 7))
PATHS = TokenTree.branching((2, 1, 1))
BATCH, VOCAB = 2048, 7

every_rule = pytest.mark.parametrize(('rule', 'law'), ACCEPTED)


def _tree(rule):
  if rule == 'greedy_block':
    return PATHS
  return CHAIN if rule in CHAIN_RULES else TREE


def _draft(tree, law, tokens, q, valid=None):
  tokens = jnp.asarray(tokens, jnp.int32)
  valid = jnp.ones(tokens.shape, bool) if valid is None else jnp.asarray(valid)
  q = None if law == 'deterministic' or q is None else jnp.asarray(q)
  return Draft(tokens, q, tree=tree, law=law, valid=valid)


@functools.partial(jax.jit, static_argnums=0)
def _both(verifier, draft, p_bnv):
  batch, size, _ = p_bnv.shape
  leave = lambda node: verifier.leave_probs(
    draft, p_bnv, jnp.broadcast_to(node, (batch,))
  )
  leave_bnv = jax.vmap(leave, out_axes=1)(jnp.arange(size, dtype=jnp.int32))
  return verifier.stop_probs(draft, p_bnv), leave_bnv


def _stop_and_leave(rule, draft, p_bnv):
  """Returns stop [B, N], and leave [B, N, V] at every node."""
  return map(np.asarray, _both(make(rule), draft, jnp.asarray(p_bnv)))


def _rows(rng, *shape):
  """Returns float32 rows: dense, sharp, with zeros, one-hot or tiny."""
  logits = rng.standard_normal((*shape, VOCAB))
  logits *= rng.choice([0.1, 1, 10, 80], size=(*shape, 1))
  weights = np.exp(logits - logits.max(-1, keepdims=True))
  weights *= rng.random(weights.shape) < rng.choice([0.5, 1], (*shape, 1))
  weights += np.eye(VOCAB)[rng.integers(VOCAB, size=shape)] * 1e-3
  one_hot = np.eye(VOCAB)[rng.integers(VOCAB, size=shape)]
  weights = np.where(rng.random((*shape, 1)) < 0.2, one_hot, weights)
  return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def _hostile(rng, tree, law):
  """Returns tokens not drawn from q, some outside the vocabulary, and p."""
  p = _rows(rng, BATCH, tree.size)
  q = _rows(rng, BATCH, len(tree.internal))
  # Rows with q = p, and rows with nothing in common.
  same = rng.random((BATCH, len(tree.internal), 1))
  p_internal = p[:, list(tree.internal)]
  q = np.where(same < 0.2, p_internal, q)
  left = np.arange(VOCAB) < 3
  q = np.where(same > 0.9, np.where(left, 1 / np.float32(3), 0), q)
  p[:, list(tree.internal)] = np.where(
    same > 0.9, np.where(left, 0, 1 / np.float32(4)), p_internal
  )
  tokens = rng.integers(VOCAB, size=(BATCH, tree.size))
  odd = rng.choice([-1, VOCAB, 10**6, -(10**6)], size=tokens.shape)
  tokens = np.where(rng.random(tokens.shape) < 0.1, odd, tokens)
  valid = rng.random(tokens.shape) < 0.8
  valid[:, 0] = True
  if tree is PATHS:  # paths with one prefix have the same p and q after it
    for node in range(2, tree.size):
      for other in range(1, node):
        paths = [tree.paths[n] for n in (node, other)]
        one, twin = (tokens[:, path[path > 0]] for path in paths)
        if one.shape == twin.shape:
          same = (one == twin).all(axis=1)
          p[same, node] = p[same, other]
          if node in tree.internal:
            i, j = map(tree.internal.index, (node, other))
            q[same, i] = q[same, j]
  return _draft(tree, law, tokens, q.astype(np.float32), valid), p


def _drafted(tree, draft, p, q):
  """Returns nodes whose path is valid with p(x), q(x) > 0, bool [B, N]."""
  drafted, law = np.asarray(draft.valid).copy(), draft.law
  tokens = np.asarray(draft.tokens)
  rows = np.arange(len(tokens))
  for node, parent in enumerate(tree.parents[1:], start=1):
    x = tokens[:, node]
    inside = (x >= 0) & (x < VOCAB)
    x = np.where(inside, x, 0)
    drafted[:, node] &= drafted[:, parent] & inside & (p[rows, parent, x] > 0)
    # The most probable tokens need no positive q.
    is_top = law == 'top_plus_one' and node != tree.children(parent)[-1]
    if q is not None and not is_top:
      drafted[:, node] &= q[rows, tree.internal.index(parent), x] > 0
  return drafted


@every_rule
def test_hostile_rows_still_give_distributions(rule, law):
  rng = np.random.default_rng(0)
  tree = _tree(rule)
  draft, p = _hostile(rng, tree, law)
  stop, leave = _stop_and_leave(rule, draft, p)
  for probs in (stop, leave):
    assert probs.dtype == np.float32
    assert (probs >= 0).all()  # and no NaN
    np.testing.assert_allclose(probs.sum(-1), 1, rtol=0, atol=1e-5)
  assert (leave[p == 0] == 0).all()
  q = None if rule in READ_NO_Q else np.asarray(draft.q)
  assert (stop[~_drafted(tree, draft, p, q)] == 0).all()


@pytest.mark.parametrize(
  ('rule', 'law'), [pair for pair in ACCEPTED if pair[1] != 'deterministic']
)
def test_what_was_not_drafted_is_not_read(rule, law):
  """q may be NaN in rows after which nothing was drafted."""
  rng = np.random.default_rng(1)
  tree = _tree(rule)
  draft, p = _hostile(rng, tree, law)
  valid = np.asarray(draft.valid)
  parents = np.array(tree.parents)
  # A chain ends at its first invalid node; a tree at each.
  if rule in CHAIN_RULES:
    valid = np.cumprod(valid, axis=1).astype(bool)
  followed = np.stack(
    [valid[:, parents == node].any(1) for node in tree.internal], axis=1
  )
  draft = draft.replace(valid=jnp.asarray(valid))
  broken = draft.replace(q=jnp.where(followed[..., None], draft.q, jnp.nan))
  for got, expected in zip(
    _stop_and_leave(rule, broken, p),
    _stop_and_leave(rule, draft, p),
    strict=True,
  ):
    np.testing.assert_array_equal(got, expected)


@every_rule
@pytest.mark.parametrize('soft_q', [True, False])
def test_greedy_rows_emit_the_argmax(rule, law, soft_q):
  """For candidates chosen in any way, with any positive q."""
  rng = np.random.default_rng(2)
  tree = _tree(rule)
  best = rng.integers(3, size=(BATCH, tree.size))
  p = np.eye(VOCAB, dtype=np.float32)[best]
  logits = rng.standard_normal((BATCH, len(tree.internal), VOCAB))
  logits *= rng.choice([1, 5, 20], size=(BATCH, 1, 1))
  q = jnp.maximum(jax.nn.softmax(jnp.asarray(logits, jnp.float32)), 1e-30)
  # Siblings differ, as in a top C, but are in no order.
  tokens = np.zeros((BATCH, tree.size), int)
  for node in tree.internal:
    choice = rng.random((BATCH, 4)).argsort(axis=1)
    kids = list(tree.children(node))
    tokens[:, kids] = choice[:, : len(kids)]
  if not soft_q:  # with a one-hot q all siblings are the same token
    first = [tree.children(node)[0] for node in tree.internal]
    q = np.eye(VOCAB, dtype=np.float32)[tokens[:, first]]
  draft = _draft(tree, law, tokens, q)
  stop, leave = _stop_and_leave(rule, draft, p)

  right = _drafted(tree, draft, p, None)
  assert (stop[~right] == 0).all()
  assert (leave[p == 0] == 0).all()
  np.testing.assert_allclose(leave, p, rtol=0, atol=1e-6)
  # The argmax is accepted, unless q is almost a one-hot: if 1 - q is rounding
  # noise, an earlier sibling leaves nothing of p.
  depths = np.where(right, np.array(tree.depths), -1)
  clear = np.asarray(q).max((1, 2)) < 0.999
  if rule in READ_NO_Q:
    clear[:] = True
  assert clear.any() == (soft_q or rule in READ_NO_Q)
  rows = np.arange(BATCH)
  accepted = stop[rows, depths.argmax(axis=1)][clear]
  np.testing.assert_allclose(accepted, 1, rtol=0, atol=1e-5)


@pytest.mark.parametrize(('rule', 'law'), ACCURATE)
def test_a_large_vocabulary_keeps_its_precision(rule, law):
  """p and q differ by rounding, and by much, over 50,000 tokens."""
  rng = np.random.default_rng(3)
  tree, vocab = _tree(rule), 50_000
  logits = 3 * rng.standard_normal((2, tree.size, vocab))
  p = jax.nn.softmax(jnp.asarray(logits, jnp.float32))
  logits += np.array([1e-7, 1])[:, None, None] * rng.standard_normal(vocab)
  q = jax.nn.softmax(jnp.asarray(logits[:, list(tree.internal)], jnp.float32))
  tokens = np.zeros((2, tree.size), int)
  for row, node in np.ndindex(2, tree.size):
    kids = list(tree.children(node))
    if kids:
      q_of_kids = np.asarray(q[row, tree.internal.index(node)], np.float64)
      tokens[row, kids] = rng.choice(
        vocab,
        size=len(kids),
        replace=law != 'without_replacement',
        p=q_of_kids / q_of_kids.sum(),
      )
  stop, leave = _stop_and_leave(rule, _draft(tree, law, tokens, q), p)
  for probs in (stop, leave):
    assert (probs >= 0).all()
    np.testing.assert_allclose(probs.sum(-1), 1, rtol=0, atol=1e-5)
  # p = q up to rounding: the first path is accepted, or another one.
  if law == 'top_plus_one':
    assert stop[0, list(tree.internal)].sum() < 1e-3
  else:
    leaf = 0
    while tree.children(leaf):
      leaf = tree.children(leaf)[0]
    # K-SEQ's rho is a double root there, so it has a larger error.
    assert stop[0, leaf] > (0.99 if rule == 'k_seq' else 0.999)


@every_rule
def test_the_empty_draft_is_a_plain_step(rule, law):
  p = _rows(np.random.default_rng(4), 4, 1)
  draft = _draft(TokenTree((-1,)), law, np.zeros((4, 1)), None)
  stop, leave = _stop_and_leave(rule, draft, p)
  assert (stop == 1).all()
  np.testing.assert_allclose(leave, p, rtol=1e-6)


def test_a_verdict_names_a_path_of_the_tree():
  """All rules share the draws, so one rule is enough."""
  rule, law, tree = 'multi_candidate', 'without_replacement', TREE
  draft, p = _hostile(np.random.default_rng(6), tree, law)
  keys = jax.random.split(jax.random.key(0), 2 * BATCH)
  draw = jax.jit(draw_verdict, static_argnums=2)
  verdict = draw(keys[:BATCH], keys[BATCH:], make(rule), draft, jnp.asarray(p))
  assert {leaf.dtype for leaf in verdict} == {jnp.dtype(jnp.int32)}
  np.testing.assert_array_equal(verdict.path, tree.paths[verdict.node])
  depths = np.array(tree.depths)[verdict.node]
  np.testing.assert_array_equal(verdict.num_accepted, depths)
  stop, leave = _stop_and_leave(rule, draft, p)
  rows = np.arange(BATCH)
  assert (stop[rows, verdict.node] > 0).all()
  assert (leave[rows, verdict.node, verdict.next_token] > 0).all()
  assert len(set(verdict.node.tolist())) > 3
