"""Candidates that are the first tokens of one race, or of several races.

A coupled drafter takes the first C tokens of its race. List sampling (GLS,
arXiv 2506.05632) runs C races: candidate c is the first token of race c under
q, and the target emits the first token under p of the minima of the races.
Minima of exponential times are exponential, so they are a race too. `split`
draws races with given minima: the target's race depends neither on drafts nor
on C, and emits the same token in both schemes. Only the candidates differ.

`python tests/sampling/test_list_coupling.py` prints how often they hold it.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from specsamp.evaluation.bounds import best_acceptance
from specsamp.sampling import coupling, draw

# A grid of log s, where the trapezoid rule is exact to 1e-9.
_STEP = 0.1
_S = np.exp(np.arange(-30, 6, _STEP))


def _integral(values):
  return _STEP * (values * _S).sum()


def one_race(p, q, count: int) -> float:
  """Returns the chance that the winner is among the first tokens under q.

  The winner y arrives at s / p(y), where s is exponential, and other tokens
  later. It is a candidate if fewer than `count` of them precede it under q.
  """
  chance = 0.0
  for y in np.flatnonzero(p * q):
    p_others, q_others = np.delete(p / p[y], y), np.delete(q / q[y], y)
    late = np.exp(-np.outer(np.maximum(p_others, q_others), _S))
    early = np.exp(-np.outer(p_others, _S)) - late
    num_early = np.zeros((count, len(_S)))
    num_early[0] = np.exp(-_S)
    for late_s, early_s in zip(late, early, strict=True):
      shifted = np.pad(num_early, ((1, 0), (0, 0)))[:-1]
      num_early = num_early * late_s + shifted * early_s
    chance += _integral(num_early.sum(axis=0))
  return chance


def list_sampling(p, q, count: int) -> float:
  """Returns the chance that the winner is the first token of a race under q.

  Let s be the winner's least time in a race, and s u >= s that in another one.
  No other token has a time below s p / p(y). The winner is not the first token
  of a race if another one has a time below s u q / q(y).
  """
  chance = 0.0
  for y in np.flatnonzero(p * q):
    p_others, q_others = np.delete(p / p[y], y), np.delete(q / q[y], y)
    rate, first = 1 + p_others.sum(), np.maximum(p_others, q_others).sum()
    with np.errstate(divide='ignore'):
      turns = p_others / q_others
    missed = np.exp(-rate * _S)  # in a race where the winner has another time
    edges = np.r_[1, np.sort(turns[turns > 1]), np.inf]
    for low, high in zip(edges[:-1], edges[1:], strict=True):
      grows = turns <= low
      slope, rest = 1 + q_others[grows].sum(), p_others[~grows].sum()
      ends = (np.exp(-(rest + slope * u) * _S) for u in (low, high))
      missed -= np.subtract(*ends) / slope if low < high else 0
    both = np.exp(-rate * _S) - np.exp(-(1 + first) * _S)
    chance += p[y] - count * _integral(both * missed ** (count - 1))
  return chance


def recursive_rejection(p, q, count: int) -> float:
  """Returns the acceptance of one of `count` draws by `multi_candidate`."""
  left = 1.0
  for _ in range(count):
    p = np.maximum(p - q, 0)
    left, p = left * p.sum(), p / (p.sum() or 1)
  return 1 - left


def split(times_rv, count: int, rng):
  """Returns exponential times [R, C, V] whose minima are `times_rv` / C."""
  shape = (len(times_rv), count, times_rv.shape[1])
  later = rng.exponential(size=shape)
  least = rng.integers(count, size=(shape[0], 1, shape[2]))
  is_least = np.arange(count)[:, None] == least
  return times_rv[:, None] / count + np.where(is_least, 0, later)


def _pairs(count: int, size: int, rng, spread: float = 0.0):
  """Draws p, and q that is half p, float [V]."""
  for _ in range(count):
    alphas = np.exp(rng.uniform(-spread, spread, (2, 1))) * np.ones((2, size))
    p, noise = np.maximum([*map(rng.dirichlet, alphas)], 1e-6)
    p, noise = p / p.sum(), noise / noise.sum()
    yield p, noise if spread else (p + noise) / 2


@pytest.mark.parametrize('count', [1, 2, 4])
def test_chances_are_those_of_samples(count):
  """The winner is the same, and has the distribution p, for any `count`."""
  rng, rows = np.random.default_rng(count), 40_000
  ((p, q),) = _pairs(1, 6, rng)
  at = jnp.full((rows, 1), 3, jnp.int32)
  keys = draw.row_keys(jnp.arange(rows, dtype=jnp.int32))
  times = np.asarray(coupling.handicaps(keys, at, 6)[:, 0], np.float64)
  races = split(times, count, rng)
  winner = (times / p).argmin(axis=1)
  np.testing.assert_array_equal(winner, (races.min(axis=1) / p).argmin(axis=1))
  assert abs(races.mean() - 1) < 0.02 and abs(races.std() - 1) < 0.03
  speeds = coupling.speeds(np.float32(q)[None], jnp.asarray(times, jnp.float32))
  for tokens, chance in (
    (np.asarray(draw.largest(speeds, count)[1]), one_race),
    ((races / q).argmin(axis=2), list_sampling),
  ):
    expected = chance(p, q, count)
    found = (tokens == winner[:, None]).any(axis=1).mean()
    assert abs(found - expected) < 4 * np.sqrt(0.25 / rows)


def test_chances():
  rng = np.random.default_rng(0)
  for p, q in _pairs(10, 4, rng, spread=2):
    ratios = lambda probs: probs[None] / probs[:, None]
    single = (1 / np.maximum(ratios(p), ratios(q)).sum(axis=1)).sum()
    for chance in (one_race, list_sampling):
      assert abs(chance(p, q, 1) - single) < 1e-8
    assert abs(one_race(p, q, 4) - 1) < 1e-8
    for count in (1, 2, 4):
      assert abs(list_sampling(p, p, count) - 1) < 1e-8


def test_one_race_holds_the_winner_more_often():
  """So a coupled drafter needs no other races for its other candidates."""
  rng = np.random.default_rng(1)
  gains = [
    one_race(p, q, count) - list_sampling(p, q, count)
    for size in (2, 3, 6)
    for p, q in _pairs(40, size, rng, spread=3)
    for count in (2, 3)
  ]
  assert min(gains) > -1e-8 and np.mean(gains) > 0.02


def _accepted(pairs, count: int, kind: str, depth=3, texts=200, rows=1000):
  """Returns the mean accepted tokens of `count` chains, from samples.

  Later tokens of a chain are the first ones under q: of their race, and in list
  sampling of the chain's race. There the target reads the races of all chains,
  or (`alive`) of those whose tokens were accepted so far.
  """
  rng, total = np.random.default_rng(0), 0
  for at_g in np.random.default_rng(1).integers(
    len(pairs), size=(texts, depth)
  ):
    alive = np.ones((rows, count), bool)
    for step, at in enumerate(at_g):
      p, q = pairs[at]
      if kind == 'one race':
        times = rng.exponential(size=(rows, len(p)))
        firsts = np.argsort(times / q, axis=1)
        tokens = firsts[:, :count] if not step else firsts[:, :1]
      else:
        races = rng.exponential(size=(rows, count, len(p)))
        tokens = (races / q).argmin(axis=2)
        if kind == 'alive':
          races = np.where(alive[:, :, None], races, np.inf)
        times = races.min(axis=1)
      alive &= tokens == (times / p).argmin(axis=1)[:, None]
      total += alive.any(axis=1).sum()
  return total / texts / rows


if __name__ == '__main__':
  generator = np.random.default_rng(0)
  print('one candidate is the winner, or a draft token is accepted:')
  print(' V  C  one race  list  rejection, iid  best, iid  best, distinct')
  for vocab in (4, 20):
    sampled = [*_pairs(200, vocab, generator)]
    for number in (1, 2, 4):
      shares = [
        (
          one_race(p, q, number),
          list_sampling(p, q, number),
          recursive_rejection(p, q, number),
          best_acceptance(p, q, 'iid', number),
          best_acceptance(p, q, 'without_replacement', number),
        )
        for p, q in sampled
      ]
      print(
        '{:2} {:2} {:9.3f} {:5.3f} {:15.3f} {:10.3f} {:15.3f}'.format(
          vocab, number, *np.mean(shares, axis=0)
        )
      )
  print('\naccepted tokens of C chains of 3, V = 20')
  print('  C  one race  list sampling  alive only')
  for number in (1, 2, 4):
    kinds = ('one race', 'all', 'alive')
    found = [_accepted(sampled, number, kind) for kind in kinds]
    print('{:3} {:9.2f} {:14.2f} {:11.2f}'.format(number, *found))
