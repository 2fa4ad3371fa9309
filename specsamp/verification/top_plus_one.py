"""The rule for the most probable tokens plus one drawn token.

Source: the greedy draft of Hu et al., arXiv 2502.18779. The rule attains their
bound: no lossless rule accepts more of this draft. SpecHub (arXiv 2411.05289)
is the case of two candidates.

Drafts: static trees of law `top_plus_one`.

At one node, T is the set of all children but the last, and x is the last child,
drawn from q' = norm(q without T). The rule accepts x with min(1, p(x) / q'(x)).
After a rejection it draws y from norm(p - min(p, q') outside T), and descends
to y if y is in T. It is exact for the reason the token rule is: it emits
min(p, q') outside T, and y supplies the rest of p. For one child it is the
token rule. If no token was left to draw, it is the naive rule.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import Law
from specsamp.verification import probs, tree_ops
from specsamp.verification.naive import first_of_its_token
from specsamp.verification.verifier import Verifier


def _excess(p: jax.Array, q: jax.Array, tops: jax.Array, drawn: jax.Array):
  """Returns (p - q')+ outside T, [.., V], and the mass of q there, [..].

  `tops` is T, int32 [.., C], with -1 for a missing token. q' is 0 unless a
  token was `drawn` from it, bool [..].
  """
  among = probs.is_among(tops, p.shape[-1])
  outside = jnp.where(among | ~drawn[..., None], 0, q)
  left = outside.sum(axis=-1)
  drawn_from = probs.ratio(outside, left[..., None], 0)
  return jnp.where(among, 0, jnp.maximum(p - drawn_from, 0)), left


@dataclasses.dataclass(frozen=True)
class TopPlusOneVerifier(Verifier):
  """The rule that tries the drawn token first, then the most probable ones."""

  accepts: ClassVar[frozenset[Law]] = frozenset({'top_plus_one'})
  lossless: ClassVar[bool] = True

  def stop_probs(self, draft, p_bnv):
    """Returns P(reach a node and descend to none of its children), [B, N]."""
    tree = draft.tree
    if not tree.internal:
      return jnp.ones(p_bnv.shape[:2], p_bnv.dtype)
    last_i = np.asarray([tree.children(n)[-1] for n in tree.internal], np.int32)
    p_bn, q_bn = probs.token_probs(draft, p_bnv)
    # A draft of this law should be without twins; else the first twin counts.
    counts_bn = first_of_its_token(draft)
    kids_ic = tree_ops.children(tree)[list(tree.internal)]
    tops_ic = np.where(kids_ic == last_i[:, None], tree.size, kids_ic)
    token_bn = jnp.where(draft.valid, draft.tokens, -1)
    drawn_bi = tree_ops.take(counts_bn, last_i)
    excess_biv, left_bi = _excess(
      probs.rows(p_bnv, tree.internal),
      draft.q.astype(p_bnv.dtype),
      tree_ops.at(token_bn, tops_ic, -1),
      drawn_bi,
    )
    rest_bi = excess_biv.sum(axis=-1)

    # min(.., q) / q, as in `siblings`, cannot overflow.
    p_bi, q_bi = (tree_ops.take(x_bn, last_i) for x_bn in (p_bn, q_bn))
    accept_bi = probs.ratio(jnp.minimum(p_bi * left_bi, q_bi), q_bi, 0)
    accept_bi = jnp.where(drawn_bi, accept_bi, 0)
    reject_bi = 1 - accept_bi
    share_bn = jnp.where(counts_bn, p_bn, 0)
    total_bi = tree_ops.at(share_bn, tops_ic, 0).sum(axis=-1) + rest_bi

    accept_bn, reject_bn, total_bn = (
      tree_ops.of_parent(tree, values_bi, tree.internal, 1)
      for values_bi in (accept_bi, reject_bi, total_bi)
    )
    is_last_n = np.isin(np.arange(tree.size), last_i)
    descend_bn = reject_bn * probs.ratio(share_bn, total_bn, 0)
    descend_bn = jnp.where(is_last_n[None], accept_bn, descend_bn)
    end_bi = reject_bi * probs.ratio(rest_bi, total_bi, 1)
    end_bn = tree_ops.at(end_bi, tree_ops.q_rows(tree), 1)
    return tree_ops.reach(tree, descend_bn) * end_bn

  def leave_probs(self, draft, p_bnv, node_b):
    """Returns norm((p - q')+ outside T) after a node, [B, V]."""
    p_bv, q_bv = probs.rows_at(draft, p_bnv, node_b)
    tokens_bc, valid_bc = probs.children_at(draft, node_b)
    table_nc = tree_ops.children(draft.tree)
    if not table_nc.shape[1]:
      return p_bv
    last_n = np.maximum((table_nc < draft.tree.size).sum(axis=1) - 1, 0)
    last_b1 = jnp.asarray(last_n, jnp.int32)[node_b][:, None]
    rank_1c = jnp.arange(table_nc.shape[1], dtype=jnp.int32)[None]
    is_last_bc = rank_1c == last_b1
    tops_bc = jnp.where(valid_bc & ~is_last_bc, tokens_bc, -1)
    x_b1 = jnp.take_along_axis(tokens_bc, last_b1, axis=1)
    drawn_b = (valid_bc & is_last_bc).any(axis=1)
    drawn_b &= ~(tops_bc == x_b1).any(axis=1)
    excess_bv, _ = _excess(p_bv, q_bv, tops_bc, drawn_b)
    return probs.residual(excess_bv, jnp.zeros_like(excess_bv), p_bv)
