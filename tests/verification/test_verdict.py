"""The draws that all rules share: refused inputs, frequencies, rows, keys."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from specsamp.drafting import Draft, TokenTree
from specsamp.verification import check_law, draw_verdict, make

CHAIN, STAR = TokenTree.chain(2), TokenTree((-1, 0, 0))
# Most tests share one batch size and draft length, and so a compilation.
BATCH, LENGTH, VOCAB = 4096, 3, 5


def _draft(tokens, q):
  tokens = jnp.asarray(tokens, jnp.int32)
  tree = TokenTree.chain(tokens.shape[1] - 1)
  valid = jnp.ones(tokens.shape, bool)
  return Draft(tokens, q, tree=tree, law='iid', valid=valid)


def _distributions(seed, *shape, vocab=VOCAB):
  weights = np.random.default_rng(seed).gamma(0.7, size=(*shape, vocab))
  return jnp.asarray(weights / weights.sum(-1, keepdims=True), jnp.float32)


def _random_draft(batch=BATCH, length=LENGTH, seed=0):
  """Returns a draft drawn from its q, and a p, [B, N, V]."""
  q = _distributions(seed, batch, length)
  u = np.random.default_rng(seed + 1).random((batch, length, 1))
  tokens = np.zeros((batch, length + 1), np.int32)
  tokens[:, 1:] = (np.cumsum(q, axis=-1)[..., :-1] < u).sum(-1)
  return _draft(tokens, q), _distributions(seed + 2, batch, length + 1)


def _keys(batch=BATCH, seed=7):
  both = jax.random.split(jax.random.key(seed), 2 * BATCH)
  return both[:batch], both[-batch:]


_jitted = jax.jit(draw_verdict, static_argnums=2)


@pytest.mark.parametrize(
  ('rule', 'law', 'tree', 'message'),
  [
    ('token', 'deterministic', CHAIN, "law 'deterministic', expected 'iid'"),
    ('k_seq', 'top_plus_one', CHAIN, "law 'top_plus_one', expected 'iid'"),
    ('token', 'iid', STAR, 'verifies chains: got a tree of 3 nodes'),
    ('block', 'iid', STAR, 'verifies chains: got a tree of 3 nodes'),
  ],
)
def test_refuses_a_draft_that_it_cannot_correct(rule, law, tree, message):
  with pytest.raises(ValueError, match=message):
    check_law(make(rule), law, tree)
  draft, p = _random_draft(2, tree.size - 1)
  draft = draft.replace(law=law, tree=tree)
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(_jitted, *_keys(2), make(rule), draft, p)


def test_frequencies_are_stop_times_leave():
  """One draft, repeated: the pair (node, token) follows stop * leave."""
  rule = make('block')
  # p and q are close, so that each node is stopped at often.
  p = 0.3 * _distributions(4, 1, LENGTH + 1) + 0.7 / VOCAB
  q = 0.5 * p[:, :-1] + 0.5 * _distributions(5, 1, LENGTH)
  one = _draft([[0, 1, 3, 2]], q)
  repeat = lambda leaf: jnp.repeat(leaf, BATCH, axis=0)
  draft, p = jax.tree.map(repeat, (one, p))
  stop = jax.jit(rule.stop_probs)(draft, p)[0]
  node = jnp.arange(BATCH, dtype=jnp.int32) % (LENGTH + 1)
  leave = jax.jit(rule.leave_probs)(draft, p, node)[: LENGTH + 1]
  expected = np.asarray(stop[:, None] * leave, np.float64)
  counts = np.zeros_like(expected)
  for seed in range(5):
    verdict = _jitted(*_keys(seed=seed), rule, draft, p)
    np.add.at(counts, (verdict.node, verdict.next_token), 1)
  assert (counts[expected == 0] == 0).all()
  seen = expected > 0
  expected = counts.sum() * expected[seen] / expected.sum()
  assert expected.min() > 5
  assert stats.chisquare(counts[seen], expected).pvalue > 1e-3


def test_a_row_does_not_depend_on_its_batch():
  inputs = (_keys(), *_random_draft())
  whole = _jitted(*inputs[0], make('block'), *inputs[1:])
  rows = jnp.asarray([5, 0, 11])
  take = lambda leaf: leaf[rows]
  keys, draft, p = jax.tree.map(take, inputs)
  part = _jitted(*keys, make('block'), draft, p)
  jax.tree.map(np.testing.assert_array_equal, part, jax.tree.map(take, whole))


@pytest.mark.parametrize('rule', ['token', 'block'])
def test_no_temporary_as_large_as_p(rule):
  """No rule copies p or q, [B, N, V]."""
  batch, length, vocab = 4, 5, 20_000
  verifier = make(rule)

  @functools.partial(jax.jit, static_argnums=0)
  def both(verifier, draft, p):
    stop = verifier.stop_probs(draft, p)
    node = jnp.argmax(stop, axis=1).astype(jnp.int32)
    return stop, verifier.leave_probs(draft, p, node)

  shape = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
  draft = _draft(jnp.zeros((batch, length + 1)), shape(batch, length, vocab))
  p = shape(batch, length + 1, vocab)
  analysis = both.lower(verifier, draft, p).compile().memory_analysis()
  assert analysis.temp_size_in_bytes < 3 * batch * vocab * 4
