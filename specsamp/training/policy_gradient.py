"""A step of policy gradient on rollouts.

GRPO (Shao et al. 2402.03300) with one step on each batch, so that no ratio of
policies is left of it: advantages are rewards over the mean of their group, in
its standard deviations. All tokens of a batch weigh the same, where GRPO has
those of a rollout weigh the less the longer it is.
"""

import functools
from typing import Any

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
  # Of equal rewards, whose mean rounds, nothing is to be learnt.
  equal = (by_prompt == by_prompt[:, :1]).all(axis=1, keepdims=True)
  found = np.where(equal, 0, centred / np.where(equal, 1, spread))
  return found.reshape(-1).astype(np.float32)


def make_update(
  transformer: Transformer,
  optimizer: optax.GradientTransformation,
  reference: Any,
  *,
  temperature: float,
  kl: float,
  rows: int,
):
  """A step on rollouts, of two compiled programs whatever their number.

  Args:
    transformer: the policy.
    optimizer: of its parameters.
    reference: parameters that the policy is to stay close to.
    temperature: that the rollouts were drawn at.
    kl: weight of KL(reference || policy), the mean over the tokens of prompts
      and rollouts. It is of whole distributions, at temperature 1, where GRPO
      estimates KL(policy || reference) from the tokens drawn.
    rows: rollouts in a pass, which divide B. Gradients are added up, of those
      passes in which some advantage is not 0; the others' divergence is left
      out too, as if it were 0.

  Returns:
    (params, moments, tokens [B, T], is_new [B, T], advantages [B]) -> params,
    moments, and the log-probabilities [B, T] of the tokens before the step, NaN
    where no pass was needed; a row's first is none. Every row has a new token,
    and nothing but what fills it behind the last.
  """

  def loss(params, reference, tokens_bt, gain_bt, anchor_bt):
    apply = lambda params: transformer.apply(
      {'params': params}, tokens_bt
    ).logits[:, :-1]
    logits = apply(params)
    logprobs_bt = -losses.next_tokens(logits / temperature, tokens_bt[:, 1:])
    total = -(gain_bt[:, 1:] * logprobs_bt).sum()
    if kl:
      apart_bt = losses.distillations(logits, apply(reference))
      total += kl * (anchor_bt[:, 1:] * apart_bt).sum()
    return total, jnp.pad(logprobs_bt, ((0, 0), (1, 0)))

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
    gain_bt = advantage_b[:, None] * is_new_bt / is_new_bt.sum()
    # All but what fills the rows.
    is_text_bt = np.maximum.accumulate(is_new_bt[:, ::-1], axis=1)[:, ::-1]
    weights = gain_bt, is_text_bt / is_text_bt.sum()
    gradients = jax.tree.map(jnp.zeros_like, params)
    logprobs_bt = np.full(tokens_bt.shape, np.nan, np.float32)
    for start in range(0, len(tokens_bt), rows):
      part = slice(start, start + rows)
      if advantage_b[part].any():
        batch = (each[part] for each in (tokens_bt, *weights))
        gradients, logprobs_bt[part] = add(
          gradients, params, reference if kl else None, *batch
        )
    params, moments = apply(params, moments, gradients)
    return params, moments, logprobs_bt

  return update
