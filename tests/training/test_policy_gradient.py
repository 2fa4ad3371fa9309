"""A step on rollouts."""

import jax
import numpy as np
import optax
from testing import tiny

from specsamp.training import policy_gradient


def test_advantages_are_of_a_group():
  found = policy_gradient.advantages(
    np.asarray([1, 3, 5, 5, 0, 2], np.float32), group=2
  )
  np.testing.assert_allclose(found, [-1, 1, 0, 0, -1, 1])
  four = np.asarray([0, 0, 0, 1], np.float32)
  found = policy_gradient.advantages(four, group=4)
  np.testing.assert_allclose(found, (four - 0.25) / (3 / 16) ** 0.5)


def test_equal_rewards_teach_nothing_though_their_mean_rounds():
  rewards = np.repeat(np.arange(160, dtype=np.float32) / 160, 7)
  assert not policy_gradient.advantages(rewards, group=7).any()


def test_a_step_makes_what_paid_more_probable():
  """The prompts and what fills the rows have no part in it."""
  model = tiny.model(11, 28)
  optimizer = optax.sgd(1e-2)
  update = policy_gradient.make_update(
    model.transformer, optimizer, None, temperature=1.0, kl=0.0, rows=1
  )
  tokens = np.asarray([[1, 2, 3, 4, 0, 0], [1, 2, 5, 6, 7, 0]], np.int32)
  is_new = np.asarray([[0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0]], np.float32)
  advantages = np.asarray([1, -1], np.float32)
  step = lambda params: update(
    params, optimizer.init(params), tokens, is_new, advantages
  )
  params, _, before = step(model.params)
  _, _, after = step(params)
  gain = np.asarray((after - before) * is_new).sum(axis=1)
  assert gain[0] > 0 > gain[1]
  logits = model.transformer.apply({'params': model.params}, tokens).logits
  wanted = jax.nn.log_softmax(logits[1, 1])[5]
  np.testing.assert_allclose(before[1, 2], wanted, rtol=1e-5)


def test_passes_add_up_to_the_whole():
  """One in which nothing is to be learnt is left out, and makes no part of it.

  The rollouts' temperature is that of the probabilities.
  """
  model = tiny.model(11, 28)
  rng = np.random.default_rng(0)
  tokens = rng.integers(1, 11, (6, 7)).astype(np.int32)
  is_new = (rng.random((6, 7)) < 0.7).astype(np.float32)
  is_new[:, 0] = 0
  is_new[:, 3] = 1
  is_text = np.asarray(
    [[is_new[i, j:].any() for j in range(7)] for i in range(6)], np.float32
  )
  assert 0 < is_text.sum() < is_text.size
  other = tiny.model(11, 29).params
  advantages = np.asarray([1, -1, 0, 0, 2, 0.5], np.float32)

  def gain(params):
    logits = model.transformer.apply({'params': params}, tokens).logits
    logprobs = jax.nn.log_softmax(logits[:, :-1] / 0.8)
    each = (logprobs * jax.nn.one_hot(tokens[:, 1:], 11)).sum(-1)
    gains = (advantages[:, None] * is_new[:, 1:] * each).sum() / is_new.sum()
    log_q = jax.nn.log_softmax(logits[:, :-1])
    logits = model.transformer.apply({'params': other}, tokens).logits
    log_p = jax.nn.log_softmax(logits[:, :-1])
    apart = (jax.numpy.exp(log_p) * (log_p - log_q)).sum(-1)
    # The second prompt's pass is left out.
    counts = is_text[:, 1:] * np.asarray([1, 1, 0, 0, 1, 1])[:, None]
    return gains - 0.5 * (apart * counts).sum() / is_text.sum()

  optimizer = optax.sgd(1.0)
  update = policy_gradient.make_update(
    model.transformer, optimizer, other, temperature=0.8, kl=0.5, rows=2
  )
  params, _, logprobs = update(
    model.params, optimizer.init(model.params), tokens, is_new, advantages
  )
  gradient = jax.grad(gain)(model.params)
  expected = jax.tree.map(np.add, model.params, gradient)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), params, expected
  )
  assert np.isnan(logprobs).any(axis=1).tolist() == [0, 0, 1, 1, 0, 0]
