"""The token rule: accepts or rejects the drafted tokens one at a time.

Source: speculative sampling, Chen et al., arXiv 2302.01318, algorithm 2 and
theorem 1; the same as Leviathan et al., arXiv 2211.17192, algorithm 1.

Drafts: chains of law `iid`.

The rule is exact token by token. Token x is drafted and accepted with
probability min(p(x), q(x)). A rejection has probability sum((p - q)+) and then
emits x with norm((p - q)+), which adds (p(x) - q(x))+. The sum is p(x).
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from specsamp.drafting.draft import Law
from specsamp.verification.probs import ratio, residual, rows_at, token_probs
from specsamp.verification.verifier import Verifier, check_chain


@dataclasses.dataclass(frozen=True)
class TokenVerifier(Verifier):
  """The rule that accepts each drafted token x with min(1, p(x) / q(x)).

  It never accepts a token with p(x) = 0 or q(x) = 0, nor one after an invalid
  node.
  """

  accepts: ClassVar[frozenset[Law]] = frozenset({'iid'})
  lossless: ClassVar[bool] = True

  def stop_probs(self, draft, p_bnv):
    """Returns a_1 .. a_i (1 - a_{i+1}) for node i, [B, N].

    a_i is the acceptance probability of token i, and a_{γ+1} = 0.
    """
    check_chain(self, draft)
    p_bg, q_bg = (x_bn[:, 1:] for x_bn in token_probs(draft, p_bnv))
    # min(p, q) / q and not min(1, p / q): it cannot overflow, and gives
    # exactly 1 where p >= q, exactly 0 where p = 0 or q = 0.
    accept_bg = ratio(jnp.minimum(p_bg, q_bg), q_bg, 0)
    accept_bg = jnp.where(draft.valid[:, 1:], accept_bg, 0)
    ends = ((0, 0), (1, 0))
    reach_bn = jnp.pad(jnp.cumprod(accept_bg, axis=1), ends, constant_values=1)
    reject_bn = jnp.pad(1 - accept_bg, ((0, 0), (0, 1)), constant_values=1)
    return reach_bn * reject_bn

  def leave_probs(self, draft, p_bnv, node_b):
    """Returns norm((p - q)+) after a node, [B, V]."""
    p_bv, q_bv = rows_at(draft, p_bnv, node_b)
    return residual(p_bv, q_bv, p_bv)
