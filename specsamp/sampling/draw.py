"""Draws of tokens from probabilities, and the random numbers for them.

A row's random numbers depend on its seed, the position in its sequence and
their use. They never depend on the other rows of the batch.
"""

import enum
import functools

import jax
import jax.numpy as jnp
from jax import lax

from specsamp.sharding import lookup, rules


class Stream(enum.IntEnum):
  """Use of a random number. No two uses share bits."""

  DRAFT = 0
  STOP = 1
  LEAVE = 2
  RACE = 3


def row_keys(seeds: jax.Array) -> jax.Array:
  """Returns typed keys [B] for integer seeds [B]."""
  # With the generator 'rbg', a vmapped row's numbers depend on the other rows.
  return jax.vmap(functools.partial(jax.random.key, impl='threefry2x32'))(seeds)


def apart(row_keys: jax.Array, turns: jax.Array) -> jax.Array:
  """Returns keys [B] that differ for rows of one seed, numbered by `turns` [B].

  Turn 0 returns the key unchanged. `stream_keys` folds in other integers.
  """
  data = turns.astype(jnp.uint32) | jnp.uint32(2**31)
  folded = jax.vmap(jax.random.fold_in)(row_keys, data)
  return jnp.where(turns == 0, row_keys, folded)


def stream_keys(
  row_keys: jax.Array, positions: jax.Array, stream: Stream
) -> jax.Array:
  """Returns the typed keys [B] of one use at one position of each row.

  Different pairs (position, stream) never give a row the same key: a pair is
  folded in as one integer, and threefry under a fixed key is a bijection. One
  fold costs half as much as two.

  Args:
    row_keys: typed keys [B].
    positions: positions in the rows' sequences [B], 0 to 2**28 - 1.
    stream: the use of the numbers.
  """
  data = positions.astype(jnp.uint32) * jnp.uint32(4) + jnp.uint32(int(stream))
  return jax.vmap(jax.random.fold_in)(row_keys, data)


def uniforms(keys: jax.Array, count: int) -> jax.Array:
  """Returns the uniform numbers of `count` draws for each key.

  Each number has 32 random bits, rounded to float32. It is below x with
  probability x, to within 2**-24 of x plus 2**-32. `jax.random.uniform` has 23
  bits, which turn a probability of 1e-9 into 1e-7 or 0.

  Args:
    keys: typed keys [B]; consumed.
    count: number of draws per key, of two numbers each (see `inverse_cdf`).

  Returns:
    Independent float32 numbers in [0, 1), [B, count, 2].
  """
  bits = jax.vmap(lambda key: jax.random.bits(key, (count, 2), jnp.uint32))
  # Every shard draws the numbers of its rows; none are sent.
  return _fractions(rules.constrain(bits(keys), 'batch', None, None))


def _fractions(bits: jax.Array) -> jax.Array:
  """Returns bits / 2**32 in float32, below 1."""
  u = bits.astype(jnp.float32) * jnp.float32(2**-32)
  return jnp.minimum(u, jnp.float32(1 - 2**-24))  # rounding may give 1


