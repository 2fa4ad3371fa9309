"""Races have the right distribution, and depend on seed and position."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from specsamp.sampling import coupling, draw

handicaps = jax.jit(coupling.handicaps, static_argnums=2)


def _races(count, vocab, position=3):
  keys = draw.row_keys(jnp.arange(count, dtype=jnp.int32))
  at = jnp.full((count, 1), position, jnp.int32)
  return handicaps(keys, at, vocab)[:, 0]


def test_winners_have_the_distribution():
  p = np.array([0.5, 0.25, 0, 0.2, 0.05], np.float32)
  winners = coupling.winner_one_hot(
    np.broadcast_to(p, (50_000, 5)), _races(50_000, 5)
  )
  assert winners.dtype == jnp.float32
  counts = np.asarray(winners).sum(axis=0)
  assert counts.sum() == 50_000 and counts[2] == 0
  kept = p > 0
  assert scipy.stats.chisquare(counts[kept], 50_000 * p[kept]).pvalue > 0.001


def test_handicaps_are_exponential_to_the_last_bit():
  times = np.asarray(_races(300, 1000), np.float64).reshape(-1)
  assert scipy.stats.kstest(times, 'expon').pvalue > 0.001
  # On a grid of 2**-24, a hundredth of these would be 0, and a token of
  # probability 1e-12 would win that often.
  small = np.sort(times)[:30]
  assert (small > 0).all() and len(set(small)) == 30
  assert len(set(np.round(small * 2**24) - small * 2**24)) > 25


def test_races_differ_by_seed_and_position_only():
  keys = draw.row_keys(jnp.asarray([5, 5, 6], jnp.int32))
  at = jnp.asarray([[1, 2], [2, 1], [1, 2]], jnp.int32)
  got = np.asarray(handicaps(keys, at, 9))
  np.testing.assert_array_equal(got[0], got[1][::-1])
  assert (got[0] != got[2]).all() and (got[0, 0] != got[0, 1]).all()
