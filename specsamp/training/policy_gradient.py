"""A step of policy gradient on rollouts.

GRPO (Shao et al. 2402.03300) with one step on each batch, so that no ratio of
policies is left of it: advantages are rewards over the mean of their group, in
its standard deviations.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from specsamp.models import Transformer
from specsamp.training.objectives import language_model as losses


def advantages(rewards, group: int):
  """Of each rollout, those of a prompt in a row: float32 [B].

  Args:
    rewards: float32 [B].
    group: rollouts of a prompt.
  """
  by_prompt = rewards.reshape(-1, group)
  centred = by_prompt - by_prompt.mean(axis=1, keepdims=True)
  spread = by_prompt.std(axis=1, keepdims=True)
  # Of equal rewards nothing is to be learnt.
  return (centred / np.maximum(spread, np.float32(1e-6))).reshape(-1)


def make_update(
  transformer: Transformer,
  optimizer: optax.GradientTransformation,
  temperature: float,
  rows: int,
):
  """A step on rollouts, of two compiled programs whatever their number.

  Args:
    transformer: the policy.
    optimizer: of its parameters.
    temperature: that the rollouts were drawn at.
    rows: rollouts in a pass, which divide B. Gradients are added up, of those
      passes in which something is to be learnt.

  Returns:
    (params, moments, tokens [B, T], is_new [B, T], advantages [B]) -> params,
    moments, and the log-probabilities [B, T] of the tokens before the step, NaN
    where no pass was needed; a row's first is none.
  """

  def loss(params, tokens_bt, weight_bt):
    logits = transformer.apply({'params': params}, tokens_bt).logits
    logprobs_bt = -losses.next_tokens(
      logits[:, :-1] / temperature, tokens_bt[:, 1:]
    )
    logprobs_bt = jnp.pad(logprobs_bt, ((0, 0), (1, 0)))
    return -(weight_bt * logprobs_bt).sum(), logprobs_bt

  @functools.partial(jax.jit, donate_argnums=0)
  def add(total, params, *batch):
    gradients, logprobs = jax.grad(loss, has_aux=True)(params, *batch)
    return jax.tree.map(jnp.add, total, gradients), logprobs

  # Parameters are not donated: rollouts are drawn with them.
  @functools.partial(jax.jit, donate_argnums=(1, 2))
  def apply(params, moments, gradients):
    updates, moments = optimizer.update(gradients, moments, params)
    return optax.apply_updates(params, updates), moments

  def update(params, moments, tokens_bt, is_new_bt, advantage_b):
    weight_bt = advantage_b[:, None] * is_new_bt / is_new_bt.sum()
    gradients = jax.tree.map(jnp.zeros_like, params)
    logprobs_bt = np.full(tokens_bt.shape, np.nan, np.float32)
    for start in range(0, len(tokens_bt), rows):
      part = slice(start, start + rows)
      if advantage_b[part].any():
        gradients, logprobs_bt[part] = add(
          gradients, params, tokens_bt[part], weight_bt[part]
        )
    params, moments = apply(params, moments, gradients)
    return params, moments, logprobs_bt

  return update
