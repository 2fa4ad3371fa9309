"""The naive rule on dynamic trees, in which each node knows its parent.

What `tree_ops` has tables for is found here by comparing parents: of N nodes
N x N numbers, little beside a pass over them.
"""

import jax
import jax.numpy as jnp

from specsamp.drafting.draft import Draft, lineage


def stop_probs(draft: Draft, p_bnv: jax.Array) -> jax.Array:
  """See `NaiveVerifier.stop_probs`, float [B, N]."""
  parents_bn, tokens_bn = draft.parents, draft.tokens
  at_parent = lambda p_nv, parent_n, token_n: p_nv.at[parent_n, token_n].get(
    mode='promise_in_bounds'
  )
  inside_bn = (tokens_bn >= 0) & (tokens_bn < p_bnv.shape[-1])
  p_bn = jax.vmap(at_parent)(
    p_bnv, jnp.maximum(parents_bn, 0), jnp.where(inside_bn, tokens_bn, 0)
  )
  is_first_bn = _first_of_its_token(draft) & inside_bn & (parents_bn >= 0)
  descend_bn = jnp.where(is_first_bn, p_bn, 0)
  is_child_bnn = _is_child(draft)
  drafted_bn = jnp.where(is_child_bnn, descend_bn[:, None], 0).sum(axis=-1)
  _, ancestors_bnn = lineage(parents_bn, draft.tree.depth)
  is_step_bnn = ancestors_bnn & (parents_bn >= 0)[:, None]
  reach_bn = jnp.where(is_step_bnn, descend_bn[:, None], 1).prod(axis=-1)
  return reach_bn * jnp.maximum(1 - drafted_bn, 0)


def _is_child(draft: Draft) -> jax.Array:
  """bool [B, N, N]: whether node j is a child of node i."""
  node_n = jnp.arange(draft.tree.size, dtype=jnp.int32)
  return draft.parents[:, None, :] == node_n[None, :, None]


def _first_of_its_token(draft: Draft) -> jax.Array:
  """bool [B, N]: the valid nodes with no valid elder sibling of their token."""
  node_n = jnp.arange(draft.tree.size, dtype=jnp.int32)
  same = lambda array_bn: array_bn[:, :, None] == array_bn[:, None, :]
  is_elder_nn = node_n[None, :] < node_n[:, None]
  twins_bnn = same(draft.parents) & same(draft.tokens) & is_elder_nn[None]
  return draft.valid & ~(twins_bnn & draft.valid[:, None, :]).any(axis=-1)
