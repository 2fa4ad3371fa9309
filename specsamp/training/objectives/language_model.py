"""Losses of the next token, in nats."""

import jax
import jax.numpy as jnp


def next_token(logits_btv, labels_bt):
  """Returns the mean cross-entropy of logits [B, T, V] and labels [B, T]."""
  return jnp.mean(next_tokens(logits_btv, labels_bt))


def next_tokens(logits, labels):
  """Returns the cross-entropy of every token, [..], of logits [.., V]."""
  picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)
  return jax.nn.logsumexp(logits, axis=-1) - picked[..., 0]


def distillation(student_btv, teacher_btv):
  """Returns the mean KL(teacher || student) of logits at temperature 1."""
  log_q = jax.nn.log_softmax(student_btv, axis=-1)
  log_p = jax.nn.log_softmax(teacher_btv, axis=-1)
  return jnp.mean(jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1))


def agreement(student_btv, teacher_btv):
  """Returns the mean acceptance rate at temperature 1: sum_v min(p, q).

  See Chen et al. 2302.01318, Theorem 1.
  """
  q = jax.nn.softmax(student_btv, axis=-1)
  p = jax.nn.softmax(teacher_btv, axis=-1)
  return jnp.mean(jnp.sum(jnp.minimum(p, q), axis=-1))
