"""Gumbel coupling: every position of a text is decided by one race.

Token x runs for -log(u_x) / p(x), the u independent and uniform, and the first
to arrive is emitted: that is a draw from p (the Gumbel trick, -log(-log u)
being a Gumbel variable). The u depend on the row's seed and the position alone,
so a target emits the same text whatever was drafted, and a drafter that lets
its own q run the same race proposes what the target is likely to emit (Daliri,
Musco and Suresh, arXiv 2408.07978).
"""

import jax
import jax.numpy as jnp

from specsamp.sampling import draw


def handicaps(row_keys: jax.Array, positions_bn: jax.Array, vocab_size: int):
  """Exponential variables of each position, float32 [B, N, V].

  Each has 64 random bits. With 24 bits a token of probability far below 2**-24
  would win one race in 2**24.

  Args:
    row_keys: typed keys [B], of the rows' seeds.
    positions_bn: int [B, N], positions in the rows' texts.
    vocab_size: V.
  """

  def one(key):
    bits = jax.random.bits(key, (2, vocab_size), jnp.uint32)
    high, low = bits.astype(jnp.float32) * jnp.float32(2**-32)
    u = high + low * jnp.float32(2**-32)
    # Rounding may make it 1: a token that would run for ever.
    return -jnp.log1p(-jnp.minimum(u, jnp.float32(1 - 2**-24)))

  keys = jax.vmap(
    lambda positions_b: draw.stream_keys(
      row_keys, positions_b, draw.Stream.RACE
    ),
    in_axes=1,
    out_axes=1,
  )(positions_bn)
  return jax.vmap(jax.vmap(one))(keys)


def speeds(probs: jax.Array, handicaps: jax.Array) -> jax.Array:
  """One over the time in which each token arrives; the largest wins.

  A token of probability 0 never arrives: its speed is 0.
  """
  tiny = jnp.finfo(probs.dtype).tiny
  return probs / jnp.maximum(handicaps.astype(probs.dtype), tiny)


def winner_one_hot(probs: jax.Array, handicaps: jax.Array) -> jax.Array:
  """The winner of each race as a one-hot, shaped like `probs`."""
  winner = jnp.argmax(speeds(probs, handicaps), axis=-1)
  return jax.nn.one_hot(winner, probs.shape[-1], dtype=probs.dtype)
