"""The recursion of multi-candidate sampling and traversal verification.

Sources: Yang et al., arXiv 2401.06706, algorithms 1 and 2; Weng et al., arXiv
2505.12398; Hu et al., arXiv 2502.18779, for the draft `top_plus_one`.

In the papers' notation a node has a weight r and distributions p and q of its
children. A child x is accepted with min(1, r p(x) / q(x)), and its rejection
changes the node's values to ::

  p <- norm((r p - q)+),  r <- S / (S + 1 - r) where S = sum((r p - q)+),

and, without replacement, q to norm(q without x). Multi-candidate sampling keeps
r = 1.

The code stores no such p: each one is (p - s q)+ / Z with the first p and q and
the scalars ::

  s <- s + Z / (r R),  Z <- sum((p - s q)+),  S = r Z' / Z,

from s = 0 and Z = 1. R is the q of the tokens that were not removed (1 with
replacement), and Z' is the next Z. The holes of q at the rejected x do not
matter: x is rejected only if r p(x) < q(x), so (p - s q)+ is 0 there with the
next s, and stays 0 because s never decreases. So a candidate costs one sum over
the vocabulary, and no array of that size is stored.

Law `top_plus_one`: T is the set of all children but the last, which was drawn
from norm(q without T). The drawn child is tried first, with that q. Each other
child is certain: its q is one-hot. So its trial has probability r p(x), and its
rejection removes x from p. What the drawn child leaves is e = (r p - q')+, with
q' = norm(q without T). After it, r is r' = sum(e) / (sum(e) + 1 - r), and a
child x of T is tried with ::

  e(x) / (1 - r + (sum of e outside T) + (e of x and its younger siblings)).

The last weight of a node is its rest / (1 - r + rest), where the rest is the
sum of e outside T: one sum over the vocabulary for all candidates.
"""

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import Draft, TokenTree
from specsamp.verification import probs, tree_ops
from specsamp.verification.naive import first_of_its_token


def _replace(old_bn: jax.Array, nodes: Sequence[int], new_bk: jax.Array):
  """Returns `old_bn` with the columns of `nodes` replaced by `new_bk`."""
  size = old_bn.shape[1]
  source_n = np.arange(size)
  source_n[list(nodes)] = size + np.arange(len(nodes))
  return tree_ops.take(jnp.concatenate([old_bn, new_bk], axis=1), source_n)


def mass_left(draft: Draft, q_bn: jax.Array) -> jax.Array:
  """Returns R, the q that each node's valid elder siblings leave, [B, N].

  R is not computed as 1 - sum(q(x)), which is rounding noise if the elders hold
  nearly all of q. `q_bn` is the q of each node's token.
  """
  tree = draft.tree
  crowded = tree_ops.crowded(tree)
  if draft.law == 'iid' or not crowded:
    return jnp.ones_like(q_bn)
  drafted_bn = jnp.where(draft.valid, draft.tokens, -1)
  tokens_bkc = tree_ops.at(drafted_bn, tree_ops.children(tree)[crowded], -1)
  q_bkv = probs.rows(draft.q, tree_ops.q_rows(tree)[crowded])
  among_bkv = probs.is_among(tokens_bkc, q_bkv.shape[-1])
  rest_bk = jnp.where(among_bkv, 0, q_bkv).sum(axis=-1).astype(q_bn.dtype)
  drawn_bn = jnp.where(draft.valid, q_bn, 0)
  later_bn = tree_ops.at(drawn_bn, tree_ops.not_elders(tree), 0).sum(axis=-1)
  left_bn = later_bn + tree_ops.of_parent(tree, rest_bk, crowded, 0)
  # An only child is drawn from all of q: exactly 1, without rounding.
  alone_n = np.array([parent not in crowded for parent in tree.parents])
  return jnp.where(alone_n[None], 1, left_bn)


