"""Losses on acceptance against closed forms."""

import functools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specsamp.training.objectives import acceptance

_NAMES = get_args(acceptance.Loss)
_ETA = 2.0


@pytest.fixture(autouse=True)
def _in_64_bits():
  with jax.enable_x64(True):
    yield


def _logits(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape) * 3


def _softmax(x):
  x = np.exp(x - x.max(-1, keepdims=True))
  return x / x.sum(-1, keepdims=True)


_Q, _P = _logits(3, 7), _logits(3, 7, seed=1)
_LABELS = np.array([4, 0, 6])


def _expected(name, q, p):
  """Returns losses [..] by their definition."""
  alpha = np.minimum(p, q).sum(-1)
  kl = (p * np.log(p / q)).sum(-1)
  part = np.exp(-_ETA * alpha)
  return {
    'text': -np.log(np.take_along_axis(q, _LABELS[:, None], 1)[:, 0]),
    'kl': kl,
    'tv': np.abs(p - q).sum(-1) / 2,
    'lk_alpha': -np.log(alpha),
    'lk_lambda': part * kl + (1 - part) * (1 - alpha),
  }[name]


def _closed_form(name, q, p):
  """Returns the gradients of the paper's table."""
  alpha = np.minimum(p, q).sum(-1, keepdims=True)
  below = q < p
  tv = -q * (below - (q * below).sum(-1, keepdims=True))
  part = np.exp(-_ETA * alpha)
  return {
    'text': q - np.eye(7)[_LABELS],
    'kl': q - p,
    'tv': tv,
    'lk_alpha': tv / alpha,
    'lk_lambda': part * (q - p) + (1 - part) * tv,
  }[name]


@functools.partial(jax.jit, static_argnames='name')
def _per_position(name, q_logits, p_logits, labels=_LABELS, **options):
  """Returns the loss, log alpha, and the gradient in the draft's logits."""

  def loss(q_logits):
    found = acceptance.per_position(
      name, q_logits, p_logits, labels, eta=_ETA, **options
    )
    return found[0].sum(), found

  gradient, found = jax.grad(loss, has_aux=True)(q_logits)
  return *found, gradient


@pytest.mark.parametrize('name', _NAMES)
def test_losses_and_their_gradients(name):
  p, q = _softmax(_P), _softmax(_Q)
  found, log_alpha, gradient = _per_position(name, _Q, _P)
  np.testing.assert_allclose(found, _expected(name, q, p), rtol=1e-12)
  alpha = np.minimum(p, q).sum(-1)
  np.testing.assert_allclose(np.exp(log_alpha), alpha, rtol=1e-12)
  np.testing.assert_allclose(gradient, _closed_form(name, q, p), atol=1e-14)


@pytest.mark.parametrize('name', _NAMES[1:])
def test_a_draft_of_fewer_tokens(name):
  """Its columns alone equal all columns with `NEVER` in the others."""
  own = np.array([1, 2, 5])
  floored = np.full_like(_Q, acceptance.NEVER)
  floored[:, own] = _Q[:, own]
  normalizer = np.log(np.exp(_P).sum(-1))
  *wide, gradient = _per_position(name, floored, _P, None)
  *few, gradient_few = _per_position(
    name, _Q[:, own], _P[:, own], None, p_normalizer=normalizer
  )
  np.testing.assert_allclose(wide, few, rtol=1e-12)
  p, q = _softmax(_P)[:, own], _softmax(_Q[:, own])
  # Acceptance is with p unchanged, KL with p renormalized.
  np.testing.assert_allclose(np.exp(few[1]), np.minimum(p, q).sum(-1))
  if name == 'kl':
    p = p / p.sum(-1, keepdims=True)
    np.testing.assert_allclose(few[0], (p * np.log(p / q)).sum(-1))
  np.testing.assert_allclose(gradient[:, own], gradient_few, atol=1e-12)
  assert not np.delete(gradient, own, axis=1).any()


@pytest.mark.parametrize('name', _NAMES)
def test_far_apart_and_alike(name):
  """Overlap below the smallest float, no overlap, and p = q."""
  q_logits = np.zeros((3, 7), 'float32')
  p_logits = np.zeros((3, 7), 'float32')
  q_logits[0, 0] = p_logits[0, 1] = 2000
  q_logits[1], p_logits[1, 1:] = [0, *[acceptance.NEVER] * 6], 2000
  found, log_alpha, gradient = _per_position(name, q_logits, p_logits)
  assert found.dtype == 'float32'
  assert np.isfinite(found).all() and np.isfinite(log_alpha).all()
  # All seven tokens at exp(-2000), which no float has.
  np.testing.assert_allclose(log_alpha[0], np.log(7) - 2000, rtol=1e-6)
  assert np.isfinite(gradient).all()
  if name != 'text':
    np.testing.assert_allclose(found[2], 0, atol=1e-6)
    np.testing.assert_allclose(gradient[2], 0, atol=1e-6)


def test_no_gradient_reaches_the_target():
  loss = lambda p_logits: sum(
    x.sum()
    for name in _NAMES
    for x in acceptance.per_position(name, _Q, p_logits, _LABELS)
  )
  assert not np.any(jax.jit(jax.grad(loss))(jnp.asarray(_P)))
  loss, log_alpha = acceptance.per_position('text', _Q, None, _LABELS)
  assert loss.shape == (3,) and log_alpha is None


def test_weights_are_those_of_the_expected_length():
  """sum_j W_j grad(-log alpha_j) is the gradient of the expected length."""
  q_logits, p_logits = _logits(2, 4, 7), _logits(2, 4, 7, seed=1)

  def length(q_logits):
    miss, _ = acceptance.per_position('tv', q_logits, p_logits, None)
    return jnp.cumprod(1 - miss, axis=-1).sum()

  def weighed(q_logits):
    loss, log_alpha = acceptance.per_position(
      'lk_alpha', q_logits, p_logits, None
    )
    return (acceptance.expected_length_weights(log_alpha) * loss).sum()

  q_logits = jnp.asarray(q_logits)
  np.testing.assert_allclose(
    *jax.jit(lambda q: (jax.grad(weighed)(q), -jax.grad(length)(q)))(q_logits),
    atol=1e-12,
  )


def test_positions_that_a_draft_lacks_count_as_the_mean():
  alpha = np.array([[0.5, 0.25, 0.0], [0.5, 0.75, 0.2], [0.1, 0.0, 0.0]])
  known = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0]], bool)
  with np.errstate(divide='ignore'):
    log_alpha = np.where(known, np.log(alpha), np.nan)
  got = acceptance.expected_length_weights(log_alpha, known)
  filled = np.array([[0.5, 0.25, 0.2], [0.5, 0.75, 0.2], [0.1, 0.5, 0.2]])
  reached = np.cumprod(filled, axis=1)
  wanted = [[row[j:].sum() for j in range(3)] for row in reached]
  np.testing.assert_allclose(got, wanted, rtol=1e-12)
