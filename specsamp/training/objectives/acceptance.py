"""Losses between the draft's distribution q and the target's distribution p.

Speculative sampling accepts a draft token with probability
alpha = sum_v min(p, q) = 1 - TV(p, q). Maximum likelihood training minimizes
KL(p || q), which bounds TV. A small drafter cannot minimize both, and does
better if it is trained for alpha (LK losses, 2602.23881).

Everything is computed in log space from two log-softmaxes, without ratios and
without a lower bound on alpha, which would remove the gradient where it matters
most. p and q are the distributions at temperature 1.
"""

import jax
import jax.numpy as jnp
import optax

from specsamp.training.distill_config import Loss

# The logit of a token that cannot be drafted. With infinity gradients are NaN.
NEVER = -1e30


def per_position(
  name: Loss,
  q_logits,
  p_logits,
  labels,
  *,
  eta: float = 3.0,
  p_normalizer=None,
):
  """Computes a loss and log alpha at every position ::

    text      -log q(label). Gradient in the draft's logits: q - 1[label].
    kl        KL(p || q). Gradient: q - p.
    tv        1 - alpha. Gradient: -q (1[q < p] - S), where S is the sum of q
              over tokens with q < p.
    lk_alpha  -log alpha. Gradient: that of tv divided by alpha.
    lk_lambda l KL + (1 - l) TV, where l = exp(-eta alpha) is held fixed.

  TV and -log alpha have little or no gradient where p and q hardly overlap.
  Start with a trained drafter, or with lk_lambda, which is nearly KL there.

  A drafter may have fewer tokens than the target. Either both logits cover only
  the drafter's tokens and `p_normalizer` is given, or the drafter's logits are
  `NEVER` at other tokens. In both cases alpha uses p unchanged, and is at most
  the mass of the drafter's tokens. KL uses p renormalized on these tokens,
  because KL with p unchanged is infinite.

  Args:
    name: name of the loss.
    q_logits: float [.., V].
    p_logits: float [.., V] of the same tokens; None only for the loss `text`.
    labels: int [..], the text's tokens as columns of V; only `text` reads them.
    eta: speed at which KL gives way to TV in lk_lambda as alpha grows. The
      paper uses 3, and 10 for Medusa.
    p_normalizer: float [..], logsumexp of p's logits over all tokens of the
      target; None if V has all of them.

  Returns:
    The loss and log alpha, both [..]. log alpha is None without `p_logits`. log
    alpha and p are constants to the gradient.
  """
  log_alpha = None
  if p_logits is not None:
    p_logits = jax.lax.stop_gradient(p_logits)
    if p_normalizer is None:
      p_normalizer = jax.nn.logsumexp(p_logits, axis=-1)
    log_p = p_logits - jax.lax.stop_gradient(p_normalizer)[..., None]
    log_q = jax.nn.log_softmax(q_logits, axis=-1)
    log_alpha = jax.nn.logsumexp(jnp.minimum(log_p, log_q), axis=-1)
  match name:
    case 'text':
      loss = optax.softmax_cross_entropy_with_integer_labels(q_logits, labels)
    case 'kl':
      loss = _divergence(p_logits, log_q)
    case 'tv':
      loss = -jnp.expm1(log_alpha)
    case 'lk_alpha':
      loss = -log_alpha
    case 'lk_lambda':
      kl_share = jnp.exp(-eta * jnp.exp(jax.lax.stop_gradient(log_alpha)))
      loss = kl_share * _divergence(p_logits, log_q)
      loss -= (1 - kl_share) * jnp.expm1(log_alpha)
  if log_alpha is not None:
    log_alpha = jax.lax.stop_gradient(log_alpha)
  return loss, log_alpha


def expected_length_weights(log_alpha, known=True):
  """Returns W_j = sum_{m >= j} prod_{i <= m} alpha_i, without gradient.

  The expected number of accepted tokens along a text is
  sum_m prod_{i <= m} alpha_i. Its gradient is that of sum_j W_j log alpha_j, so
  these weights on the loss lk_alpha train for the accepted length.

  Args:
    log_alpha: float [.., J], of a draft's positions in order.
    known: bool [.., J], True if the draft has that position. A missing alpha is
      replaced by the mean of the known ones at that position.

  Returns:
    float [.., J], of all positions, known or not.
  """
  alpha = jnp.exp(jax.lax.stop_gradient(log_alpha))
  known = jnp.broadcast_to(known, alpha.shape)
  others = tuple(range(alpha.ndim - 1))
  means_j = jnp.sum(jnp.where(known, alpha, 0), axis=others)
  means_j /= jnp.maximum(known.sum(axis=others, dtype=alpha.dtype), 1)
  reached = jnp.cumprod(jnp.where(known, alpha, means_j), axis=-1)
  return jnp.flip(jnp.cumsum(jnp.flip(reached, -1), axis=-1), -1)


def _divergence(p_logits, log_q):
  """Returns KL(p || q) with p renormalized on the tokens that q can draft."""
  p_logits = jnp.where(log_q > NEVER / 2, p_logits, NEVER)
  log_p = jax.nn.log_softmax(p_logits, axis=-1)
  p = jax.nn.softmax(p_logits, axis=-1)
  return jnp.sum(p * (log_p - log_q), axis=-1)
