"""A policy-gradient step on rollouts: GRPO (Shao et al. 2402.03300).

Each batch of rollouts gets one step, so that the ratio of policies is 1. All
tokens of a batch weigh the same, whereas GRPO weighs tokens of long rollouts
less.
"""

import functools

import jax
import numpy as np
import optax

from specsamp.models import Transformer


def advantages(rewards: np.ndarray, group: int) -> np.ndarray:
  """Returns rewards minus the mean of their group, in standard deviations.

  Args:
    rewards: float32 [B], those of a prompt next to each other.
    group: rollouts of a prompt.

  Returns:
    float32 [B]; exactly 0 in groups of equal rewards, whose mean is rounded.
  """
  by_prompt = rewards.reshape(-1, group)
  centred = by_prompt - by_prompt.mean(axis=1, keepdims=True)
  differs = np.ptp(by_prompt, axis=1, keepdims=True) > 0
  spread = np.where(differs, by_prompt.std(axis=1, keepdims=True), 1)
  return (differs * centred / spread).reshape(-1).astype(np.float32)


def make_update(
  transformer: Transformer,
  optimizer: optax.GradientTransformation,
  temperature: float,
):
  """Returns a compiled step on rollouts.

  Args:
    transformer: the policy.
    optimizer: optimizer of its parameters.
    temperature: temperature of the rollouts.

  Returns:
    (params, moments, tokens [B, T], is_new [B, T], advantages [B]) -> params,
    moments, metrics. `is_new` is 1 for the tokens of rollouts and 0 for others.
  """

  def loss(params, tokens_bt, is_new_bt, advantage_b):
    logits_btv = transformer.apply({'params': params}, tokens_bt).logits
    logprobs_bt = -optax.softmax_cross_entropy_with_integer_labels(
      logits_btv[:, :-1] / temperature, tokens_bt[:, 1:]
    )
    gain_bt = advantage_b[:, None] * is_new_bt[:, 1:] * logprobs_bt
    return -gain_bt.sum() / is_new_bt.sum()

  # Parameters are not donated, because the sampler holds them.
  @functools.partial(jax.jit, donate_argnums=1)
  def update(params, moments, *batch):
    total, grads = jax.value_and_grad(loss)(params, *batch)
    metrics = {'loss': total, 'grad_norm': optax.tree.norm(grads)}
    updates, moments = optimizer.update(grads, moments, params)
    params = optax.apply_updates(params, updates)
    return params, moments, metrics

  return update
