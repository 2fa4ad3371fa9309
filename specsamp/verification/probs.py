"""p and q where the rules read them: at the drafted tokens, and after a node.

Nothing of the size of the vocabulary is made but what the caller asks for.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import Draft
from specsamp.verification import tree_ops


def at_tokens(
  probs_bkv: jax.Array, rows: Sequence[int], draft: Draft
) -> jax.Array:
  """The probability of each node's token, [B, N]; the root's is not one.

  A token outside the vocabulary has probability 0.

  Args:
    probs_bkv: float [B, K, V].
    rows: the row that each drafted node was drawn from or is judged
      by, N - 1 of them.
    draft: the drafted tokens.
  """
  tokens_bg = draft.tokens[:, 1:]
  size = jnp.int32(probs_bkv.shape[-1])
  inside_bg = (tokens_bg >= 0) & (tokens_bg < size)
  rows_g = np.asarray(rows, np.int32)
  gather = lambda probs_kv, index_g: probs_kv.at[rows_g, index_g].get(
    mode='promise_in_bounds'
  )
  probs_bg = jax.vmap(gather)(probs_bkv, jnp.where(inside_bg, tokens_bg, 0))
  probs_bg = jnp.where(inside_bg, probs_bg, 0)
  return jnp.pad(probs_bg, ((0, 0), (1, 0)))


def token_probs(draft: Draft, p_bnv: jax.Array) -> tuple[jax.Array, jax.Array]:
  """p(x) and q(x) of the drafted tokens, each [B, N] in the dtype of p.

  They are those after the token's parent; the root's are 0.
  """
  parents = draft.tree.parents[1:]
  p_bn = at_tokens(p_bnv, parents, draft)
  if not parents:  # q may be None
    return p_bn, p_bn
  rows = tree_ops.internal_rows(draft.tree, parents)
  return p_bn, at_tokens(draft.q, rows, draft).astype(p_bn.dtype)


def row_at(probs_bkv: jax.Array, row_b: jax.Array) -> jax.Array:
  """[B, V]: one row of [B, K, V] for each row of the batch."""
  index = row_b[:, None, None]
  return jnp.take_along_axis(probs_bkv, index, axis=1, mode='clip')[:, 0]


def children_at(draft: Draft, node_b: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Tokens, int32 [B, C], and validity, bool [B, C], of a node's children.

  The places of children that a node does not have are invalid.
  """
  if draft.parents is not None:
    # Every node has a place among those of any other.
    return draft.tokens, draft.valid & (draft.parents == node_b[:, None])
  index_bc = jnp.asarray(tree_ops.children(draft.tree))[node_b]
  tokens_bn = jnp.pad(draft.tokens, ((0, 0), (0, 1)))
  valid_bn = jnp.pad(draft.valid, ((0, 0), (0, 1)))
  gather = lambda values_bn: jnp.take_along_axis(
    values_bn, index_bc, axis=1, mode='clip'
  )
  return gather(tokens_bn), gather(valid_bn)


def rows_at(
  draft: Draft, p_bnv: jax.Array, node_b: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """p and q after a node, each [B, V] in the dtype of p.

  Where nothing was drafted after the node, q is 0, so that the residual of p
  is p itself.
  """
  p_bv = row_at(p_bnv, node_b)
  internal = draft.tree.internal
  if not internal:
    return p_bv, jnp.zeros_like(p_bv)
  # Leaves have no row: any will do, since nothing was drafted after them.
  row_n = np.zeros(draft.tree.size, np.int32)
  row_n[list(internal)] = np.arange(len(internal))
  q_bv = row_at(draft.q, jnp.asarray(row_n)[node_b]).astype(p_bv.dtype)
  _, valid_bc = children_at(draft, node_b)
  return p_bv, jnp.where(valid_bc.any(axis=1, keepdims=True), q_bv, 0)


def rows(probs_bkv: jax.Array, index: Sequence[int]) -> jax.Array:
  """[B, len(index), V]: these rows; a slice where they are consecutive.

  A slice is easier to fuse with what reads it than a gather.
  """
  first = index[0] if index else 0
  if list(index) == list(range(first, first + len(index))):
    return probs_bkv[:, first : first + len(index)]
  return tree_ops.take(probs_bkv, index)


def is_among(tokens: jax.Array, vocab: int) -> jax.Array:
  """bool [..., V]: which tokens of the vocabulary are among int32 [..., C]."""
  vocabulary = jnp.arange(vocab, dtype=jnp.int32)
  vocabulary = vocabulary.reshape((1,) * (tokens.ndim - 1) + (vocab,))
  among = jnp.zeros((*tokens.shape[:-1], vocab), bool)
  # One comparison a candidate, not [..., C, V] reduced: this always fuses.
  for c in range(tokens.shape[-1]):
    among |= tokens[..., c, None] == vocabulary
  return among


def ratio(over: jax.Array, under: jax.Array, otherwise: float) -> jax.Array:
  """over / under; `otherwise` where under is not above 0 (or is NaN)."""
  some = under > 0
  return jnp.where(some, over / jnp.where(some, under, 1), otherwise)


def residual(p_bv: jax.Array, q_bv: jax.Array, otherwise_bv: jax.Array):
  """norm((p - q)+), [B, V]; `otherwise_bv` in the rows where that is all 0.

  It is 0 wherever p is.
  """
  excess_bv = jnp.maximum(p_bv - q_bv, 0)
  total_b1 = excess_bv.sum(axis=-1, keepdims=True)
  some_b1 = total_b1 > 0
  return jnp.where(
    some_b1, excess_bv / jnp.where(some_b1, total_b1, 1), otherwise_bv
  )
