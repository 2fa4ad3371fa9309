"""The token rule: speculative sampling, one token at a time.

Chen et al., arXiv 2302.01318, algorithm 2 and theorem 1; the same rule is
algorithm 1 of Leviathan et al., arXiv 2211.17192.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from specsamp.drafting.draft import Draft, Law
from specsamp.verification.probs import residual, rows_at, token_probs
from specsamp.verification.verifier import Verifier, check_chain


def drafted_mask(draft: Draft) -> jax.Array:
  """bool [B, γ]: the tokens of a chain that were drafted.

  The first invalid node ends a row's draft: what follows it was drafted after
  a token that does not exist.
  """
  valid = draft.valid[:, 1:].astype(jnp.int32)
  return jnp.cumprod(valid, axis=1).astype(bool)


@dataclasses.dataclass(frozen=True)
class TokenVerifier(Verifier):
  """Accepts each drafted token x in turn with min(1, p(x) / q(x)).

  At the first rejection it emits a token of the residual distribution
  norm((p - q)+); if all are accepted, a bonus token of p. Chains only. A token
  of p(x) = 0 is never accepted, nor is one of q(x) = 0: it cannot have been
  drawn, whatever p is.
  """

  accepts: ClassVar[frozenset[Law]] = frozenset({'iid'})
  lossless: ClassVar[bool] = True

  def stop_probs(self, draft: Draft, p_bnv: jax.Array) -> jax.Array:
    """[B, N]: a_1 .. a_i (1 - a_{i+1}), and at the last node a_1 .. a_γ."""
    check_chain(self, draft)
    p_bg, q_bg = (x_bn[:, 1:] for x_bn in token_probs(draft, p_bnv))
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
    """
    check_chain(self, draft)
    p_bv, q_bv = rows_at(draft, p_bnv, node_b)
    return residual(p_bv, q_bv, p_bv)
