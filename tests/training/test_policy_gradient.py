"""A policy-gradient step on rollouts."""

import jax
import numpy as np
import optax
import pytest
from testing import tiny

from specsamp.training import policy_gradient


@pytest.mark.parametrize(
  ('rewards', 'group', 'expected'),
  [
    ([1, 3, 5, 5, 0, 2], 2, [-1, 1, 0, 0, -1, 1]),
    ([0, 0, 0, 1], 4, np.asarray([-1, -1, -1, 3]) / 3**0.5),
    # The mean of equal rewards is rounded.
    (np.repeat(np.arange(160) / 160, 7), 7, np.zeros(1120)),
  ],
)
def test_advantages_are_within_a_group(rewards, group, expected):
  rewards = np.asarray(rewards, np.float32)
  advantages = policy_gradient.advantages(rewards, group)
  np.testing.assert_allclose(advantages, expected, rtol=1e-6)


def test_a_step_is_the_gradient_of_the_advantages():
  """Prompts and padding have no part in it."""
  model = tiny.model(11, 28)
  rng = np.random.default_rng(0)
  tokens = rng.integers(1, 11, (6, 7)).astype(np.int32)
  is_new = (rng.random((6, 7)) < 0.7).astype(np.float32)
  is_new[:, 0] = 0
  advantages = np.asarray([1, -1, 0, 0, 2, 0.5], np.float32)

  def gain(params):
    logits = model.transformer.apply({'params': params}, tokens).logits
    logprobs = jax.nn.log_softmax(logits[:, :-1] / 0.8)
    logprobs = (logprobs * jax.nn.one_hot(tokens[:, 1:], 11)).sum(-1)
    gains = advantages[:, None] * is_new[:, 1:] * logprobs
    return gains.sum() / is_new.sum()

  optimizer = optax.sgd(1.0)
  update = policy_gradient.make_update(model.transformer, optimizer, 0.8)
  params, _, metrics = update(
    model.params, optimizer.init(model.params), tokens, is_new, advantages
  )
  expected, gradient = jax.jit(jax.value_and_grad(gain))(model.params)
  jax.tree.map(
    lambda got, old, grad: np.testing.assert_allclose(
      got, old + grad, atol=1e-5
    ),
    params,
    model.params,
    gradient,
  )
  np.testing.assert_allclose(metrics['loss'], -expected, rtol=1e-5)
