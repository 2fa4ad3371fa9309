"""Lookups of p and q: at the drafted tokens, and after a single node.

No function allocates an array over the vocabulary except for its result.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import Draft
from specsamp.verification import tree_ops


def at_tokens(
  probs_bkv: jax.Array, rows: Sequence[int] | jax.Array, draft: Draft
) -> jax.Array:
  """Returns the probability of each node's token, [B, N]; 0 at the root.

  A token outside the vocabulary has probability 0.

  Args:
    probs_bkv: float [B, K, V].
    rows: row of `probs_bkv` for each of the N - 1 drafted nodes, static; or
      int32 [B, N - 1], for each row of the batch.
    draft: the drafted tokens.
  """
  tokens_bg = draft.tokens[:, 1:]
  size = jnp.int32(probs_bkv.shape[-1])
  inside_bg = (tokens_bg >= 0) & (tokens_bg < size)
  is_static = not isinstance(rows, jax.Array)
  rows = np.asarray(rows, np.int32) if is_static else rows
  gather = lambda probs_kv, rows_g, index_g: probs_kv.at[rows_g, index_g].get(
    mode='promise_in_bounds'
  )
  probs_bg = jax.vmap(gather, in_axes=(0, None if is_static else 0, 0))(
    probs_bkv, rows, jnp.where(inside_bg, tokens_bg, 0)
  )
  probs_bg = jnp.where(inside_bg, probs_bg, 0)
  return jnp.pad(probs_bg, ((0, 0), (1, 0)))


def token_probs(draft: Draft, p_bnv: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns p(x) and q(x) of each node's token, both [B, N] in p's dtype.

  The probabilities are those after the node's parent; 0 at the root.
  """
  parents = draft.tree.parents[1:]
  p_bn = at_tokens(p_bnv, parents, draft)
  if not parents:  # q may be None
    return p_bn, p_bn
  rows = tree_ops.q_rows(draft.tree)[list(parents)]
  return p_bn, at_tokens(draft.q, rows, draft).astype(p_bn.dtype)


def row_at(probs_bkv: jax.Array, row_b: jax.Array) -> jax.Array:
  """Returns row `row_b` of each batch entry of [B, K, V], as [B, V]."""
  index = row_b[:, None, None]
  return jnp.take_along_axis(probs_bkv, index, axis=1, mode='clip')[:, 0]


def children_at(draft: Draft, node_b: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns a node's children: tokens, int32 [B, C], and validity, bool [B, C].

  Entries beyond the node's last child are invalid.
  """
  if draft.parents is not None:  # any node may be a child of any other
    return draft.tokens, draft.valid & (draft.parents == node_b[:, None])
  index_bc = jnp.asarray(tree_ops.children(draft.tree))[node_b]
  gather = lambda values_bn: jnp.take_along_axis(
    values_bn, index_bc, axis=1, mode='fill', fill_value=0
  )
  return gather(draft.tokens), gather(draft.valid)


def rows_at(
  draft: Draft, p_bnv: jax.Array, node_b: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns p and q after a node, both [B, V] in p's dtype.

  If nothing was drafted after the node, q is 0, so that the residual of p is p.
  """
  p_bv = row_at(p_bnv, node_b)
  if not draft.tree.internal:
    return p_bv, jnp.zeros_like(p_bv)
  row_b = jnp.asarray(tree_ops.q_rows(draft.tree))[node_b]
  q_bv = row_at(draft.q, row_b).astype(p_bv.dtype)
  _, valid_bc = children_at(draft, node_b)
  return p_bv, jnp.where(valid_bc.any(axis=1, keepdims=True), q_bv, 0)


def rows(probs_bkv: jax.Array, index: Sequence[int]) -> jax.Array:
  """Returns the rows at static indices, [B, len(index), V].

  Consecutive rows are a slice, which XLA fuses more easily than a gather.
  """
  first = index[0] if len(index) else 0
  if list(index) == list(range(first, first + len(index))):
    return probs_bkv[:, first : first + len(index)]
  return tree_ops.take(probs_bkv, index)


def is_among(tokens: jax.Array, vocab: int) -> jax.Array:
  """Returns a mask of the vocabulary, bool [..., V], True at the tokens."""
  vocabulary = jnp.arange(vocab, dtype=jnp.int32)
  vocabulary = vocabulary.reshape((1,) * (tokens.ndim - 1) + (vocab,))
  among = jnp.zeros((*tokens.shape[:-1], vocab), bool)
  # One comparison per candidate always fuses; a reduced [..., C, V] may not.
  for c in range(tokens.shape[-1]):
    among |= tokens[..., c, None] == vocabulary
  return among


def ratio(
  over: jax.Array, under: jax.Array, otherwise: float | jax.Array
) -> jax.Array:
  """Returns over / under; `otherwise` where `under` is not above 0, or NaN."""
  is_positive = under > 0
  return jnp.where(
    is_positive, over / jnp.where(is_positive, under, 1), otherwise
  )


def residual(
  p_bv: jax.Array, q_bv: jax.Array, otherwise_bv: jax.Array
) -> jax.Array:
  """Returns norm((p - q)+), [B, V]; `otherwise_bv` where it would be 0 / 0."""
  excess_bv = jnp.maximum(p_bv - q_bv, 0)
  total_b1 = excess_bv.sum(axis=-1, keepdims=True)
  return ratio(excess_bv, total_b1, otherwise_bv)
