"""Candidates tried in turn, each against what the earlier ones left of p.

The recursion that multi-candidate speculative sampling (Yang et al., arXiv
2401.06706, algorithms 1 and 2) and traversal verification (Weng et al., arXiv
2505.12398) share. At a node of weight r, in the papers' terms: a child x is
accepted with min(1, r p(x) / q(x)), and when it is rejected ::

  p <- norm((r p - q)+),  r <- S / (S + 1 - r) where S = sum((r p - q)+),

and, without replacement, x is taken out of q and q is made to sum to 1 again.
Multi-candidate sampling holds r at 1. Here no such p is ever written down:
each is (p - s q)+ / Z with the first p and q, and scalars ::

  s <- s + Z / (r R),  Z <- sum((p - s q)+),  S = r Z' / Z,

from s = 0 and Z = 1, where R is the q of the tokens that were not taken out
(1 if drawn with replacement) and Z' the next Z. That q should have a hole at
each rejected x does not matter: x is rejected only where r p(x) < q(x), so
(p - s q)+ is 0 there with the next s, and stays so since s never decreases. A
candidate costs one sum over the vocabulary, of which nothing is kept.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import Draft, TokenTree
from specsamp.verification import probs, tree_ops


class Judgement(NamedTuple):
  """What the recursion computes for each node.

  Attributes:
    accept_bn: float [B, N], the weight that a node starts with: the chance
      that it is accepted when it is tried. 1 at the root.
    weight_bn: float [B, N], its weight once all its children are rejected.
    removed_bn: float [B, N], s then: norm((p - s q)+) is the residual
      distribution.
  """

  accept_bn: jax.Array
  weight_bn: jax.Array
  removed_bn: jax.Array


def _put(old_bn: jax.Array, nodes: Sequence[int], new_bk: jax.Array):
  """`old_bn` [B, N] with the columns of `nodes` replaced by `new_bk`."""
  size = old_bn.shape[1]
  source_n = np.arange(size)
  source_n[list(nodes)] = size + np.arange(len(nodes))
  return tree_ops.take(jnp.concatenate([old_bn, new_bk], axis=1), source_n)


def mass_left(draft: Draft, q_bn: jax.Array) -> jax.Array:
  """R [B, N]: the q that its elder siblings left a node to be drawn from.

  Never as 1 - sum(q(x)): where the elders hold nearly all of q that is noise.

  Args:
    draft: the draft; an invalid node takes nothing.
    q_bn: float [B, N], the q of each node's own token.
  """
  tree = draft.tree
  crowded = tree_ops.crowded(tree)
  if draft.law == 'iid' or not crowded:
    return jnp.ones_like(q_bn)
  drafted_bn = jnp.where(draft.valid, draft.tokens, -1)
  tokens_bkc = tree_ops.at(drafted_bn, tree_ops.children(tree)[crowded], -1)
  q_bkv = probs.rows(draft.q, tree_ops.internal_rows(tree, crowded))
  among_bkv = probs.is_among(tokens_bkc, q_bkv.shape[-1])
  rest_bk = jnp.where(among_bkv, 0, q_bkv).sum(axis=-1).astype(q_bn.dtype)
  drawn_bn = jnp.where(draft.valid, q_bn, 0)
  later_bn = tree_ops.at(drawn_bn, tree_ops.not_elders(tree), 0).sum(axis=-1)
  left_bn = later_bn + tree_ops.of_parent(tree, rest_bk, crowded, 0)
  # Only children are drawn from all of q: 1, not its rounding.
  alone_n = np.array([parent not in crowded for parent in tree.parents])
  return jnp.where(alone_n[None], 1, left_bn)


def judge(draft: Draft, p_bnv: jax.Array, joint: bool) -> Judgement:
  """Runs the recursion over every node of a tree.

  Args:
    draft: the drafted tokens [B, N] and their q [B, I, V].
    p_bnv: float [B, N, V], the target's distribution after each node.
    joint: whether a weight is handed down to a node from its parent and on
      from a child to the next (traversal), or is 1 everywhere.
  """
  tree = draft.tree
  p_bn, q_bn = probs.token_probs(draft, p_bnv)
  left_bn = mass_left(draft, q_bn)
  accept_bn = weight_bn = mass_bn = jnp.ones_like(p_bn)
  removed_bn = jnp.zeros_like(p_bn)
  finite = jnp.finfo(p_bn.dtype).max

  for nodes, rank in _turns(tree, joint):
    kids = _kids(tree, nodes, rank)
    valid, p, q, left = (
      tree_ops.take(values, kids)
      for values in (draft.valid, p_bn, q_bn, left_bn)
    )
    weight, mass, removed = (
      tree_ops.take(values, nodes)
      for values in (weight_bn, mass_bn, removed_bn)
    )
    excess = jnp.maximum(p - removed * q, 0)
    chance = weight * probs.ratio(excess, mass, 0) * left
    # Against q itself, not as a ratio of ratios: exactly 1 where the ratio is
    # 1 or more, exactly 0 where p or q is 0, and it cannot overflow.
    accept = jnp.where(valid, probs.ratio(jnp.minimum(chance, q), q, 0), 0)
    accept_bn = _put(accept_bn, kids, accept)
    # Kept finite: an infinite s times a q of 0 would be NaN.
    after = jnp.minimum(removed + probs.ratio(mass, weight * left, 0), finite)
    removed_bn = _put(removed_bn, nodes, jnp.where(valid, after, removed))
    if joint:
      weight_bn = _put(weight_bn, kids, accept)
    else:  # the last Z of a node only serves its weight
      nodes = [node for node in nodes if len(tree.children(node)) > rank + 1]
    if not nodes:
      continue

    valid = tree_ops.take(draft.valid, _kids(tree, nodes, rank))
    weight, mass, removed = (
      tree_ops.take(values, nodes)
      for values in (weight_bn, mass_bn, removed_bn)
    )
    p_bkv = probs.rows(p_bnv, nodes)
    q_bkv = probs.rows(draft.q, tree_ops.internal_rows(tree, nodes))
    excess_bkv = p_bkv - removed[..., None] * q_bkv.astype(p_bkv.dtype)
    after = jnp.maximum(excess_bkv, 0).sum(axis=-1)
    mass_bn = _put(mass_bn, nodes, jnp.where(valid, after, mass))
    if joint:
      surplus = weight * probs.ratio(after, mass, 0)
      # 1 - r first: it is exactly 0 where r is 1, and r stays exactly 1.
      after = probs.ratio(surplus, (1 - weight) + surplus, 1)
      weight_bn = _put(weight_bn, nodes, jnp.where(valid, after, weight))

  return Judgement(accept_bn, weight_bn, removed_bn)


def _turns(tree: TokenTree, joint: bool) -> Iterator[tuple[list[int], int]]:
  """The nodes whose child of some rank can be tried at once, and the rank.

  A weight comes from above, so those of one level; else those of all levels.
  """
  levels = [list(tree.internal)]
  if joint:
    levels = [
      [node for node in tree.internal if tree.depths[node] == depth]
      for depth in range(tree.depth)
    ]
  for level in levels:
    for rank in range(max((len(tree.children(n)) for n in level), default=0)):
      yield [n for n in level if len(tree.children(n)) > rank], rank


def _kids(tree: TokenTree, nodes: Sequence[int], rank: int) -> list[int]:
  return [tree.children(node)[rank] for node in nodes]


def star_at(
  draft: Draft, p_bnv: jax.Array, node_b: jax.Array
) -> tuple[Draft, jax.Array]:
  """A node and its children as a draft of its own, and p after the node.

  Args:
    draft: the drafted tokens [B, N] and their q [B, I, V].
    p_bnv: float [B, N, V], the target's distribution after each node.
    node_b: int32 [B], the node of each row.

  Returns:
    A draft whose nodes are the root and its C children, and p [B, 1, V].
  """
  p_bv, q_bv = probs.rows_at(draft, p_bnv, node_b)
  tokens_bc, valid_bc = probs.children_at(draft, node_b)
  width = tokens_bc.shape[1]
  first = ((0, 0), (1, 0))
  star = Draft(
    tokens=jnp.pad(tokens_bc, first),
    q=q_bv[:, None],
    tree=TokenTree((-1,) + (0,) * width),
    law=draft.law,
    valid=jnp.pad(valid_bc, first, constant_values=True),
  )
  return star, p_bv[:, None]


def leave_after(
  removed_b: jax.Array, draft: Draft, p_bnv: jax.Array, node_b: jax.Array
) -> jax.Array:
  """[B, V]: norm((p - s q)+) after `node_b`.

  It is p where nothing was drafted after the node, or where nothing is left.
  """
  p_bv, q_bv = probs.rows_at(draft, p_bnv, node_b)
  return probs.residual(p_bv, removed_b[:, None] * q_bv, p_bv)
