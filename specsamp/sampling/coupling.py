"""Gumbel coupling: a random race decides every position of a completion.

Token x arrives at time -log(u_x) / p(x), with independent uniform u, and the
first token to arrive is emitted. That is a draw from p: the Gumbel-max trick,
where -log(-log(u)) is a Gumbel variable. The u depend only on the row's seed
and the position. So a target emits the same completion whatever was drafted,
and a drafter that runs its q in the same race often proposes the same
token (Daliri, Musco and Suresh, arXiv 2408.07978).
"""

import jax
import jax.numpy as jnp

from specsamp.sampling import draw


def handicaps(
  row_keys: jax.Array, positions_bn: jax.Array, vocab_size: int
) -> jax.Array:
  """Returns -log(u) for each position and token, float32 [B, N, V].

  Each u has 64 random bits. A token of probability far below 2**-24 would win
  one race in 2**24 if u had 24 bits.

  Args:
    row_keys: typed keys [B] of the rows' seeds.
    positions_bn: int [B, N], positions in the rows' sequences.
    vocab_size: V.
  """

  def exponential(key):
    bits = jax.random.bits(key, (2, vocab_size), jnp.uint32)
    high, low = bits.astype(jnp.float32) * jnp.float32(2**-32)
    u = high + low * jnp.float32(2**-32)
    # Rounding may give 1, whose token would never arrive.
    return -jnp.log1p(-jnp.minimum(u, jnp.float32(1 - 2**-24)))

  keys = jax.vmap(
    lambda positions_b: draw.stream_keys(
      row_keys, positions_b, draw.Stream.RACE
    ),
    in_axes=1,
    out_axes=1,
  )(positions_bn)
  return jax.vmap(jax.vmap(exponential))(keys)


def speeds(probs: jax.Array, handicaps: jax.Array) -> jax.Array:
  """Returns one over each token's arrival time. The largest speed wins.

  A token of probability 0 never arrives: its speed is 0.
  """
  tiny = jnp.finfo(probs.dtype).tiny
  return probs / jnp.maximum(handicaps.astype(probs.dtype), tiny)


def winner_one_hot(probs: jax.Array, handicaps: jax.Array) -> jax.Array:
  """Returns the winner of each race as a one-hot, shaped like `probs`."""
  winner = jnp.argmax(speeds(probs, handicaps), axis=-1)
  return jax.nn.one_hot(winner, probs.shape[-1], dtype=probs.dtype)
