"""Cached passes: ragged pieces and token trees against whole passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specsamp.drafting import TokenTree
from specsamp.models import KVCache
from specsamp.models.attention import tree_mask

_CAPACITY = 24
_LENGTHS = np.array([5, 9, 1], np.int32)
_TREE = TokenTree((-1, 0, 0, 1, 1, 2, 4, 0))
_BATCH, _LENGTH = 3 * _TREE.size, 18
# Positions that are rotary, learned and relative: all that a cache depends on.
pytestmark = pytest.mark.parametrize(
  'model',
  ['qwen', 'gemma', 'ministral', 'experts', 'gpt2', 'mixed'],
  indirect=True,
)


@pytest.fixture(scope='module')
def passes(model):
  """Returns (sequences -> logits, cached pass), which compile few shapes."""
  transformer, params = model
  whole = jax.jit(lambda params, t: transformer.apply({'params': params}, t))
  cached = jax.jit(lambda params, *a: transformer.apply({'params': params}, *a))

  def logits(tokens):
    padded = np.zeros((_BATCH, _LENGTH), np.int32)
    padded[: len(tokens)] = tokens
    return np.asarray(whole(params, padded).logits)[: len(tokens)]

  def run(tokens, positions, cache, *args):
    tokens, positions = np.int32(tokens), np.int32(positions)
    return cached(params, tokens, positions, cache, *args)

  return logits, run


def _tokens(shape, seed=0):
  return np.random.default_rng(seed).integers(0, 29, shape, np.int32)


def _junk(cache: KVCache) -> KVCache:
  """Fills the cache with entries that other tokens may have left there."""
  rng = np.random.default_rng(7)
  fill = lambda x: jnp.asarray(1e3 * rng.normal(size=x.shape), x.dtype)
  return cache.replace(
    keys=jax.tree.map(fill, cache.keys), values=jax.tree.map(fill, cache.values)
  )


def _prefill(cached, cache, tokens):
  """Feeds the first `_LENGTHS` tokens of the rows, padded on the right."""
  positions = np.broadcast_to(np.arange(9)[None], (3, 9))
  inside = positions < _LENGTHS[:, None]
  return cached(np.where(inside, tokens[:, :9], 28), positions, cache)


def _assert_close(got, wanted):
  scale = np.abs(wanted).max()
  np.testing.assert_allclose(got, wanted, atol=2e-5 * scale)


def test_ragged_pieces_equal_the_whole(model, passes):
  """Later pieces overwrite junk, such as a rejected draft."""
  transformer, params = model
  whole, cached = passes
  tokens = _tokens((3, _LENGTH))
  wanted = whole(tokens)
  cache = transformer.init_cache(params, 3, _CAPACITY)
  assert cache.capacity == _CAPACITY
  out = _prefill(cached, _junk(cache), tokens)
  for row, length in enumerate(_LENGTHS):
    _assert_close(out.logits[row, :length], wanted[row, :length])
  at = _LENGTHS.copy()
  rows = np.arange(3)[:, None]
  for size in (1, 3, 1, 3, 1):
    positions = at[:, None] + np.arange(size)[None]
    out = cached(tokens[rows, positions], positions, out.cache)
    _assert_close(out.logits, wanted[rows, positions])
    at += size


def test_a_tree_in_one_pass_equals_its_paths(model, passes):
  transformer, params = model
  whole, cached = passes
  tokens = _tokens((3, _LENGTH))
  nodes = _tokens((3, _TREE.size), seed=1)
  cache = _junk(transformer.init_cache(params, 3, _CAPACITY))
  cache = _prefill(cached, cache, tokens).cache
  start = jnp.asarray(_LENGTHS)
  mask = tree_mask(start, _TREE.ancestor_mask, _CAPACITY)
  positions = _LENGTHS[:, None] + np.asarray(_TREE.depths)[None]
  out = cached(nodes, positions, cache, mask)
  # A sequence for the path to every node.
  paths = np.zeros((3, _TREE.size, _LENGTH), np.int32)
  for row, length in enumerate(_LENGTHS):
    for node in range(_TREE.size):
      path = [n for n in _TREE.paths[node] if n >= 0]
      paths[row, node, :length] = tokens[row, :length]
      paths[row, node, length : length + len(path)] = nodes[row, path]
  wanted = whole(paths.reshape(_BATCH, -1)).reshape(*paths.shape, -1)
  for row, length in enumerate(_LENGTHS):
    for node, depth in enumerate(_TREE.depths):
      _assert_close(out.logits[row, node], wanted[row, node, length + depth])
