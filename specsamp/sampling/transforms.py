"""From logits to the probabilities that tokens are drawn from.

One function serves the drafter and the target alike, so that what a verifier
calls q and p is exactly what was sampled from. No step sorts the vocabulary:
the thresholds of top-k and top-p are found by bisection on the bit patterns of
floats, which for non-negative numbers are ordered as the numbers are. That is
exact, needs only sums over the vocabulary (so a sharded one is never gathered),
and on a CPU takes a thirtieth of the time of a sort.
"""

import functools
import numbers

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from specsamp.sharding import rules

# Rows that pad a vocabulary have logits of -1e30, and stay without probability.
_HOTTEST = 1e6


@flax.struct.dataclass
class SamplingParams:
  """How logits become probabilities; each value a scalar or one per row [B].

  A pytree of traced values: another temperature compiles nothing.

  Attributes:
    temperature: divides the logits; 0 is greedy, a one-hot of the argmax.
    top_k: keeps a token iff fewer than `top_k` are strictly more probable; 0
      keeps all. Ties at the border are all kept.
    top_p: keeps a token iff the mass strictly more probable than it is below
      `top_p`: the smallest set that reaches the mass, ties at the border all
      kept (Holtzman et al. 2020, https://arxiv.org/abs/1904.09751). 1 keeps
      all, those that rounding would lose too.
    min_p: keeps a token iff its probability is at least `min_p` times the
      largest (Nguyen et al. 2024, https://arxiv.org/abs/2407.01082).
  """

  temperature: float | jax.Array = 1.0
  top_k: int | jax.Array = 0
  top_p: float | jax.Array = 1.0
  min_p: float | jax.Array = 0.0

  def broadcast(self, batch: int) -> 'SamplingParams':
    """One value per row: float32 (top_k int32) arrays [batch].

    Raises:
      ValueError: a value is neither a scalar nor of shape [batch].
    """

    def rows(name, dtype):
      value = getattr(self, name)
      # On the host if it can be: small eager operations compile too.
      xp = jnp if isinstance(value, jax.core.Tracer) else np
      value = xp.asarray(value, dtype)
      if value.shape not in ((), (batch,)):
        raise ValueError(
          f'{name}: got shape {list(value.shape)}, expected a scalar or one '
          f'value per row, [{batch}]'
        )
      return xp.broadcast_to(value, (batch,))

    return SamplingParams(
      temperature=rows('temperature', jnp.float32),
      top_k=rows('top_k', jnp.int32),
      top_p=rows('top_p', jnp.float32),
      min_p=rows('min_p', jnp.float32),
    )

  def check(self) -> None:
    """Checks concrete values, on the host; traced ones cannot be checked.

    Raises:
      ValueError: temperature negative, NaN or beyond 1e6; top_k negative or not
        an integer; top_p outside (0, 1]; min_p outside [0, 1).
    """
    _check(
      'temperature',
      self.temperature,
      lambda t: 0 <= t <= _HOTTEST,
      f'a number from 0 to {_HOTTEST:g}',
    )
    _check(
      'top_k',
      self.top_k,
      lambda k: isinstance(k, numbers.Integral) and 0 <= k < 2**31,
      'an integer of at least 0 (0: off)',
    )
    _check('top_p', self.top_p, lambda p: 0 < p <= 1, 'a number in (0, 1]')
    _check('min_p', self.min_p, lambda p: 0 <= p < 1, 'a number in [0, 1)')


def _check(name, values, good, expected):
  for value in np.asarray(values).reshape(-1).tolist():
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (is_number and good(value)):
      raise ValueError(f'{name}: got {value!r}, expected {expected}')


def probabilities(logits: jax.Array, sampling: SamplingParams) -> jax.Array:
  """Next-token distribution: temperature, top-k, top-p, min-p, in this order.

  Each step works on the renormalised result of the one before; the definitions
  stand with `SamplingParams`. A row of temperature 0 is the one-hot of its
  largest logit, the lowest index in a tie, whatever its other values. Ties are
  those of the computed numbers: logits so near that their float32 weights are
  equal count as equal, but in the argmax.

  A logit of -inf (padded vocabulary) or NaN has probability exactly 0, +inf
  counts as the largest finite number, and a row with no finite logit counts as
  all equal, so that no NaN comes out of here. Who must know that the model
  broke down looks at the logits.

  Args:
    logits: [B, ..., V]; float64 is computed as such, all else in float32.
    sampling: values per row, [B] (a scalar is broadcast).

  Returns:
    Probabilities [B, ..., V], float32 or float64; sums over V are 1.

  Raises:
    ValueError: a value of `sampling` is neither a scalar nor of shape [B].
  """
  return _probabilities(logits, sampling.broadcast(logits.shape[0]))


