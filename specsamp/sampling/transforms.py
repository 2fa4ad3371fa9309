"""From logits to the probabilities that tokens are drawn from.

Drafter and target use the same function, so the q and p of a verifier are the
distributions that were sampled. No step sorts the vocabulary: bisection on bit
patterns, which have the order of the non-negative floats, finds the thresholds
of top-k and top-p exactly. It needs only sums over the vocabulary, so a sharded
vocabulary is never gathered. A sort takes a CPU 30 times as long.
"""

import functools
import numbers

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from specsamp.sharding import rules

# The logits of vocabulary padding, -1e30, have probability 0 up to here.
_MAX_TEMPERATURE = 1e6

# A test of one value of each field, and its accepted values in words.
_FIELD_RANGES = {
  'temperature': (
    lambda t: 0 <= t <= _MAX_TEMPERATURE,
    f'a number from 0 to {_MAX_TEMPERATURE:g}',
  ),
  'top_k': (
    lambda k: isinstance(k, numbers.Integral) and 0 <= k < 2**31,
    'an integer of at least 0 (0: off)',
  ),
  'top_p': (lambda p: 0 < p <= 1, 'a number in (0, 1]'),
  'min_p': (lambda p: 0 <= p < 1, 'a number in [0, 1)'),
}


@flax.struct.dataclass
class SamplingParams:
  """Transformation of logits to probabilities; scalars, or one value per row.

  It is a pytree of traced values, so new values do not recompile.

  Attributes:
    temperature: divisor of the logits; 0 is greedy, a one-hot of the argmax.
    top_k: keeps a token iff fewer than `top_k` tokens are strictly more
      probable; 0 keeps all. Ties at the border are all kept.
    top_p: keeps a token iff the mass of strictly more probable tokens is below
      `top_p` (Holtzman et al. 2020, https://arxiv.org/abs/1904.09751). That is
      the smallest set that reaches the mass, with all ties at the border. 1
      keeps all tokens, even those that rounding would drop.
    min_p: keeps a token iff its probability is at least `min_p` times the
      largest (Nguyen et al. 2024, https://arxiv.org/abs/2407.01082).
  """

  temperature: float | jax.Array = 1.0
  top_k: int | jax.Array = 0
  top_p: float | jax.Array = 1.0
  min_p: float | jax.Array = 0.0

  def broadcast(self, batch: int) -> 'SamplingParams':
    """Returns one value per row: float32 (top_k int32) arrays [batch].

    Raises:
      ValueError: a value is neither a scalar nor of shape [batch].
    """
    rows = {}
    for name in _FIELD_RANGES:
      value = getattr(self, name)
      # On the host if possible: small eager operations compile too.
      xp = jnp if isinstance(value, jax.core.Tracer) else np
      value = xp.asarray(value, jnp.int32 if name == 'top_k' else jnp.float32)
      if value.shape not in ((), (batch,)):
        raise ValueError(
          f'{name}: got shape {list(value.shape)}, expected a scalar or one '
          f'value per row, [{batch}]'
        )
      rows[name] = xp.broadcast_to(value, (batch,))
    return SamplingParams(**rows)

  def check(self) -> None:
    """Checks concrete values on the host. Traced values cannot be checked.

    Raises:
      ValueError: temperature is negative, NaN or above 1e6; top_k is negative
        or not an integer; top_p is outside (0, 1]; min_p is outside [0, 1).
    """
    for name, (is_valid, expected) in _FIELD_RANGES.items():
      for value in np.asarray(getattr(self, name)).reshape(-1).tolist():
        is_number = isinstance(value, numbers.Real)
        if not is_number or isinstance(value, bool) or not is_valid(value):
          raise ValueError(f'{name}: got {value!r}, expected {expected}')


def probabilities(logits: jax.Array, sampling: SamplingParams) -> jax.Array:
  """Returns the next-token distribution of logits.

  It applies temperature, top-k, top-p and min-p of `SamplingParams` in this
  order, and renormalises after each of them. A row of temperature 0 is the
  one-hot of its largest logit, the lowest index in a tie, and ignores the other
  values. In all other rows, logits are tied if their weights are equal.

  No result is NaN. A logit of -inf (padded vocabulary) or NaN has probability
  exactly 0, and +inf counts as the largest finite number. If a row has no
  finite logit, all its logits count as equal.

  Args:
    logits: [B, ..., V]; float64 is computed in float64, all else in float32.
    sampling: scalars or values per row, [B].

  Returns:
    Probabilities [B, ..., V], float32 or float64; sums over V are 1.
  """
  return _probabilities(logits, sampling.broadcast(logits.shape[0]))