def inverse_cdf(u: jax.Array, probs: jax.Array) -> jax.Array:
  """Draws a block of tokens, then a token of this block.

  The first number picks the first block whose running sum of probabilities
  exceeds this share of the total. The second picks a token of the block in the
  same way. One number of 24 bits for both made the distribution over 151,936
  tokens wrong by a total variation of 1e-3, and a third of the tokens could
  never be drawn. Two numbers leave 1e-5, the rounding of the running sums
  (`tests/sampling/test_draw_error.py`).

  Blocks have about sqrt(V) tokens. A running sum over the whole vocabulary is
  slow on every platform, and shards would exchange each of its steps. On a CPU
  a draw from 4,096 tokens takes 2 us; Gumbel variables for all of them take
  130 us.

  A token of probability 0 is never returned. If rounding leaves no running sum
  above the share, the last token of positive probability is returned.

  Args:
    u: float32 [B, 2], numbers of one draw from `uniforms`.
    probs: at least 0, [B, V]; each row's sum is positive but need not be 1.

  Returns:
    Tokens, int32 [B].
  """
  batch, size = probs.shape
  count = _num_blocks(size)
  width = -(-size // count)
  blocks = jnp.pad(probs, ((0, 0), (0, count * width - size)))
  blocks = blocks.reshape(batch, count, width)

  # Shards of a vocabulary exchange the blocks' sums and one block.
  sums = rules.constrain(blocks.sum(-1), rules.ANY, None)
  u = u.astype(probs.dtype)
  block = _first_above(u[:, 0], sums)
  # An index reads one block. A contraction with a one-hot reads all blocks and
  # was a third slower with eight rows.
  inside = lookup.along(blocks, block[:, None, None], axis=1)[:, 0]
  return block * width + _first_above(u[:, 1], inside)


def _num_blocks(size: int) -> int:
  """Returns a power of two, at most about sqrt(V), that divides V.

  If only a small power divides V, the result is the power near sqrt(V). The
  vocabulary is then padded, which moves it between the devices of a mesh.
  """
  near = 1 << (size - 1).bit_length() // 2
  divisor = size & -size
  return min(near, divisor) if divisor >= 16 else near


def _first_above(u, amounts):
  """Returns the first index whose running sum exceeds u times the total, [B].

  Only indices of positive amounts count; the last one is returned if no sum is
  large enough. A parallel sum may round to running sums that are unsorted.
  """
  running = jnp.cumsum(amounts, -1)
  goal = u * running[:, -1]
  index = lax.broadcasted_iota(jnp.int32, amounts.shape, 1)
  size = amounts.shape[1]
  positive = amounts > 0
  above = positive & (running > goal[:, None])
  first = jnp.where(above, index, size).min(-1)
  last = jnp.where(positive, index, 0).max(-1)
  return jnp.minimum(first, last)


def without_replacement(
  u: jax.Array, probs: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Draws tokens one after the other, each without the earlier ones.

  The distribution is that of Gumbel top-C, with 2C numbers per row, not V.

  Args:
    u: float32 [B, C, 2], numbers of `uniforms`.
    probs: at least 0, [B, V]; each row's sum is positive but need not be 1.

  Returns:
    Tokens, int32 [B, C]; and bool [B, C], False if no token was left to draw,
    where the token is noise.
  """
  row = jnp.arange(probs.shape[0], dtype=jnp.int32)
  index = lax.broadcasted_iota(jnp.int32, probs.shape, 1)

  def step(left, u_b2):
    token = inverse_cdf(u_b2, left)
    drawn = lookup.along(left, token[:, None], axis=1)[:, 0] > 0
    if rules.mesh_in_use() is None:
      return left.at[row, token].set(0), (token, drawn)
    # To write into one shard, XLA would gather all shards.
    return jnp.where(index == token[:, None], 0, left), (token, drawn)

  _, (tokens, drawn) = lax.scan(step, probs, jnp.moveaxis(u, 1, 0))
  return tokens.T, drawn.T


def top_plus_one(
  u: jax.Array, probs: jax.Array, top: jax.Array, max_top: int
) -> tuple[jax.Array, jax.Array]:
  """Returns the most probable tokens, then one drawn without them.

  Args:
    u: float32 [B, 2], numbers of one draw from `uniforms`.
    probs: at least 0, [B, V]; each row's sum is positive but need not be 1.
    top: number of the most probable tokens, int32 [B].
    max_top: upper bound on `top`, static.

  Returns:
    Tokens, int32 [B, max_top + 1]; and bool [B, max_top + 1], False where
    such a token is missing and the result is noise.
  """
  best, tokens = largest(probs, max_top)
  place = jnp.arange(max_top + 1, dtype=jnp.int32)[None]
  top = top[:, None]
  index = lax.broadcasted_iota(jnp.int32, probs.shape, 1)
  left = probs
  for i in range(max_top):
    left = jnp.where((index == tokens[:, i, None]) & (i < top), 0, left)
  token = inverse_cdf(u, left)[:, None]
  drawn = lookup.along(left, token, axis=1) > 0
  end = ((0, 0), (0, 1))
  return (
    jnp.where(place == top, token, jnp.pad(tokens, end)),
    jnp.where(place == top, drawn, jnp.pad(best > 0, end) & (place < top)),
  )


def largest(values: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
  """Returns `lax.top_k` of values [..., V] without NaN and -inf.

  On a mesh, XLA would gather the vocabulary and the batch to sort them. So the
  values are found one by one there, each with two numbers from every shard.
  """
  if rules.mesh_in_use() is None:
    return lax.top_k(values, count)
  size = values.shape[-1]
  index = lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)

  def step(left, _):
    best = left.max(-1, keepdims=True)
    first = jnp.where(left == best, index, size).min(-1, keepdims=True)
    return jnp.where(index == first, -jnp.inf, left), (best, first)

  _, stacked = lax.scan(step, values, length=count)
  return tuple(jnp.moveaxis(array[..., 0], 0, -1) for array in stacked)


def categorical(keys: jax.Array, probs: jax.Array) -> jax.Array:
  """Draws one token a row, int32 [B], with keys [B] from probs [B, V]."""
  return inverse_cdf(uniforms(keys, 1)[:, 0], probs)
