"""The exact distribution of float32 draws, computed from the production code.

A draw is a function of two 32-bit integers that increases in each of them, so
that bisection finds the exact number of integers that give each token.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specsamp.drafting.draft import TokenTree
from specsamp.sampling import draw


@jax.jit
def _index(bits_k, amounts_k):
  one = lambda u: draw._first_above(u[None], amounts_k[None])[0]
  return jax.vmap(one)(draw._fractions(bits_k))


def _law(amounts_k):
  """Returns the exact probability of each index under `_first_above`."""
  size = len(amounts_k)
  low, high = np.zeros(size, np.int64), np.full(size, 2**32)
  while (low < high).any():  # the number of integers that give at most index k
    middle = (low + high) // 2
    bits = jnp.asarray(np.minimum(middle, 2**32 - 1), jnp.uint32)
    below = np.asarray(_index(bits, amounts_k)) <= np.arange(size)
    open_ = low < high
    low = np.where(open_ & below, middle + 1, low)
    high = np.where(open_ & ~below, middle, high)
  return np.diff(low, prepend=0) / 2.0**32


def _distance(amounts_k):
  """Returns a draw's total variation, and the mass that is never drawn."""
  law = _law(amounts_k)
  assert law.sum() == 1 and (law[amounts_k == 0] == 0).all()
  true = amounts_k.astype(np.float64) / amounts_k.sum(dtype=np.float64)
  return np.abs(law - true).sum() / 2, true[law == 0].sum()


def draw_error(probs_v, num_inside):
  """Returns the error of a draw from a whole vocabulary, as upper bounds.

  The total variation of the pair (block, token inside) is at most that of the
  block plus the mean of those inside. The mean is bounded by the maximum over
  `num_inside` blocks: the heaviest ones, and others at random.
  """
  size = len(probs_v)
  count = draw._num_blocks(size)
  blocks = np.pad(probs_v, (0, -size % count)).reshape(count, -1)
  order = np.argsort(-blocks.sum(1))
  chosen = np.unique(
    np.r_[
      order[: num_inside // 2],
      np.random.default_rng(0).permutation(count)[: num_inside // 2],
    ]
  )
  outer = np.array(_distance(np.asarray(blocks.sum(1))))
  inside = [_distance(blocks[i]) for i in chosen if blocks[i].any()]
  return outer + np.max(inside, axis=0)


@functools.cache
def _row(size, deviation):
  logits = np.random.default_rng(0).normal(size=size) * deviation
  probs = np.exp(logits - logits.max())
  return (probs / probs.sum()).astype(np.float32)


@pytest.mark.parametrize('deviation', [0.01, 3.0])
@pytest.mark.parametrize('size', [4096, 151_936])
def test_error_of_a_draw_is_that_of_running_sums(size, deviation):
  distance, never = draw_error(_row(size, deviation), num_inside=4)
  # One number of 24 bits for both levels: 1.2e-3 to 2.2e-3, 5e-4 at 151,936.
  assert distance < 5e-10 * size + 1e-6
  assert never < 3e-6


def test_rare_events_have_their_probability():
  """A 24-bit number gives 6e-8 or 0 to an event of probability 1e-9."""
  for rare in (1e-9, 1e-7):
    law = _law(np.array([rare, 1 - rare], np.float32))
    np.testing.assert_allclose(law[0], rare, rtol=2**-24, atol=2**-32)
    # As the last entry it is as exact as the running sum, which rounds to 1.
    law = _law(np.array([1 - rare, rare], np.float32))
    np.testing.assert_allclose(law[1], rare, atol=2**-24)


def test_stop_decision():
  """The total variation is below 2**-24 a node, for chains and trees."""
  for tree in (TokenTree.chain(8), TokenTree.branching((8, 4, 2, 1))):
    for seed in range(3):
      rng = np.random.default_rng(seed)
      stop = rng.dirichlet(np.full(tree.size, 0.2)).astype(np.float32)
      distance, _ = draw_error(stop, num_inside=tree.size)
      assert distance < tree.size * 2**-24


if __name__ == '__main__':
  print('   V  deviation of logits  total variation  mass never drawn')
  for size in (4096, 32_000, 151_936):
    for deviation in (0.01, 3.0):
      distance, never = draw_error(_row(size, deviation), num_inside=200)
      print(f'{size:7} {deviation:10} {distance:20.1e} {never:16.1e}')
