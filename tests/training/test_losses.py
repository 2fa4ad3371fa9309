"""Losses of the next token against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import log_softmax

from specsamp.training.objectives import language_model as losses


@pytest.fixture(scope='module')
def logits():
  rng = np.random.default_rng(0)
  # Large logits must not overflow.
  return rng.normal(size=(2, 3, 4, 7)).astype(np.float32) * np.float32(30)


def test_next_token(logits):
  labels = np.random.default_rng(1).integers(0, 7, (3, 4))
  log_p = log_softmax(logits[0])
  expected = np.mean([-log_p[b, t, labels[b, t]] for b, t in np.ndindex(3, 4)])
  got = losses.next_token(jnp.asarray(logits[0]), jnp.asarray(labels))
  assert got == pytest.approx(expected, rel=1e-5)


def test_distillation(logits):
  log_q, log_p = log_softmax(logits[0]), log_softmax(logits[1])
  expected = (np.exp(log_p) * (log_p - log_q)).sum(-1).mean()
  got = losses.distillation(*map(jnp.asarray, logits))
  assert got == pytest.approx(expected, rel=1e-5)
  same = jnp.asarray(logits[0])
  assert losses.distillation(same, same) == pytest.approx(0, abs=1e-6)
  gradient = jax.grad(losses.distillation)(same, same)
  np.testing.assert_allclose(gradient, np.zeros((3, 4, 7)), atol=1e-7)


def test_agreement(logits):
  q, p = (np.exp(log_softmax(x)) for x in logits)
  got = losses.agreement(*map(jnp.asarray, logits))
  assert got == pytest.approx(np.minimum(p, q).sum(-1).mean(), rel=1e-5)
  # One minus the total variation distance.
  assert got == pytest.approx(1 - np.abs(p - q).sum(-1).mean() / 2, rel=1e-5)
  same = jnp.asarray(logits[0])
  assert losses.agreement(same, same) == pytest.approx(1)
