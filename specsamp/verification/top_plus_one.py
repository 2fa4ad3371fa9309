"""The most probable tokens and one draw: the greedy draft's own rule.

Hu et al., arXiv 2502.18779, whose bound it attains for this draft: no lossless
rule accepts more of it. SpecHub (arXiv 2411.05289) is the case of two.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.verification import probs, tree_ops
from specsamp.verification.naive import first_of_its_token
from specsamp.verification.verifier import Verifier


def _last(tree: TokenTree) -> np.ndarray:
  """int32 [I]: the child of each internal node that was drawn."""
  return np.asarray([tree.children(n)[-1] for n in tree.internal], np.int32)


def _excess(p: jax.Array, q: jax.Array, tops: jax.Array, drawn: jax.Array):
  """(p - q')+ off the tokens T, [.., V], and the q off T, [..].

  Args:
    p: [.., V].
    q: [.., V].
    tops: T, int32 [.., C]; -1 is none.
    drawn: bool [..], whether a token was drawn from q'; else q' is 0.
  """
  among = probs.is_among(tops, p.shape[-1])
  off = jnp.where(among | ~drawn[..., None], 0, q)
  left = off.sum(axis=-1)
  one = probs.ratio(off, left[..., None], 0)
  return jnp.where(among, 0, jnp.maximum(p - one, 0)), left


@dataclasses.dataclass(frozen=True)
class TopPlusOneVerifier(Verifier):
  """Tries the token that was drawn, then those that were not.

  T are all children of a node but the last, x the last, drawn from q' =
  norm(q off T). x is accepted with min(1, p(x) / q'(x)). Else y is drawn from
  norm(p - min(p, q') off T), and the row goes down to y if it is in T. So
  sum_T p + sum_{off T} min(p, q') is accepted. With one child it is the token
  rule; where no token was left to draw it is the naive one.
  """

  accepts: ClassVar[frozenset[Law]] = frozenset({'top_plus_one'})
  lossless: ClassVar[bool] = True

  def stop_probs(self, draft: Draft, p_bnv: jax.Array) -> jax.Array:
    """[B, N]: the chance to get to a node and to none of its children."""
    tree = draft.tree
    if not tree.internal:
      return jnp.ones(p_bnv.shape[:2], p_bnv.dtype)
    last_i = _last(tree)
    p_bn, q_bn = probs.token_probs(draft, p_bnv)
    # A token twice among siblings, as no draft of this law has it, counts once.
    counts_bn = first_of_its_token(draft)
    kids = tree_ops.children(tree)[list(tree.internal)]
    tops = np.where(kids == last_i[:, None], tree.size, kids)
    token_bn = jnp.where(draft.valid, draft.tokens, -1)
    drawn_bi = tree_ops.take(counts_bn, last_i)
    excess_biv, left_bi = _excess(
      probs.rows(p_bnv, tree.internal),
      draft.q.astype(p_bnv.dtype),
      tree_ops.at(token_bn, tops, -1),
      drawn_bi,
    )
    rest_bi = excess_biv.sum(axis=-1)

    # Against q itself, as in `siblings`: it cannot overflow.
    p_bi, q_bi = (tree_ops.take(x_bn, last_i) for x_bn in (p_bn, q_bn))
    accept_bi = probs.ratio(jnp.minimum(p_bi * left_bi, q_bi), q_bi, 0)
    accept_bi = jnp.where(drawn_bi, accept_bi, 0)
    share_bn = jnp.where(counts_bn, p_bn, 0)
    total_bi = tree_ops.at(share_bn, tops, 0).sum(axis=-1) + rest_bi
    reject_bi = 1 - accept_bi

    place = {parent: i for i, parent in enumerate(tree.internal)}
    of_parent = np.asarray([place.get(parent, 0) for parent in tree.parents])
    rejected_bn = tree_ops.take(reject_bi, of_parent)
    total_bn = tree_ops.take(total_bi, of_parent)
    descend_bn = rejected_bn * probs.ratio(share_bn, total_bn, 0)
    is_last_n = np.isin(np.arange(tree.size), last_i)
    accept_bn = tree_ops.take(accept_bi, of_parent)
    descend_bn = jnp.where(is_last_n[None], accept_bn, descend_bn)
    end_bi = reject_bi * probs.ratio(rest_bi, total_bi, 1)
    place_n = np.asarray([place.get(n, len(place)) for n in range(tree.size)])
    end_bn = tree_ops.at(end_bi, place_n, 1)
    return tree_ops.reach(tree, descend_bn) * end_bn

  def leave_probs(
    self, draft: Draft, p_bnv: jax.Array, node_b: jax.Array
  ) -> jax.Array:
    """[B, V]: norm((p - q')+ off T) after `node_b`.

    It is p where nothing was drafted after the node, or where nothing is left.
    """
    p_bv, q_bv = probs.rows_at(draft, p_bnv, node_b)
    tokens_bc, valid_bc = probs.children_at(draft, node_b)
    table = tree_ops.children(draft.tree)
    if not table.shape[1]:
      return p_bv
    count_n = (table < draft.tree.size).sum(axis=1)
    last_b1 = jnp.asarray(np.maximum(count_n - 1, 0), jnp.int32)[node_b][
      :, None
    ]
    is_last_bc = jnp.arange(table.shape[1], dtype=jnp.int32)[None] == last_b1
    tops_bc = jnp.where(valid_bc & ~is_last_bc, tokens_bc, -1)
    x_b1 = jnp.take_along_axis(tokens_bc, last_b1, axis=1)
    drawn_b = (valid_bc & is_last_bc).any(axis=1)
    drawn_b &= ~(tops_bc == x_b1).any(axis=1)
    excess_bv, _ = _excess(p_bv, q_bv, tops_bc, drawn_b)
    return probs.residual(excess_bv, jnp.zeros_like(excess_bv), p_bv)
