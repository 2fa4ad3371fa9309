"""Block verification: the drafted tokens of a chain are judged jointly.

Sun et al., arXiv 2403.10444, algorithm 2. Expected tokens per round are never
fewer than the token rule's.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from specsamp.drafting.draft import Draft, Law
from specsamp.verification.probs import residual, rows_at, token_probs
from specsamp.verification.token import drafted_mask
from specsamp.verification.verifier import Verifier, check_chain


def prefix_weights(draft: Draft, p_bnv: jax.Array) -> jax.Array:
  """r [B, N]: r_0 = 1, r_i = min(1, r_{i-1} p(x_i) / q(x_i)).

  r_i is the chance that x_1 .. x_i are all accepted, given that they were
  drafted. It is 0 from a token that was not drafted on, and from one of
  p(x) = 0 or q(x) = 0.
  """
  p_bg, q_bg = (x_bn[:, 1:] for x_bn in token_probs(draft, p_bnv))
  # As in the token rule, min(r p, q) / q: no overflow, and no 0 * inf.
  divisor_bg = jnp.where(q_bg > 0, q_bg, 1)
  drafted_bg = drafted_mask(draft)
  weights = [jnp.ones_like(p_bnv[:, 0, 0])]
  for i in range(p_bg.shape[1]):
    weight = jnp.minimum(weights[-1] * p_bg[:, i], q_bg[:, i])
    weights.append(jnp.where(drafted_bg[:, i], weight / divisor_bg[:, i], 0))
  return jnp.stack(weights, axis=1)


@dataclasses.dataclass(frozen=True)
class BlockVerifier(Verifier):
  """Stops at the last i that passes its own test, of chance h_i.

  With M_i = sum((r_i p - q)+) after node i, h_i = M_i / (M_i + 1 - r_i), or 1
  where that is 0 / 0, and h = r at the last drafted node. Chains only.

  A row whose draft is cut short by an invalid node is a shorter block: its
  last drafted node takes the part of the last one. That is lossless because
  the chance to stop at i or after it, given x_1 .. x_i, is r_i either way.
  """

  accepts: ClassVar[frozenset[Law]] = frozenset({'iid'})
  lossless: ClassVar[bool] = True

  def stop_probs(self, draft: Draft, p_bnv: jax.Array) -> jax.Array:
    """[B, N]: h_i * prod_{j > i} (1 - h_j), with h_0 = 1."""
    check_chain(self, draft)
    weight_bn = prefix_weights(draft, p_bnv)
    # Padding q to N rows fuses with the sum on CPU; slicing p would copy it.
    q_bgv = draft.q if draft.tree.internal else p_bnv[:, :0]
    q_bnv = jnp.pad(q_bgv.astype(p_bnv.dtype), ((0, 0), (0, 1), (0, 0)))
    excess_bnv = weight_bn[..., None] * p_bnv - q_bnv
    mass_bn = jnp.maximum(excess_bnv, 0).sum(axis=-1)
    # 1 - r first: it is exactly 0 where r is 1, and then h is exactly 1.
    total_bn = (1 - weight_bn) + mass_bn
    some_bn = total_bn > 0
    pass_bn = jnp.where(some_bn, mass_bn / jnp.where(some_bn, total_bn, 1), 1)
    # Where no draft follows h is r: 1 at the root, 0 at what was not drafted.
    follows_bn = jnp.pad(drafted_mask(draft), ((0, 0), (0, 1)))
    pass_bn = jnp.where(follows_bn, pass_bn, weight_bn)
    # later_i = prod_{j > i} (1 - h_j).
    fail_bg = 1 - pass_bn[:, 1:]
    later_bg = jnp.flip(jnp.cumprod(jnp.flip(fail_bg, 1), axis=1), 1)
    later_bn = jnp.pad(later_bg, ((0, 0), (0, 1)), constant_values=1)
    return pass_bn * later_bn

  def leave_probs(
    self, draft: Draft, p_bnv: jax.Array, node_b: jax.Array
  ) -> jax.Array:
    """[B, V]: norm((r p - q)+) after `node_b`, or p where no draft follows it.

    Where no probability is left (a node that a row never stops at, rounding
    aside) it is p.
    """
    check_chain(self, draft)
    p_bv, q_bv = rows_at(draft, p_bnv, node_b)
    weight_bn = prefix_weights(draft, p_bnv)
    weight_b1 = jnp.take_along_axis(weight_bn, node_b[:, None], axis=1)
    return residual(weight_b1 * p_bv, q_bv, p_bv)
