"""Dynamic trees hold exactly the nodes of the most probable paths."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specsamp import SamplingParams
from specsamp.drafting import growth
from specsamp.drafting.draft import DynamicTree

VOCAB, BATCH, DEPTH = 4, 3, 3
SAMPLING = SamplingParams(
  temperature=np.asarray([1.0, 0.5, 1.0], np.float32),
  top_k=np.asarray([0, 0, 2]),
).broadcast(BATCH)


@pytest.fixture(scope='module')
def logits():
  """Logits [B, V + 1, V + 1, V + 1, V] after paths of up to three tokens."""
  rng = np.random.default_rng(1)
  return 2 * rng.standard_normal((BATCH, *(VOCAB + 1,) * DEPTH, VOCAB))


def _after(logits, path_bwd):
  """Returns logits after paths; missing tokens of shorter paths are VOCAB."""
  missing = DEPTH - path_bwd.shape[-1]
  full = jnp.pad(
    path_bwd, ((0, 0), (0, 0), (0, missing)), constant_values=VOCAB
  )
  row = jnp.arange(BATCH)[:, None]
  return jnp.asarray(logits)[row, full[..., 0], full[..., 1], full[..., 2]]


@functools.partial(jax.jit, static_argnums=0)
def _grown(tree, logits):
  """Grows a tree; returns what each level given to `feed` says of its nodes."""
  numbers = []

  def feed(carry, level):
    path, read = carry  # tokens of the nodes above, and of all nodes read
    path = jnp.concatenate(
      [level.of_parents(path), level.tokens[:, :, None]], axis=2
    )
    start, width = level.first, level.tokens.shape[1]
    read = read.at[:, start : start + width].set(level.tokens)
    # A node's ancestors have the tokens of its path.
    depths = np.asarray(level.depths)
    for depth in range(1, level.depth + 1):
      is_above = level.ancestors & (depths == depth)[None, None]
      tokens = jnp.where(is_above, read[:, None], 0).sum(-1)
      numbers.append((is_above.sum(-1), tokens, path[:, :, depth - 1]))
    return (path, read), _after(logits, path)

  none = jnp.zeros((BATCH, 1, 0), jnp.int32)
  read = jnp.zeros((BATCH, tree.num_fed), jnp.int32)
  draft, (_, read), number_bn = growth.grow_dynamic(
    tree,
    SAMPLING,
    jnp.zeros((BATCH, 1), jnp.int32),
    _after(logits, none),
    feed,
    (none, read),
  )
  return draft, number_bn, read, numbers


def _values(logits, row):
  """Returns log q of every path of at most DEPTH tokens, for one row."""
  t = float(SAMPLING.temperature[row])
  top_k = int(SAMPLING.top_k[row])
  values = {(): 0.0}
  for depth in range(1, DEPTH + 1):
    for path in itertools.product(range(VOCAB), repeat=depth):
      before = path[:-1] + (VOCAB,) * (DEPTH - depth + 1)
      x = logits[(row, *before)] / t
      if top_k:
        x = np.where(x >= np.sort(x)[-top_k], x, -np.inf)
      log_q = x - np.log(np.exp(x).sum())
      values[path] = values[path[:-1]] + log_q[path[-1]]
  return values


@pytest.mark.parametrize(('size', 'children'), [(8, 2), (12, 4)])
def test_the_best_nodes_are_kept(logits, size, children):
  tree = DynamicTree.of(size, DEPTH, children)
  draft, number_bn, read, numbers = _grown(tree, logits)
  for count, tokens, expected in numbers:
    assert (count == 1).all()
    np.testing.assert_array_equal(tokens, expected)
  for row in range(BATCH):
    values = _values(logits, row)
    paths = [()]
    for node in range(1, size):
      parent = int(draft.parents[row, node])
      assert 0 <= parent < node
      paths.append((*paths[parent], int(draft.tokens[row, node])))
    valid = np.asarray(draft.valid[row])
    got = {p for p, ok in zip(paths, valid, strict=True) if ok}
    assert len(got) == valid.sum()  # no path twice
    # Candidates: the best children of the best nodes of each depth.
    level, candidates = [()], []
    for _ in range(DEPTH):
      made = []
      for path in level:
        below = sorted(
          ((*path, token) for token in range(VOCAB)), key=lambda p: -values[p]
        )
        made += [p for p in below[:children] if values[p] > -np.inf]
      candidates += made
      level = sorted(made, key=lambda p: -values[p])[:children]
    best = sorted(candidates, key=lambda p: -values[p])[: size - 1]
    assert got == {(), *best}
    # A node with children was read, and its number is that of its token.
    is_read = np.asarray(number_bn[row]) > 0
    tokens = read[row, number_bn[row]][is_read]
    np.testing.assert_array_equal(tokens, draft.tokens[row][is_read])
    inner = set(np.asarray(draft.parents[row])[valid].tolist()) - {-1, 0}
    assert inner and all(is_read[node] for node in inner)


def test_the_first_nodes_are_the_smaller_tree(logits):
  whole, number_bn, _, _ = _grown(DynamicTree.of(12, DEPTH, 4), logits)
  assert (np.diff(whole.path_probs) <= 0).all()
  for row in range(BATCH):
    values, paths = _values(logits, row), [()]
    for node in range(1, 12):
      parent = int(whole.parents[row, node])
      paths.append((*paths[parent], int(whole.tokens[row, node])))
    probs = [np.exp(values[path]) for path in paths]
    np.testing.assert_allclose(whole.path_probs[row], probs, atol=1e-6)
  for size in (4, 7, 12):
    smaller, number, _, _ = _grown(DynamicTree.of(size, DEPTH, 4), logits)
    cut = whole.first(size)
    assert cut.tree == smaller.tree
    jax.tree.map(np.testing.assert_array_equal, cut, smaller)
    np.testing.assert_array_equal(number_bn[:, :size], number)
  assert whole.first(3).tree == DynamicTree.of(3, 2, 4)
  root = whole.first(1)
  assert root.tree.size == 1 and root.parents is None


def test_greedy_rows_rank_by_a_sharper_q(logits):
  tree = DynamicTree.of(4, DEPTH, 4)
  flat = jnp.asarray([[0.0, -1.0, -1.5, -2.0]] * BATCH)[:, None]

  @jax.jit
  def deepest(sampling):
    root, feed = jnp.zeros((BATCH, 1), jnp.int32), lambda *_: (None, flat)
    draft, _, _ = growth.grow_dynamic(tree, sampling, root, flat, feed, None)
    return draft.depths().max()

  assert deepest(SamplingParams(0.0).broadcast(BATCH)) == 3
  assert deepest(SamplingParams(1.0).broadcast(BATCH)) == 2


def test_nodes_of_a_depth_may_share_their_logits():
  rng = np.random.default_rng(2)
  logits_bgv = jnp.asarray(rng.standard_normal((BATCH, DEPTH, VOCAB)))

  @functools.partial(jax.jit, static_argnums=0)
  def grow(repeats):
    feed = lambda carry, level: (
      carry,
      jnp.repeat(logits_bgv[:, level.depth, None], repeats, axis=1),
    )
    root, tree = jnp.zeros((BATCH, 1), jnp.int32), DynamicTree.of(8, DEPTH, 4)
    return growth.grow_dynamic(
      tree, SAMPLING, root, logits_bgv[:, :1], feed, None
    )

  jax.tree.map(np.testing.assert_array_equal, grow(1), grow(4))
