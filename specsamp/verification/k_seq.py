"""K-SEQ: tries siblings one after the other, each against the same p / rho.

Source: K-sequential selection of SpecTr, Sun et al., arXiv 2310.15141. At one
node it accepts at least 1 - 1/e times as often as the best lossless rule.

Drafts: static trees of law `iid`. On a chain it is the token rule.

A child x is accepted with min(1, p(x) / (rho q(x))), whatever its rank. For C
valid children and β = sum(min(q, p / rho)), a child is accepted with chance β,
and some child with 1 - (1 - β)^C. They emit min(q, p / rho) (1 - (1 - β)^C) / β
in all. The rule is exact if that is nowhere above p, because the residual
distribution then supplies the rest. This holds for any rho in [1, C] with ::

  1 - (1 - β)^C <= rho β,

and the root of the equation accepts the most.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from specsamp.drafting.draft import Draft, Law
from specsamp.verification import probs, tree_ops
from specsamp.verification.verifier import Verifier

# The rule is exact after any number of halvings if `stop_probs` and
# `leave_probs` agree on rho. They sum in different orders, so a test near the
# root may differ: rho is then off by C / 2**24, as much as float32 rounding.
_BISECTIONS = 24


def _tries(overlap: jax.Array, count: jax.Array, max_count: int) -> jax.Array:
  """Returns (1 - (1 - β)^C) / β, the expected number of tried candidates.

  The sum of (1 - β)^k over k < C is exact near β = 0 too. `overlap` is β and
  `count` is C.
  """
  tries = jnp.zeros_like(overlap)
  for k in range(max_count):
    tries = jnp.where(k < count, 1 + (1 - overlap) * tries, tries)
  return tries


def _overlap(p: jax.Array, q: jax.Array, rho: jax.Array) -> jax.Array:
  """Returns β = sum(min(rho q, p)) / rho, summed over the last axis."""
  return jnp.minimum(rho[..., None] * q, p).sum(axis=-1) / rho


def _solve(
  p: jax.Array, q: jax.Array, count: jax.Array, max_count: int
) -> jax.Array:
  """Returns rho, by bisection of 1 - (1 - β(rho))^C = rho β(rho).

  The result is the upper end of the last bracket, where the rule is exact even
  before convergence. `count` is C, at most `max_count`; 0 counts as 1.
  """

  def halve(_, ends):
    low, high = ends
    middle = (low + high) / 2
    tries = _tries(_overlap(p, q, middle), count, max_count)
    is_exact = tries <= middle
    return jnp.where(is_exact, low, middle), jnp.where(is_exact, middle, high)

  high = jnp.maximum(count, 1).astype(p.dtype)
  ends = jnp.ones_like(high), high
  return lax.fori_loop(0, _BISECTIONS, halve, ends)[1]


@dataclasses.dataclass(frozen=True)
class KSeqVerifier(Verifier):
  """The rule that accepts a child x with min(1, p(x) / (rho q(x))).

  It never accepts a token with p(x) = 0 or q(x) = 0.
  """

  accepts: ClassVar[frozenset[Law]] = frozenset({'iid'})
  lossless: ClassVar[bool] = True

  def stop_probs(self, draft, p_bnv):
    """Returns P(reach a node and reject all its children), [B, N]."""
    p_bn, q_bn = probs.token_probs(draft, p_bnv)
    bound_bn = self._rho(draft, p_bnv) * q_bn
    accept_bn = probs.ratio(jnp.minimum(p_bn, bound_bn), bound_bn, 0)
    accept_bn = jnp.where(draft.valid, accept_bn, 0)
    return tree_ops.stop_in_turn(draft.tree, accept_bn)

  def _rho(self, draft: Draft, p_bnv: jax.Array) -> jax.Array:
    """Returns rho of each node's parent, [B, N]; 1 for an only child."""
    tree = draft.tree
    crowded = tree_ops.crowded(tree)
    if not crowded:
      return jnp.ones(draft.tokens.shape, p_bnv.dtype)
    table = tree_ops.children(tree)[crowded]
    count_bk = tree_ops.at(draft.valid, table, False).sum(
      axis=-1, dtype=jnp.int32
    )
    p_bkv = probs.rows(p_bnv, crowded)
    q_bkv = probs.rows(draft.q, tree_ops.q_rows(tree)[crowded])
    q_bkv = q_bkv.astype(p_bkv.dtype)
    rho_bk = _solve(p_bkv, q_bkv, count_bk, table.shape[1])
    return tree_ops.of_parent(tree, rho_bk, crowded, 1)

  def leave_probs(self, draft, p_bnv, node_b):
    """Returns norm(p - min(q, p / rho) (1 - (1 - β)^C) / β), [B, V]."""
    p_bv, q_bv = probs.rows_at(draft, p_bnv, node_b)
    _, valid_bc = probs.children_at(draft, node_b)
    count_b, width = valid_bc.sum(axis=1, dtype=jnp.int32), valid_bc.shape[1]
    rho_b = jnp.ones_like(p_bv[:, 0])
    if width > 1:
      rho_b = _solve(p_bv, q_bv, count_b, width)
    # At most 1, so that no token is emitted with more than p.
    tries_b = _tries(_overlap(p_bv, q_bv, rho_b), count_b, width)
    share_b1 = (tries_b / rho_b)[:, None]
    kept_bv = jnp.minimum(rho_b[:, None] * q_bv, p_bv) * share_b1
    return probs.residual(p_bv, kept_bv, p_bv)
