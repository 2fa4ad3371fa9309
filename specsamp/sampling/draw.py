"""From probabilities to tokens, and the random numbers this takes.

A row's numbers depend on its own seed, the position in its text and the use
they are put to; never on the batch that it sits in.
"""

import enum

import jax
import jax.numpy as jnp
from jax import lax

from specsamp.sharding import lookup, rules


class Stream(enum.IntEnum):
  """What a random number decides; no two uses share bits."""

  DRAFT = 0
  STOP = 1
  LEAVE = 2
  RACE = 3


def row_keys(seeds: jax.Array) -> jax.Array:
  """Typed keys [B] of integer seeds [B]."""
  # The generator is named because with 'rbg' a vmapped row's numbers depend on
  # the rows beside it.
  make = lambda seed: jax.random.key(seed, impl='threefry2x32')
  return jax.vmap(make)(seeds)


def apart(row_keys: jax.Array, turns: jax.Array) -> jax.Array:
  """Keys [B] that differ for equal seeds, if their turns [B] do; 0 leaves one.

  Other numbers are folded in than `stream_keys` does.
  """
  data = turns.astype(jnp.uint32) | jnp.uint32(2**31)
  own = jax.vmap(jax.random.fold_in)(row_keys, data)
  return jnp.where(turns == 0, row_keys, own)


def stream_keys(
  row_keys: jax.Array, positions: jax.Array, stream: Stream
) -> jax.Array:
  """Keys of one use at one position of each row.

  Different (position, stream) never give a row the same key: they are folded
  in as one integer, and threefry under a fixed key is a bijection. One fold
  costs half of two.

  Args:
    row_keys: typed keys [B].
    positions: positions in the rows' texts [B], from 0 to below 2**28.
    stream: what the numbers are for.

  Returns:
    Typed keys [B].
  """
  data = positions.astype(jnp.uint32) * jnp.uint32(4) + jnp.uint32(int(stream))
  return jax.vmap(jax.random.fold_in)(row_keys, data)


def uniform(keys: jax.Array) -> jax.Array:
  """One float32 in [0, 1) for each key, [B]: all 2**24 multiples of 2**-24.

  That is one bit more than `jax.random.uniform` gives: a token's chance is off
  by up to the grid's width.
  """
  return uniforms(keys, 1)[:, 0]


def uniforms(keys: jax.Array, count: int) -> jax.Array:
  """`count` independent numbers like `uniform` for each key, [B, count]."""
  bits = jax.vmap(lambda key: jax.random.bits(key, (count,), jnp.uint32))(keys)
  bits = rules.constrain(bits, 'batch', None)  # drawn in every shard, not sent
  return (bits >> 8).astype(jnp.float32) * jnp.float32(2**-24)