@jax.jit  # traced once for all tokens of a draft, and all programs
def _probabilities(logits, sampling):
  dtype = jnp.float64 if logits.dtype == jnp.float64 else jnp.float32
  column = (logits.shape[0],) + (1,) * (logits.ndim - 1)
  temperature, top_k, top_p, min_p = (
    x.reshape(column)
    for x in (
      sampling.temperature.astype(dtype),
      sampling.top_k,
      sampling.top_p.astype(dtype),
      sampling.min_p.astype(dtype),
    )
  )
  # A denormal temperature may read as 0 on one side of a comparison only.
  greedy = temperature < jnp.finfo(dtype).tiny

  # Relative to the largest before dividing: no temperature overflows, and the
  # most probable token weighs exactly 1 from here on. All steps work on these
  # weights; renormalising them is left to the end, where it costs one division.
  logits = _relative(logits.astype(dtype))
  weights = jnp.exp(logits / jnp.where(greedy, 1.0, temperature))
  weights = _where_any(greedy, _one_hot, weights, logits)
  # Rows that don't use a step pass it unchanged; a batch in which none does
  # skips the search.
  use_k = (top_k > 0) & (top_k < logits.shape[-1]) & ~greedy
  use_p = (top_p < 1) & ~greedy
  weights = _where_any(use_k, _top_k, weights, top_k)
  weights = _where_any(use_p, _top_p, weights, top_p)
  weights = jnp.where(weights >= min_p, weights, 0.0)
  return weights / weights.sum(-1, keepdims=True)


def _where_any(use, step, weights, value):
  """step(weights, value, use), left out where no row uses it."""
  stepped = lax.cond(jnp.any(use), step, lambda w, *_: w, weights, value, use)
  # XLA would gather what a branch returns.
  axes = ('batch', *(None,) * (weights.ndim - 2), 'vocab')
  return rules.constrain(stepped, *axes)


def _relative(logits):
  """Logits less the largest of their row: at most 0, -inf allowed, no NaN."""
  logits = jnp.where(
    jnp.isnan(logits),
    -jnp.inf,
    jnp.minimum(logits, jnp.finfo(logits.dtype).max),
  )
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
  # Never 0: a set without tokens would reach that.
  tiny = jnp.finfo(weights.dtype).tiny
  need = jnp.maximum(top_p * weights.sum(-1, keepdims=True), tiny)
  return _keep_until(weights, weights, need, use)


def _keep_until(weights, amounts, need, use):
  """Keeps the largest weights until their amounts reach the need, ties too."""
  bits = lax.bitcast_convert_type(weights, _unsigned(weights.dtype))
  need = jnp.broadcast_to(need, (*weights.shape[:-1], 1))
  # One bit a step does the least work, which is what counts on a CPU (18 us a
  # row of 4096; two bits at once 25, four 36). Elsewhere the number of steps
  # counts, each a kernel or, where the vocabulary is sharded, an all-reduce.
  threshold = lax.platform_dependent(
    bits,
    amounts,
    need,
    cpu=functools.partial(_threshold, digit=1),
    default=functools.partial(_threshold, digit=4),
  )
  return jnp.where(~use | (bits >= threshold), weights, 0.0)


def _threshold(bits, amounts, need, *, digit):
  """The largest pattern such that the tokens at or above it reach the need.

  The sum over {bits >= x} falls as x grows (rounding keeps the order of sums
  that are taken in the same order), so the pattern is found from its highest
  digit down. 0, which keeps everything, where the whole row does not reach the
  need.

  Args:
    bits: patterns of weights in [0, 1], [..., V], uint32 or uint64.
    amounts: what each token contributes, at least 0: [..., V], or [..., 1]
      where all contribute the same.
    need: what is to be reached, [..., 1], above 0.
    digit: bits decided in a step, by 2**digit - 1 sums at once.

  Returns:
    Patterns [..., 1] of the type of `bits`.
  """
  kind = bits.dtype
  # The highest two bits of a float in [0, 1] are 0: the sign, and the first of
  # the exponent, which is set from 2 on.
  steps = -(-(jnp.iinfo(kind).bits - 2) // digit)
  digits = jnp.arange(1, 2**digit, dtype=kind)
  digits = digits.reshape((1,) * (bits.ndim - 1) + (-1, 1))
  zero = jnp.zeros((), amounts.dtype)

  def step(i, found):
    shift = ((steps - 1 - i) * digit).astype(kind)
    tries = found[..., None] + (digits << shift)  # [..., 2**digit - 1, 1]
    above = bits[..., None, :] >= tries
    sums = jnp.where(above, amounts[..., None, :], zero).sum(-1)
    reached = (sums >= need).sum(-1, keepdims=True, dtype=kind)
    return found + (reached << shift)

  return lax.fori_loop(0, steps, step, jnp.zeros(need.shape, kind))


def _unsigned(dtype):
  return jnp.uint64 if dtype == jnp.float64 else jnp.uint32
