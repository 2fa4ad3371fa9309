import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsamp.sampling import draw
from specsamp.sampling.draw import Stream
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules

inverse_cdf = jax.jit(draw.inverse_cdf)
without_replacement = jax.jit(draw.without_replacement)
LARGEST = np.float32(1 - 2**-24)


@pytest.mark.parametrize('size', [1, 3, 64, 100, 4096, 5000])
def test_equals_two_searches_of_running_sums(size):
  # With integer masses all sums are exact, so this tests the borders exactly.
  rng = np.random.default_rng(size)
  masses = rng.integers(0, 4, size)
  masses[rng.integers(size)] = 4
  count = draw._num_blocks(size)
  blocks = np.pad(masses, (0, -size % count)).reshape(count, -1)
  total = 2 ** int(masses.sum() - 1).bit_length()
  blocks[blocks.sum(1).argmax(), 0] += total - masses.sum()
  masses = blocks.reshape(-1)[:size]
  u = np.arange(total)[:: max(1, total // 500)] + rng.choice([0, 0.5], ())
  inside = rng.integers(0, 2**10, len(u)) / 2**10
  u = np.stack([u / total, inside], 1).astype(np.float32)
  search = lambda amounts, goal: np.searchsorted(
    np.cumsum(amounts), goal * amounts.sum(), side='right'
  )
  expected = []
  for first, second in u.astype(np.float64):
    block = search(blocks.sum(1), first)
    at = search(blocks[block], second)
    expected.append(block * blocks.shape[1] + at)
  probs = np.broadcast_to(masses.astype(np.float32), (len(u), size))
  for scale in (1.0, 1 / total):  # the sum need not be 1
    got = inverse_cdf(u, probs * np.float32(scale))
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(got, expected)


weight = st.one_of(
  st.just(0.0), st.floats(0, 1, width=32), st.sampled_from([1e-30, 1e-42, 1e8])
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
  st.lists(weight, min_size=37, max_size=37).filter(lambda w: max(w) > 1e-20),
  st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6),
)
def test_is_right_to_rounding_and_never_impossible(weights, grid):
  probs = np.broadcast_to(np.array(weights, np.float32), (8, 37))
  u = np.array([0, 2**32 - 1, *grid], np.uint32)
  u = np.asarray(draw._fractions(jnp.stack([u, u[::-1]], 1)))
  token = np.asarray(inverse_cdf(u, probs))
  assert (probs[0, token] > 0).all()
  count = draw._num_blocks(37)
  blocks = np.pad(probs[0].astype(np.float64), (0, -37 % count))
  blocks = blocks.reshape(count, -1)
  block, at = token // blocks.shape[1], token % blocks.shape[1]
  for u_b, amounts_bk, index_b in (
    (u[:, 0], np.broadcast_to(blocks.sum(1), (8, count)), block),
    (u[:, 1], blocks[block], at),
  ):
    ends = np.cumsum(amounts_bk, 1) / amounts_bk.sum(1, keepdims=True)
    ends = np.pad(ends, ((0, 0), (1, 0)))
    row = np.arange(8)
    assert (ends[row, index_b] - 1e-6 <= u_b).all()
    assert (u_b <= ends[row, index_b + 1] + 1e-6).all()


@pytest.mark.parametrize('u', [0.0, LARGEST])
def test_never_a_token_of_probability_0(u):
  rng, size = np.random.default_rng(0), 1000
  # Uneven sums, whose rounding differs between the two levels.
  probs = rng.exponential(size=(300, size)).astype(np.float32) ** 4
  probs[rng.random(probs.shape) < 0.7] = 0
  probs[::3, : size // 2] = 0
  probs[1::3, size // 2 :] = 0
  probs[np.arange(300), rng.integers(0, size, 300)] = 0.3
  token = np.asarray(inverse_cdf(np.full((300, 2), u, np.float32), probs))
  assert (probs[np.arange(300), token] > 0).all()
  if u == 0:
    np.testing.assert_array_equal(token, (probs > 0).argmax(1))


def test_running_sums_rounded_badly(monkeypatch):
  """Without a sum above, the last possible token; never an impossible one."""
  running = jnp.array([[0.5, 0.9, 0.9], [0.1, 0.2, 0.3]])
  amounts = jnp.array([[0.5, 0.4, 0.0], [0.1, 0.0, 0.2]])
  monkeypatch.setattr(draw.jnp, 'cumsum', lambda *_: running)
  got = draw._first_above(jnp.array([1.0, 0.5]), amounts)
  np.testing.assert_array_equal(got, [1, 2])


def test_uniforms():
  n = 20_000
  u = np.asarray(draw.uniforms(draw.row_keys(jnp.arange(n)), 1)[:, 0])
  assert u.shape == (n, 2)
  assert u.dtype == np.float32 and u.min() >= 0 and u.max() < 1
  # Both numbers are uniform and independent: all pairs of 4 bins each.
  first, second = (u * 4).astype(int).T
  seen = np.bincount(first * 4 + second, minlength=16)
  assert ((seen - n / 16) ** 2 / (n / 16)).sum() < 44.3  # 15 d.f., 1e-4
  # A number has 24 bits behind its first 1, and at most 32 bits in all.
  some = u[(u >= 0.25) & (u < 0.5)]
  assert 0.47 < (some * 2**25 % 2).mean() < 0.53
  assert (u[u < 2**-8] * 2**32 % 2 == 1).any()


def test_fractions_round_to_nearest_and_stay_below_1():
  bits = jnp.array([0, 1, 2**24 + 1, 2**32 - 2**8, 2**32 - 1], jnp.uint32)
  expected = [0, 2**-32, 2**-8, LARGEST, LARGEST]
  np.testing.assert_array_equal(draw._fractions(bits), np.float32(expected))


def test_no_two_uses_share_a_key():
  rows = draw.row_keys(jnp.array([0, 1, 2]))
  positions = [0, 1, 2, 3, 4, 8, 2**28 - 1]
  seen = [
    bytes(np.asarray(key))
    for position in positions
    for stream in Stream
    for key in jax.random.key_data(
      draw.stream_keys(rows, jnp.full(3, position), stream)
    )
  ]
  assert len(set(seen)) == len(seen) == 3 * len(Stream) * len(positions)


def test_a_row_does_not_depend_on_its_batch():
  rng = np.random.default_rng(0)
  seeds, positions = jnp.array([3, 1, 4, 1, 5]), jnp.array([9, 2, 6, 5, 3])
  probs = rng.dirichlet(np.full(1000, 0.1), 5).astype(np.float32)

  @jax.jit
  def tokens(seeds, positions, probs):
    # With another default generator, a vmapped row depends on the other rows.
    with jax.default_prng_impl('rbg'):
      rows = draw.row_keys(seeds)
    keys = draw.stream_keys(rows, positions, Stream.LEAVE)
    u = draw.uniforms(keys, 3)
    together, _ = draw.without_replacement(u, probs)
    return u, draw.categorical(keys, probs), together

  together = tokens(seeds, positions, probs)
  for i in range(5):
    alone = tokens(seeds[i : i + 1], positions[i : i + 1], probs[i : i + 1])
    for a, b in zip(alone, together, strict=True):
      np.testing.assert_array_equal(a[0], b[i])


def test_without_replacement_draws_in_turn():
  """Four numbers on a grid of 2**-5 are exact up to the grid's borders."""
  masses = np.array([4, 0, 2, 1, 1], np.float32)
  grid = (np.arange(32, dtype=np.float32) + 0.5) / 32
  u = np.stack(np.meshgrid(*[grid] * 4, indexing='ij'), -1).reshape(-1, 2, 2)
  probs = np.broadcast_to(masses / 8, (len(u), 5))
  tokens, drawn = without_replacement(u, probs)
  assert tokens.dtype == jnp.int32 and np.asarray(drawn).all()
  np.testing.assert_array_equal(tokens[:, 0], inverse_cdf(u[:, 0], probs))
  counts = np.zeros((5, 5))
  np.add.at(counts, tuple(np.asarray(tokens).T), 1 / len(u))
  p = masses.astype(np.float64) / 8
  expected = np.outer(p, p) / (1 - p[:, None])
  np.fill_diagonal(expected, 0)
  np.testing.assert_allclose(counts, expected, atol=1 / 32)
  np.testing.assert_array_equal(counts > 0, expected > 0)


def test_without_replacement_reports_when_nothing_is_left():
  rng, size = np.random.default_rng(0), 300
  probs = np.zeros((200, size), np.float32)
  support = rng.integers(1, 5, 200)
  for row, count in zip(probs, support, strict=True):
    at = rng.permutation(size)[:count]
    row[at] = rng.exponential(size=count) * 10.0 ** rng.integers(-30, 1, count)
  u = rng.integers(0, 2**24, (200, 4, 2)).astype(np.float32)
  u *= np.float32(2**-24)
  u[::5] = 0
  u[1::5] = LARGEST
  tokens, drawn = map(np.asarray, without_replacement(u, probs))
  np.testing.assert_array_equal(drawn, np.arange(4) < support[:, None])
  for row, taken, count in zip(probs, tokens, support, strict=True):
    assert set(taken[:count]) == set(np.flatnonzero(row))


@pytest.mark.parametrize('count', [4, 24])
def test_largest_is_top_k_on_a_mesh_too(count):
  # Few values give ties within shards and across them.
  rng = np.random.default_rng(count)
  values = rng.integers(0, 4, (4, 2, 24)).astype(np.float32)
  expected = jax.lax.top_k(values, count)
  mesh = meshes.make(2, 4)
  laid = meshes.put(
    values, rules.sharding(mesh)(values, 'batch', None, 'vocab')
  )
  largest = jax.jit(draw.largest, static_argnums=1)
  alone = largest(values, count)
  with meshes.use(mesh):
    sharded = largest(laid, count)
  for got in (alone, sharded):
    for a, b in zip(got, expected, strict=True):
      assert a.dtype == b.dtype
      np.testing.assert_array_equal(a, b)
