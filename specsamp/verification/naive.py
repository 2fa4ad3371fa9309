"""The naive rule: draws from p, and accepts the token if it was drafted.

Source: the verification of SpecInfer, Miao et al., arXiv 2305.09781, and the
baseline of Yang et al., arXiv 2401.06706, section 4. For deterministic
candidates it is the token rule with a one-hot q.

Drafts: any static or dynamic tree, of any law.

The rule is exact because every emitted token is a draw from p. The candidates
decide only whether the token costs another step. The rule does not read q.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from specsamp.drafting.draft import Draft, Law, lineage
from specsamp.verification import probs, tree_ops
from specsamp.verification.verifier import Verifier


def first_of_its_token(draft: Draft) -> jax.Array:
  """Returns the valid nodes without a valid elder twin, bool [B, N].

  A twin is a sibling with the same token.
  """
  elders = tree_ops.elders(draft.tree)
  twin_bnc = tree_ops.at(draft.tokens, elders, -1) == draft.tokens[..., None]
  twin_bnc &= tree_ops.at(draft.valid, elders, False)
  return draft.valid & ~twin_bnc.any(axis=-1)


@dataclasses.dataclass(frozen=True)
class NaiveVerifier(Verifier):
  """The rule that descends to the first valid child with a token drawn from p.

  It stops if no child has that token.
  """

  accepts: ClassVar[frozenset[Law]] = frozenset(
    {'iid', 'without_replacement', 'top_plus_one', 'deterministic'}
  )
  lossless: ClassVar[bool] = True
  reads_parents: ClassVar[bool] = True

  def stop_probs(self, draft, p_bnv):
    """Returns prod(p(x)) down to a node, times 1 - sum(p(child)), [B, N].

    Only p at the drafted tokens is read.
    """
    if draft.parents is not None:
      return _stop_probs_dynamic(draft, p_bnv)
    tree = draft.tree
    p_bn = probs.at_tokens(p_bnv, tree.parents[1:], draft)
    descend_bn = jnp.where(first_of_its_token(draft), p_bn, 0)
    children = tree_ops.children(tree)
    drafted_bn = tree_ops.at(descend_bn, children, 0).sum(axis=-1)
    end_bn = jnp.maximum(1 - drafted_bn, 0)
    return tree_ops.reach(tree, descend_bn) * end_bn

  def leave_probs(self, draft, p_bnv, node_b):
    """Returns norm(p without valid children's tokens) after a node, [B, V]."""
    p_bv = probs.row_at(p_bnv, node_b)
    tokens_bc, valid_bc = probs.children_at(draft, node_b)
    tokens_bc = jnp.where(valid_bc, tokens_bc, -1)
    drafted_bv = probs.is_among(tokens_bc, p_bv.shape[-1])
    return probs.residual(p_bv, jnp.where(drafted_bv, p_bv, 0), p_bv)


@dataclasses.dataclass(frozen=True)
class GumbelVerifier(NaiveVerifier):
  """Gumbel coupling: a completion depends only on the target, prompt and seed.

  Source: Daliri, Musco and Suresh, arXiv 2408.07978.

  It is the naive rule with a one-hot for p: the winner of a random race at each
  position, as the decoding loop computes it with `sampling.coupling`. A drafter
  that runs its q in the same race often proposes the winner. The rule is exact
  over random seeds, because each winner is a draw from p. A given seed leaves
  nothing to draw, so every draft leads to the same completion.
  """

  coupled: ClassVar[bool] = True


def _stop_probs_dynamic(draft: Draft, p_bnv: jax.Array) -> jax.Array:
  """Returns `NaiveVerifier.stop_probs` of dynamic trees, float [B, N].

  It compares all N x N pairs of nodes, which is cheap next to a pass over N.
  """
  parents_bn = draft.parents
  node_n = jnp.arange(draft.tree.size, dtype=jnp.int32)
  same = lambda array_bn: array_bn[:, :, None] == array_bn[:, None, :]
  is_elder_nn = node_n[None, :] < node_n[:, None]
  is_twin_bnn = same(parents_bn) & same(draft.tokens) & is_elder_nn[None]
  is_twin_bn = (is_twin_bnn & draft.valid[:, None, :]).any(axis=-1)
  p_bn = probs.at_tokens(p_bnv, jnp.maximum(parents_bn[:, 1:], 0), draft)
  descend_bn = jnp.where(draft.valid & ~is_twin_bn, p_bn, 0)

  is_child_bnn = parents_bn[:, None, :] == node_n[None, :, None]
  drafted_bn = jnp.where(is_child_bnn, descend_bn[:, None], 0).sum(axis=-1)
  _, ancestors_bnn = lineage(parents_bn, draft.tree.depth)
  is_step_bnn = ancestors_bnn & (parents_bn >= 0)[:, None]
  reach_bn = jnp.where(is_step_bnn, descend_bn[:, None], 1).prod(axis=-1)
  return reach_bn * jnp.maximum(1 - drafted_bn, 0)
