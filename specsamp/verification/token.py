"""The token rule: speculative sampling, one token at a time.

Chen et al., arXiv 2302.01318, algorithm 2 and theorem 1; the same rule is
algorithm 1 of Leviathan et al., arXiv 2211.17192.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from specsamp.drafting.draft import Draft, Law
from specsamp.verification.verifier import check_chain


def drafted_mask(draft: Draft) -> jax.Array:
  """bool [B, γ]: the tokens of a chain that were drafted.

  The first invalid node ends a row's draft: what follows it was drafted after
  a token that does not exist.
  """
  valid = draft.valid[:, 1:].astype(jnp.int32)
  return jnp.cumprod(valid, axis=1).astype(bool)


def token_probs(draft: Draft, p_bnv: jax.Array) -> tuple[jax.Array, jax.Array]:
  """p(x) and q(x) of the drafted tokens of a chain, each [B, γ].

  Only these are read: nothing of the size of the vocabulary is made. A token
  outside the vocabulary has probability 0. An empty draft gives [B, 0].
  """
  # p keeps its last row, and the index gets a dummy: slicing p would copy it.
  index = jnp.roll(draft.tokens, -1, axis=1)[..., None]
  gather = lambda law, index: jnp.take_along_axis(
    law, index, axis=2, mode='fill', fill_value=0
  )[..., 0]
  p_bg = gather(p_bnv, index)[:, :-1]
  if not draft.tree.internal:  # q may be None, and p_bg is empty
    return p_bg, p_bg
  return p_bg, gather(draft.q, index[:, :-1]).astype(p_bnv.dtype)


def rows_at(
  draft: Draft, p_bnv: jax.Array, node_b: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """p and q after a node of a chain, each [B, V].

  Where nothing was drafted after the node, q is 0, so that the residual of p
  is p itself.
  """
  row = lambda law, node: jnp.take_along_axis(
    law, node[:, None, None], axis=1, mode='clip'
  )[:, 0]
  p_bv = row(p_bnv, node_b)
  if not draft.tree.internal:
    return p_bv, jnp.zeros_like(p_bv)
  drafted_b = node_b < drafted_mask(draft).sum(axis=1, dtype=jnp.int32)
  q_bv = row(draft.q, node_b).astype(p_bv.dtype)
  return p_bv, jnp.where(drafted_b[:, None], q_bv, 0)


def residual(p_bv: jax.Array, q_bv: jax.Array, otherwise_bv: jax.Array):
  """norm((p - q)+), [B, V]; `otherwise_bv` in the rows where that is all 0.

  It is 0 wherever p is.
  """
  excess_bv = jnp.maximum(p_bv - q_bv, 0)
  total_b1 = excess_bv.sum(axis=-1, keepdims=True)
  some_b1 = total_b1 > 0
  return jnp.where(
    some_b1, excess_bv / jnp.where(some_b1, total_b1, 1), otherwise_bv
  )


@dataclasses.dataclass(frozen=True)
class TokenVerifier:
  """Accepts each drafted token x in turn with min(1, p(x) / q(x)).

  At the first rejection it says a token of norm((p - q)+); if all are
  accepted, one more of p. Chains only. A token of p(x) = 0 is never accepted,
  nor is one of q(x) = 0: it cannot have been drawn, whatever p says.
  """

  accepts: ClassVar[frozenset[Law]] = frozenset({'iid'})

  def stop_probs(self, draft: Draft, p_bnv: jax.Array) -> jax.Array:
    """[B, N]: a_1 .. a_i (1 - a_{i+1}), and at the last node a_1 .. a_γ.

    Args:
      draft: a chain of γ = N - 1 tokens and its laws q [B, γ, V].
      p_bnv: float [B, N, V], the target's law after each node.

    Raises:
      ValueError: the draft is not a chain.
    """
    check_chain(self, draft)
    p_bg, q_bg = token_probs(draft, p_bnv)
    # min(p, q) / q and not min(1, p / q): it cannot overflow, and gives
    # exactly 1 where p >= q, exactly 0 where p = 0 or q = 0.
    accept_bg = jnp.minimum(p_bg, q_bg) / jnp.where(q_bg > 0, q_bg, 1)
    accept_bg = jnp.where(drafted_mask(draft), accept_bg, 0)
    ends = ((0, 0), (1, 0))
    reach_bn = jnp.pad(jnp.cumprod(accept_bg, axis=1), ends, constant_values=1)
    reject_bn = jnp.pad(1 - accept_bg, ((0, 0), (0, 1)), constant_values=1)
    return reach_bn * reject_bn

  def leave_probs(
    self, draft: Draft, p_bnv: jax.Array, node_b: jax.Array
  ) -> jax.Array:
    """[B, V]: norm((p - q)+) after `node_b`, or p where no draft follows it.

    If p = q, in exact arithmetic the row never stops there; what rounding lets
    through leaves from p.

    Args:
      draft: a chain of γ = N - 1 tokens and its laws q [B, γ, V].
      p_bnv: float [B, N, V], the target's law after each node.
      node_b: int32 [B], where each row stopped.

    Raises:
      ValueError: the draft is not a chain.
    """
    check_chain(self, draft)
    p_bv, q_bv = rows_at(draft, p_bnv, node_b)
    return residual(p_bv, q_bv, p_bv)
