"""K-SEQ: candidates in turn, each against the same p / rho.

K-sequential selection of SpecTr, Sun et al., arXiv 2310.15141. At one node it
accepts at least 1 - 1/e times as often as any lossless rule can.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from specsamp.drafting.draft import Draft, Law
from specsamp.verification import probs, tree_ops
from specsamp.verification.verifier import Verifier

# The rule is exact whatever their number if `stop_probs` and `leave_probs`
# agree on rho. They sum in different orders, so a test near the root may fall
# either way: rho is then off by C / 2**24, as much as float32 rounding.
BISECTIONS = 24


def _tries(overlap: jax.Array, count: jax.Array, most: int) -> jax.Array:
  """(1 - (1 - β)^C) / β: how many candidates are tried, in expectation.

  As the sum of (1 - β)^k for k < C, which is exact near β = 0 too.

  Args:
    overlap: β, the chance that one candidate is accepted.
    count: C, int32 of the same shape.
    most: the largest C, static.
  """
  tries = jnp.zeros_like(overlap)
  for k in range(most):
    tries = jnp.where(k < count, 1 + (1 - overlap) * tries, tries)
  return tries


def solve(
  overlap: Callable[[jax.Array], jax.Array],
  count: jax.Array,
  most: int,
  dtype: jnp.dtype,
) -> jax.Array:
  """rho, an upper bound of the root of 1 - (1 - β(rho))^C = rho β(rho).

  The rule is lossless for every rho in [1, C] at which the left side is not
  the larger one, and that is so from the root to C. So the upper end of the
  bracket is right even where the bisection has not converged.

  Args:
    overlap: rho -> β(rho), from the shape of `count` to the same.
    count: C, int32; 0 counts as 1.
    most: the largest C, static.
    dtype: of rho and β.
  """

  def halve(_, ends):
    low, high = ends
    middle = (low + high) / 2
    right = _tries(overlap(middle), count, most) <= middle
    return jnp.where(right, low, middle), jnp.where(right, middle, high)

  high = jnp.maximum(count, 1).astype(dtype)
  ends = jnp.ones_like(high), high
  return lax.fori_loop(0, BISECTIONS, halve, ends)[1]


def _overlap(p: jax.Array, q: jax.Array, rho: jax.Array) -> jax.Array:
  """β = sum(min(rho q, p)) / rho over the vocabulary, the last axis."""
  return jnp.minimum(rho[..., None] * q, p).sum(axis=-1) / rho


@dataclasses.dataclass(frozen=True)
class KSeqVerifier(Verifier):
  """Accepts a child x with min(1, p(x) / (rho q(x))), whatever its rank.

  With β = sum(min(q, p / rho)) and C valid children, rho in [1, C] solves
  1 - (1 - β)^C = rho β. With one child it is the token rule. A token of
  p(x) = 0 or q(x) = 0 is never accepted.
  """

  accepts: ClassVar[frozenset[Law]] = frozenset({'iid'})
  lossless: ClassVar[bool] = True

  def stop_probs(self, draft: Draft, p_bnv: jax.Array) -> jax.Array:
    """[B, N]: the chance to reach each node and accept none of its children."""
    tree = draft.tree
    p_bn, q_bn = probs.token_probs(draft, p_bnv)
    bound_bn = self._rho(draft, p_bnv) * q_bn
    accept_bn = probs.ratio(jnp.minimum(p_bn, bound_bn), bound_bn, 0)
    accept_bn = jnp.where(draft.valid, accept_bn, 0)
    return tree_ops.stop_in_turn(tree, accept_bn)

  def _rho(self, draft: Draft, p_bnv: jax.Array) -> jax.Array:
    """[B, N]: rho of each node's parent; 1 where that has one child."""
    tree = draft.tree
    crowded = tree_ops.crowded(tree)
    if not crowded:
      return jnp.ones(draft.tokens.shape, p_bnv.dtype)
    table = tree_ops.children(tree)[crowded]
    count_bk = tree_ops.at(draft.valid, table, False).sum(
      axis=-1, dtype=jnp.int32
    )

    p_bkv = probs.rows(p_bnv, crowded)
    q_bkv = probs.rows(draft.q, tree_ops.internal_rows(tree, crowded))
    q_bkv = q_bkv.astype(p_bkv.dtype)
    overlap = lambda rho_bk: _overlap(p_bkv, q_bkv, rho_bk)
    rho_bk = solve(overlap, count_bk, table.shape[1], p_bnv.dtype)
    return tree_ops.of_parent(tree, rho_bk, crowded, 1)

  def leave_probs(
    self, draft: Draft, p_bnv: jax.Array, node_b: jax.Array
  ) -> jax.Array:
    """[B, V]: norm(p - min(q, p / rho) (1 - (1 - β)^C) / β) after `node_b`.

    It is p where nothing was drafted after the node, or where rounding lets a
    row stop at which nothing is left.
    """
    p_bv, q_bv = probs.rows_at(draft, p_bnv, node_b)
    _, valid_bc = probs.children_at(draft, node_b)
    count_b, most = valid_bc.sum(axis=1, dtype=jnp.int32), valid_bc.shape[1]
    overlap = lambda rho_b: _overlap(p_bv, q_bv, rho_b)
    rho_b = jnp.ones_like(p_bv[:, 0])
    if most > 1:
      rho_b = solve(overlap, count_b, most, p_bv.dtype)
    # At most 1, so that no more is emitted than p.
    share_b1 = (_tries(overlap(rho_b), count_b, most) / rho_b)[:, None]
    kept_bv = jnp.minimum(rho_b[:, None] * q_bv, p_bv) * share_b1
    return probs.residual(p_bv, kept_bv, p_bv)
