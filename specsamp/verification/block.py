"""Block verification: judges the drafted tokens of a chain jointly.

Source: Sun et al., arXiv 2403.10444, algorithm 2. It never accepts fewer tokens
per step, in expectation, than the token rule.

Drafts: chains of law `iid`.

Let x_1 .. x_γ be the drafted tokens, and p and q those after x_i. Define ::

  r_0 = 1,  r_i = min(1, r_{i-1} p(x_i) / q(x_i))     weight of the prefix
  M_i = sum((r_i p - q)+)                             mass left after it
  h_i = M_i / (M_i + 1 - r_i),  h_γ = r_γ             with 0 / 0 = 1

The rule stops at the last i that passes a test of probability h_i and emits a
draw from norm((r_i p - q)+). It is exact because the probability to stop at i
or later, given x_1 .. x_i, is r_i. The residual supplies the rest of p.

A row whose draft ends early at an invalid node is a shorter block.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from specsamp.drafting.draft import Draft, Law
from specsamp.verification.probs import ratio, residual, rows_at, token_probs
from specsamp.verification.verifier import Verifier, check_chain


def prefix_weights(draft: Draft, p_bnv: jax.Array) -> jax.Array:
  """Returns the weights r_0 .. r_γ, [B, N].

  The weight is 0 from the first token that was not drafted or has p(x) = 0 or
  q(x) = 0.
  """
  p_bg, q_bg = (x_bn[:, 1:] for x_bn in token_probs(draft, p_bnv))
  weights = [jnp.ones_like(p_bnv[:, 0, 0])]
  for i in range(p_bg.shape[1]):
    # min(r p, q) / q as in the token rule: no overflow, and no 0 * inf.
    kept_b = jnp.minimum(weights[-1] * p_bg[:, i], q_bg[:, i])
    weight_b = ratio(kept_b, q_bg[:, i], 0)
    weights.append(jnp.where(draft.valid[:, i + 1], weight_b, 0))
  return jnp.stack(weights, axis=1)


@dataclasses.dataclass(frozen=True)
class BlockVerifier(Verifier):
  """The rule that stops at the last node i that passes its test, h_i."""

  accepts: ClassVar[frozenset[Law]] = frozenset({'iid'})
  lossless: ClassVar[bool] = True

  def stop_probs(self, draft, p_bnv):
    """Returns h_i * prod_{j > i} (1 - h_j) for node i, [B, N], with h_0 = 1."""
    check_chain(self, draft)
    weight_bn = prefix_weights(draft, p_bnv)
    # Padding q to N rows fuses with the sum on CPU; slicing p would copy it.
    q_bgv = draft.q if draft.tree.internal else p_bnv[:, :0]
    q_bnv = jnp.pad(q_bgv.astype(p_bnv.dtype), ((0, 0), (0, 1), (0, 0)))
    excess_bnv = weight_bn[..., None] * p_bnv - q_bnv
    mass_bn = jnp.maximum(excess_bnv, 0).sum(axis=-1)
    # 1 - r first: it is exactly 0 where r is 1, and then h is exactly 1.
    pass_bn = ratio(mass_bn, (1 - weight_bn) + mass_bn, 1)
    # At the end of a draft h is r: 1 at the root, 0 at an undrafted node.
    follows_bn = jnp.pad(draft.valid[:, 1:], ((0, 0), (0, 1)))
    pass_bn = jnp.where(follows_bn, pass_bn, weight_bn)
    # later_i = prod_{j > i} (1 - h_j).
    fail_bg = 1 - pass_bn[:, 1:]
    later_bg = jnp.flip(jnp.cumprod(jnp.flip(fail_bg, 1), axis=1), 1)
    later_bn = jnp.pad(later_bg, ((0, 0), (0, 1)), constant_values=1)
    return pass_bn * later_bn

  def leave_probs(self, draft, p_bnv, node_b):
    """Returns norm((r p - q)+) after a node, [B, V]."""
    p_bv, q_bv = rows_at(draft, p_bnv, node_b)
    weight_bn = prefix_weights(draft, p_bnv)
    weight_b1 = jnp.take_along_axis(weight_bn, node_b[:, None], axis=1)
    return residual(weight_b1 * p_bv, q_bv, p_bv)