def judge(
  draft: Draft, p_bnv: jax.Array, joint: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Runs the recursion over all nodes of a tree.

  If `joint`, a node inherits its parent's weight and a rejection changes the
  weight (traversal); otherwise all weights are 1.

  Returns:
    A node's acceptance probability when it is tried, which is its first weight;
    its weight, and its s, after all its children are rejected. All [B, N].
    Children are tried ascending, but `top_plus_one` tries the last one first.
  """
  if draft.law == 'top_plus_one':
    return _judge_top_plus_one(draft, p_bnv, joint)
  tree = draft.tree
  p_bn, q_bn = probs.token_probs(draft, p_bnv)
  left_bn = mass_left(draft, q_bn)
  accept_bn = weight_bn = mass_bn = jnp.ones_like(p_bn)
  removed_bn = jnp.zeros_like(p_bn)
  finite = jnp.finfo(p_bn.dtype).max

  # Arrays without a suffix are [B, K], a column for each of K nodes.
  for nodes, rank in _turns(tree, joint):
    kids = [tree.children(node)[rank] for node in nodes]
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
    # min(.., q) / q and not a ratio of ratios: exactly 1 where the ratio is 1
    # or more, exactly 0 where p or q is 0, and it cannot overflow.
    accept = jnp.where(valid, probs.ratio(jnp.minimum(chance, q), q, 0), 0)
    accept_bn = _replace(accept_bn, kids, accept)
    # Kept finite: an infinite s times a q of 0 would be NaN.
    after = jnp.minimum(removed + probs.ratio(mass, weight * left, 0), finite)
    removed_bn = _replace(removed_bn, nodes, jnp.where(valid, after, removed))
    if joint:
      weight_bn = _replace(weight_bn, kids, accept)
    else:  # only the weight of a node needs its last Z
      nodes = [node for node in nodes if len(tree.children(node)) > rank + 1]
    if not nodes:
      continue

    kids = [tree.children(node)[rank] for node in nodes]
    valid = tree_ops.take(draft.valid, kids)
    weight, mass, removed = (
      tree_ops.take(values, nodes)
      for values in (weight_bn, mass_bn, removed_bn)
    )
    p_bkv = probs.rows(p_bnv, nodes)
    q_bkv = probs.rows(draft.q, tree_ops.q_rows(tree)[nodes])
    excess_bkv = p_bkv - removed[..., None] * q_bkv.astype(p_bkv.dtype)
    after = jnp.maximum(excess_bkv, 0).sum(axis=-1)
    mass_bn = _replace(mass_bn, nodes, jnp.where(valid, after, mass))
    if joint:
      surplus = weight * probs.ratio(after, mass, 0)
      # 1 - r first: it is exactly 0 where r is 1, and r stays exactly 1.
      after = probs.ratio(surplus, (1 - weight) + surplus, 1)
      weight_bn = _replace(weight_bn, nodes, jnp.where(valid, after, weight))

  return accept_bn, weight_bn, removed_bn


def _turns(tree: TokenTree, joint: bool) -> Iterator[tuple[list[int], int]]:
  """Yields nodes whose children of one rank are tried together, and the rank.

  Joint weights come from the parents, so these nodes are of one level.
  """
  for nodes in _levels(tree, joint):
    for rank in range(tree.width):
      nodes = [node for node in nodes if len(tree.children(node)) > rank]
      if nodes:
        yield nodes, rank


def _levels(tree: TokenTree, joint: bool) -> list[list[int]]:
  """Returns the internal nodes level by level, or together if not `joint`."""
  level_of = tree.depths if joint else [0] * tree.size
  levels = (
    [node for node in tree.internal if level_of[node] == level]
    for level in range(tree.depth)
  )
  return list(filter(None, levels))


def _judge_top_plus_one(
  draft: Draft, p_bnv: jax.Array, joint: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns `judge` for law `top_plus_one`; s is 0 if no token was drawn.

  Siblings should differ. If two are the same, only the first one counts.
  """
  tree = draft.tree
  p_bn, q_bn = probs.token_probs(draft, p_bnv)
  left_bn = mass_left(draft, q_bn)
  counts_bn = first_of_its_token(draft)
  token_bn = jnp.where(counts_bn, draft.tokens, -1)
  not_elders = tree_ops.not_elders(tree)
  drawn_nodes = [tree.children(node)[-1] for node in tree.internal]
  is_drawn_1n = np.isin(np.arange(tree.size), drawn_nodes)[None]
  accept_bn = weight_bn = jnp.ones_like(p_bn)
  removed_bn = jnp.zeros_like(p_bn)
  finite = jnp.finfo(p_bn.dtype).max

  # Arrays without a suffix are [B, K], a column for each of K nodes.
  for nodes in _levels(tree, joint):
    lasts = [tree.children(node)[-1] for node in nodes]
    drawn, left = (tree_ops.take(x, lasts) for x in (counts_bn, left_bn))
    weight = tree_ops.take(weight_bn, nodes)
    # Finite, as in `judge`.
    removed = jnp.minimum(probs.ratio(1, weight * left, 0), finite)
    removed = jnp.where(drawn, removed, 0)
    p_bkv = probs.rows(p_bnv, nodes)
    q_bkv = probs.rows(draft.q, tree_ops.q_rows(tree)[nodes])
    tokens_bkc = tree_ops.at(token_bn, tree_ops.children(tree)[nodes], -1)
    q_bkv = jnp.where(drawn[..., None], q_bkv.astype(p_bkv.dtype), 0)
    excess_bkv = jnp.maximum(p_bkv - removed[..., None] * q_bkv, 0)
    # Nothing is left of the drawn token either, once it is rejected.
    among_bkv = probs.is_among(tokens_bkc, p_bkv.shape[-1])
    rest = weight * jnp.where(among_bkv, 0, excess_bkv).sum(axis=-1)
    # 1 - r first: it is exactly 0 where r is 1.
    free = (1 - weight) + rest
    removed_bn = _replace(removed_bn, nodes, removed)
    weight_bn = _replace(weight_bn, nodes, probs.ratio(rest, free, 1))

    weight, free = (
      tree_ops.of_parent(tree, values, nodes, 0) for values in (weight, free)
    )
    excess_bn = jnp.where(counts_bn, weight * p_bn, 0)
    drawn_bn = jnp.minimum(excess_bn * left_bn, q_bn)
    drawn_bn = probs.ratio(drawn_bn, q_bn, 0)
    excess_bn = jnp.where(is_drawn_1n, 0, excess_bn)
    later_bn = tree_ops.at(excess_bn, not_elders, 0).sum(axis=-1)
    certain_bn = probs.ratio(excess_bn, free + later_bn, 0)
    first_bn = jnp.where(is_drawn_1n, drawn_bn, certain_bn)
    is_child_1n = np.isin(tree.parents, nodes)[None]
    accept_bn = jnp.where(is_child_1n, first_bn, accept_bn)
    if joint:
      weight_bn = jnp.where(is_child_1n, first_bn, weight_bn)

  return accept_bn, weight_bn, removed_bn


def leave_probs(
  draft: Draft, p_bnv: jax.Array, node_b: jax.Array, joint: bool
) -> jax.Array:
  """Returns norm((p - s q)+) after all children of a node, [B, V].

  Under `top_plus_one` p is that of the tokens that are not children.
  """
  # XLA merges this with the recursion of `stop_probs`, which `draw_verdict`
  # compiles together.
  *_, removed_bn = judge(draft, p_bnv, joint)
  removed_b1 = jnp.take_along_axis(removed_bn, node_b[:, None], axis=1)
  p_bv, q_bv = probs.rows_at(draft, p_bnv, node_b)
  left_bv = p_bv
  if draft.law == 'top_plus_one':
    tokens_bc, valid_bc = probs.children_at(draft, node_b)
    tokens_bc = jnp.where(valid_bc, tokens_bc, -1)
    left_bv = jnp.where(probs.is_among(tokens_bc, p_bv.shape[-1]), 0, p_bv)
  return probs.residual(left_bv, removed_b1 * q_bv, p_bv)