@jax.jit  # traced once for all tokens of a draft, and all programs
def _probabilities(logits, sampling):
  dtype = jnp.float64 if logits.dtype == jnp.float64 else jnp.float32
  column = (logits.shape[0],) + (1,) * (logits.ndim - 1)
  top_k = sampling.top_k.reshape(column)
  temperature, top_p, min_p = (
    x.reshape(column).astype(dtype)
    for x in (sampling.temperature, sampling.top_p, sampling.min_p)
  )
  # A denormal temperature may be 0 on one side of a comparison only.
  greedy = temperature < jnp.finfo(dtype).tiny

  # Logits relative to the largest cannot overflow when divided, and the most
  # probable token weighs exactly 1. One division at the end normalises.
  logits = _relative(logits.astype(dtype))
  weights = jnp.exp(logits / jnp.where(greedy, 1.0, temperature))
  weights = _where_any(greedy, _one_hot, weights, logits)
  use_k = (top_k > 0) & (top_k < logits.shape[-1]) & ~greedy
  use_p = (top_p < 1) & ~greedy
  weights = _where_any(use_k, _top_k, weights, top_k)
  weights = _where_any(use_p, _top_p, weights, top_p)
  weights = jnp.where(weights >= min_p, weights, 0.0)
  return weights / weights.sum(-1, keepdims=True)


def _where_any(use, step, weights, value):
  """Returns step(weights, value, use), or the weights if no row uses it."""
  stepped = lax.cond(jnp.any(use), step, lambda w, *_: w, weights, value, use)
  # Without a constraint XLA gathers the result of a branch.
  axes = ('batch', *(None,) * (weights.ndim - 2), 'vocab')
  return rules.constrain(stepped, *axes)


def _relative(logits):
  """Returns logits minus the largest of their row: at most 0, never NaN."""
  finite = jnp.minimum(logits, jnp.finfo(logits.dtype).max)
  logits = jnp.where(jnp.isnan(logits), -jnp.inf, finite)
  top = logits.max(-1, keepdims=True)
  return jnp.where(top == -jnp.inf, 0.0, logits - top)


def _one_hot(weights, logits, greedy):
  # jnp.argmax is ten times slower on a CPU than these two plain reductions.
  size = logits.shape[-1]
  index = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
  first = jnp.where(logits == 0, index, size).min(-1, keepdims=True)
  one_hot = (index == first).astype(weights.dtype)
  return jnp.where(greedy, one_hot, weights)


def _top_k(weights, top_k, use):
  ones = jnp.ones_like(weights[..., :1])
  need = jnp.clip(top_k, 1, weights.shape[-1]).astype(weights.dtype)
  return _keep_until(weights, ones, need, use)


def _top_p(weights, top_p, use):
  # Above 0, which a set without tokens would reach.
  tiny = jnp.finfo(weights.dtype).tiny
  need = jnp.maximum(top_p * weights.sum(-1, keepdims=True), tiny)
  return _keep_until(weights, weights, need, use)


def _keep_until(weights, amounts, need, use):
  """Keeps the fewest largest weights whose amounts reach `need`, with ties."""
  kind = jnp.uint64 if weights.dtype == jnp.float64 else jnp.uint32
  bits = lax.bitcast_convert_type(weights, kind)
  need = jnp.broadcast_to(need, (*weights.shape[:-1], 1))
  # One bit per step is the least work, which matters on a CPU (18 us for a row
  # of 4096; 25 with two bits, 36 with four). Elsewhere the number of steps
  # matters: each is a kernel or, with a sharded vocabulary, an all-reduce.
  threshold = lax.platform_dependent(
    bits,
    amounts,
    need,
    cpu=functools.partial(_threshold, digit=1),
    default=functools.partial(_threshold, digit=4),
  )
  return jnp.where(~use | (bits >= threshold), weights, 0.0)


def _threshold(bits, amounts, need, *, digit):
  """Returns the largest pattern such that tokens not below it reach the need.

  The sum of the amounts over {bits >= x} falls as x grows, even if rounded, so
  the search sets the pattern from its highest digit down. The pattern is 0,
  which keeps all tokens, if the whole row does not reach the need.

  Args:
    bits: patterns of weights in [0, 1], [..., V], uint32 or uint64.
    amounts: contribution of each token, at least 0: [..., V], or [..., 1] if
      all contribute the same.
    need: required sum, [..., 1], above 0.
    digit: bits decided per step, with 2**digit - 1 sums.

  Returns:
    Patterns [..., 1] of the dtype of `bits`.
  """
  kind = bits.dtype
  # A float in [0, 1] has 0 in its highest two bits, the sign and the first bit
  # of the exponent.
  steps = -(-(jnp.iinfo(kind).bits - 2) // digit)
  digits = jnp.arange(1, 2**digit, dtype=kind)
  digits = digits.reshape((1,) * (bits.ndim - 1) + (-1, 1))

  def step(i, pattern):
    shift = ((steps - 1 - i) * digit).astype(kind)
    tries = pattern[..., None] + (digits << shift)  # [..., 2**digit - 1, 1]
    above = bits[..., None, :] >= tries
    sums = jnp.where(above, amounts[..., None, :], 0).sum(-1)
    reached = (sums >= need).sum(-1, keepdims=True, dtype=kind)
    return pattern + (reached << shift)

  return lax.fori_loop(0, steps, step, jnp.zeros(need.shape, kind))
