"""Next-token losses, in nats; means over tokens unless noted."""

import jax
import jax.numpy as jnp


def next_token(logits_btv, labels_bt):
  """Cross-entropy of the text.

  Args:
    logits_btv: float32 [B, T, V].
    labels_bt: int [B, T].
  """
  return jnp.mean(next_tokens(logits_btv, labels_bt))


def next_tokens(logits, labels):
  """Cross-entropy of every token: [..] of logits [.., V] and labels [..]."""
  picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)
  return jax.nn.logsumexp(logits, axis=-1) - picked[..., 0]


def distillation(student_btv, teacher_btv):
  """KL(teacher || student) of the next token, both at temperature 1."""
  return jnp.mean(distillations(student_btv, teacher_btv))


def distillations(student, teacher):
  """KL(teacher || student) of every token: [..] of logits [.., V]."""
  log_q = jax.nn.log_softmax(student, axis=-1)
  log_p = jax.nn.log_softmax(teacher, axis=-1)
  return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


def agreement(student_btv, teacher_btv):
  """Mean of sum(min(p, q)): the token rule's chance of acceptance.

  Chen et al. 2302.01318, Theorem 1; both at temperature 1.
  """
  q = jax.nn.softmax(student_btv, axis=-1)
  p = jax.nn.softmax(teacher_btv, axis=-1)
  return jnp.mean(jnp.sum(jnp.minimum(p, q), axis=-1))
