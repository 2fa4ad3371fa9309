"""Losses of a draft's distribution, and of what verification accepts of it.

With the target's p and the draft's q of a token, speculative sampling accepts
with chance alpha = sum_v min(p, q) = 1 - TV(p, q). Training for likelihood
lessens KL(p || q), which bounds TV and is not it; a small drafter, which cannot
have both, does better to be trained for alpha itself (LK losses, 2602.23881).

All is in log space, from two log-softmaxes: no ratio, and no floor under alpha,
which would take the gradient away where it is needed most. p and q are those of
temperature 1.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from specsamp.training.objectives import language_model

Loss = Literal['text', 'kl', 'tv', 'lk_alpha', 'lk_lambda']

# The logit of a token that cannot be drafted. Infinity is avoided: it makes
# NaN of gradients.
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
  """A loss of every position, and log alpha there.

  text is -log q(label), of gradient q - 1[label] in the draft's logits; kl is
  KL(p, q), of gradient q - p, which is that of cross-entropy with p. tv is
  1 - alpha, of gradient -q (1[q < p] - S), S the sum of q where q < p; lk_alpha
  is -log alpha, of that gradient divided by alpha; and lk_lambda is
  l KL + (1 - l) TV with l = exp(-eta alpha) held fixed.

  TV and -log alpha have little or no gradient where p and q hardly overlap:
  begin with a trained drafter, or with lk_lambda, which is nearly KL there.

  A draft of fewer tokens than the target's has its logits over its own tokens,
  and is given p's logits at these with `p_normalizer`; or its logits are
  `NEVER` elsewhere. Either way alpha is with p as it is, at most the mass
  that the draft can reach, and KL with p renormalised on that (no other is
  finite).

  Args:
    name: of the loss.
    q_logits: float [.., V].
    p_logits: float [.., V] of the same tokens; no gradient is taken to them.
      None where they are not known, which is enough for text alone.
    labels: int [..], the text's tokens, as columns of V; text's alone, None
      for the others.
    eta: of lk_lambda: how soon it goes over from KL to TV. 3 is the usual one;
      the paper's for Medusa is 10.
    p_normalizer: float [..], logsumexp of p's logits over all of the target's
      tokens; None if those are the V.

  Returns:
    The loss and log alpha, both [..]. No gradient is taken through the latter;
    it is None if `p_logits` is.
  """
  log_alpha = None
  if p_logits is not None:
    p_logits = jax.lax.stop_gradient(p_logits)
    if p_normalizer is None:
      p_normalizer = jax.nn.logsumexp(p_logits, axis=-1)
    log_p = p_logits - jax.lax.stop_gradient(p_normalizer)[..., None]
    log_q = jax.nn.log_softmax(q_logits, axis=-1)
    log_alpha = log_acceptance(log_p, log_q)
  match name:
    case 'text':
      loss = language_model.next_tokens(q_logits, labels)
    case 'kl':
      loss = _divergence(p_logits, log_q)
    case 'tv':
      loss = -jnp.expm1(log_alpha)
    case 'lk_alpha':
      loss = -log_alpha
    case 'lk_lambda':
      of_kl = jnp.exp(-eta * jnp.exp(jax.lax.stop_gradient(log_alpha)))
      loss = of_kl * _divergence(p_logits, log_q)
      loss -= (1 - of_kl) * jnp.expm1(log_alpha)
  if log_alpha is not None:
    log_alpha = jax.lax.stop_gradient(log_alpha)
  return loss, log_alpha


def log_acceptance(log_p, log_q):
  """log sum_v min(p, q): [..] of log-probabilities [.., V]."""
  return jax.nn.logsumexp(jnp.minimum(log_p, log_q), axis=-1)


def expected_length_weights(log_alpha, known=True):
  """W_j = sum over m >= j of prod over i <= m of alpha_i, held fixed.

  Along one text sum over m of prod over i <= m of alpha_i is how many tokens
  of a draft are accepted, and its gradient is that of sum_j W_j log alpha_j:
  with these weights on lk_alpha's losses, training is for the length itself. A
  position that is seldom reached, and one behind which little is accepted,
  weigh little.

  Args:
    log_alpha: float [.., J], of a draft's positions in order.
    known: bool [.., J], whether the draft has that position (it may end
      sooner, or reach beyond the text). Where it has not, the mean of those
      that have stands for it.

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
  """KL(p || q), with p on the tokens that q may draft."""
  p_logits = jnp.where(log_q > NEVER / 2, p_logits, NEVER)
  log_p = jax.nn.log_softmax(p_logits, axis=-1)
  p = jax.nn.softmax(p_logits, axis=-1)
  return jnp.sum(p * (log_p - log_q), axis=-1)