def inverse_cdf(u: jax.Array, probs: jax.Array) -> jax.Array:
  """The first token whose running sum of probabilities exceeds u of the total.

  Works in two levels, blocks of about sqrt(V) tokens and the tokens of one
  block, since a running sum over the whole vocabulary is slow everywhere, and
  so that a sharded one exchanges the blocks' sums and one block only. One
  uniform a row replaces V Gumbel variables: on a CPU that is 2 us against 130
  for 4096 tokens.

  Never returns a token of probability 0: where rounding leaves no token whose
  running sum exceeds, it is the last one of positive probability.

  Args:
    u: numbers in [0, 1), [B].
    probs: at least 0, [B, V]; each row's sum is positive but need not be 1.

  Returns:
    Tokens, int32 [B].
  """
  batch, size = probs.shape
  count = _num_blocks(size)
  width = -(-size // count)
  blocks = jnp.pad(probs, ((0, 0), (0, count * width - size)))
  blocks = blocks.reshape(batch, count, width)

  # Of a sharded vocabulary, the blocks' sums and one block are exchanged whole,
  # which is less than the steps of a running sum over shards.
  sums = rules.constrain(blocks.sum(-1), rules.ANY, None)
  ends = jnp.cumsum(sums, -1)
  goal = u.astype(probs.dtype) * ends[:, -1]
  block = _first_above(ends, goal, sums)
  # Picking by index reads one block; a contraction with a one-hot reads them
  # all, and measured a third slower at eight rows.
  inside = lookup.along(blocks, block[:, None, None], axis=1)[:, 0]
  starts = jnp.pad(ends, ((0, 0), (1, 0)))
  start = jnp.take_along_axis(starts, block[:, None], 1)[:, 0]
  token = _first_above(jnp.cumsum(inside, -1), goal - start, inside)
  return block * width + token


def _num_blocks(size: int) -> int:
  """A power of two, at most near sqrt(V), that divides V.

  So that as many shards hold whole blocks. If only a small one divides V, it is
  the one near sqrt(V): such a vocabulary is padded, and on a mesh moved about.
  """
  near = 1 << (size - 1).bit_length() // 2
  divisor = size & -size
  return min(near, divisor) if divisor >= 16 else near


def _first_above(running, goal, amounts):
  """First index of positive amount with running > goal, else the last such.

  Does not take `running` to be sorted: a parallel running sum rounds each of
  its entries in its own way.
  """
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
  """Tokens drawn in turn, each from `probs` without the ones before it.

  In distribution that is Gumbel top-C, from C uniforms a row instead of V
  variables.

  Args:
    u: numbers in [0, 1), [B, C].
    probs: at least 0, [B, V]; each row's sum is positive but need not be 1.

  Returns:
    Tokens, int32 [B, C], and whether there was any left to draw, bool [B, C];
    where there was none the token is noise.
  """
  row = jnp.arange(probs.shape[0], dtype=jnp.int32)
  index = lax.broadcasted_iota(jnp.int32, probs.shape, 1)

  def step(left, u_b):
    token = inverse_cdf(u_b, left)
    drawn = lookup.along(left, token[:, None], axis=1)[:, 0] > 0
    if rules.mesh_in_use() is None:
      return left.at[row, token].set(0), (token, drawn)
    # To write into one shard XLA would gather them all.
    return jnp.where(index == token[:, None], 0, left), (token, drawn)

  _, (tokens, drawn) = lax.scan(step, probs, u.T)
  return tokens.T, drawn.T


def top_plus_one(
  u: jax.Array, probs: jax.Array, top: jax.Array, most: int
) -> tuple[jax.Array, jax.Array]:
  """The most probable tokens, then one drawn from `probs` without them.

  Args:
    u: numbers in [0, 1), [B].
    probs: at least 0, [B, V]; each row's sum is positive but need not be 1.
    top: how many of the most probable, int32 [B].
    most: the largest of these, static.

  Returns:
    Tokens, int32 [B, most + 1], and whether there was such a one, bool [B,
    most + 1]; where there was none the token is noise.
  """
  best, tokens = largest(probs, most)
  place = jnp.arange(most + 1, dtype=jnp.int32)[None]
  top = top[:, None]
  index = lax.broadcasted_iota(jnp.int32, probs.shape, 1)
  left = probs
  for i in range(most):
    left = jnp.where((index == tokens[:, i, None]) & (i < top), 0, left)
  token = inverse_cdf(u, left)[:, None]
  drawn = lookup.along(left, token, axis=1) > 0
  end = ((0, 0), (0, 1))
  return (
    jnp.where(place == top, token, jnp.pad(tokens, end)),
    jnp.where(place == top, drawn, jnp.pad(best > 0, end) & (place < top)),
  )


def largest(values: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
  """As `lax.top_k`: the largest along the last axis, and where they are.

  On a mesh they are found one by one, each by two sums' worth of numbers from
  every shard: XLA would gather the vocabulary and the batch to sort them.

  Args:
    values: [..., V], no NaN and no -inf.
    count: how many.

  Returns:
    Values and int32 indices, each [..., count], the lower index first in ties.
  """
  if rules.mesh_in_use() is None:
    return lax.top_k(values, count)
  size = values.shape[-1]
  index = lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)

  def step(left, _):
    most = left.max(-1, keepdims=True)
    first = jnp.where(left == most, index, size).min(-1, keepdims=True)
    return jnp.where(index == first, -jnp.inf, left), (most, first)

  _, found = lax.scan(step, values, length=count)
  return tuple(jnp.moveaxis(each[..., 0], 0, -1) for each in found)


def categorical(keys: jax.Array, probs: jax.Array) -> jax.Array:
  """One token a row: keys [B], probs [B, V] as in `inverse_cdf`; int32 [B]."""
  return inverse_cdf(uniform(keys), probs)
