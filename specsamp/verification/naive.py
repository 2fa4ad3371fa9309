"""The naive rule: draw from p, and keep the token if it was drafted.

The point-mass rule of deterministic candidates; the verification of SpecInfer
(Miao et al., arXiv 2305.09781) and the baseline of Yang et al., arXiv
2401.06706, section 4.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from specsamp.drafting.draft import Draft, Law
from specsamp.verification import dynamic, probs, tree_ops
from specsamp.verification.verifier import Verifier


def first_of_its_token(draft: Draft) -> jax.Array:
  """bool [B, N]: the valid nodes with no valid elder sibling of their token."""
  elders = tree_ops.elders(draft.tree)
  twin_bnc = tree_ops.at(draft.tokens, elders, -1) == draft.tokens[..., None]
  twin_bnc &= tree_ops.at(draft.valid, elders, False)
  return draft.valid & ~twin_bnc.any(axis=-1)


@dataclasses.dataclass(frozen=True)
class NaiveVerifier(Verifier):
  """Goes down to the child whose token is a draw from p, if there is one.

  Right for any way of choosing candidates that does not know what is drawn.
  It reads no q, which may be None. Of siblings with the same token the first
  valid one counts.
  """

  accepts: ClassVar[frozenset[Law]] = frozenset(
    {'iid', 'without_replacement', 'top_plus_one', 'deterministic'}
  )
  lossless: ClassVar[bool] = True
  reads_parents: ClassVar[bool] = True

  def stop_probs(self, draft: Draft, p_bnv: jax.Array) -> jax.Array:
    """[B, N]: the product of p(x) down to a node, times 1 - sum(p(child)).

    Only p at the drafted tokens is read.
    """
    if draft.parents is not None:
      return dynamic.stop_probs(draft, p_bnv)
    tree = draft.tree
    p_bn = probs.at_tokens(p_bnv, tree.parents[1:], draft)
    descend_bn = jnp.where(first_of_its_token(draft), p_bn, 0)
    drafted_bn = tree_ops.at(descend_bn, tree_ops.children(tree), 0).sum(
      axis=-1
    )
    end_bn = jnp.maximum(1 - drafted_bn, 0)
    return tree_ops.reach(tree, descend_bn) * end_bn

  def leave_probs(
    self, draft: Draft, p_bnv: jax.Array, node_b: jax.Array
  ) -> jax.Array:
    """[B, V]: norm(p without the valid children of `node_b`).

    It is p where they hold all of p (a node that a row never stops at,
    rounding aside).
    """
    p_bv = probs.row_at(p_bnv, node_b)
    tokens_bc, valid_bc = probs.children_at(draft, node_b)
    tokens_bc = jnp.where(valid_bc, tokens_bc, -1)
    drafted_bv = probs.is_among(tokens_bc, p_bv.shape[-1])
    return probs.residual(p_bv, jnp.where(drafted_bv, p_bv, 0), p_bv)
