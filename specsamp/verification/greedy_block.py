"""Greedy multi-path block verification: of several paths the best, as a block.

GBV, arXiv 2602.16961: K paths are drawn independently from the root. Tokens
after a prefix are ordered by p / q, paths as words are, and the largest path is
kept. Its law is known: with Q the q of a prefix and F that of all smaller
paths of its length, K paths have their largest one below it with chance ::

  (F + Q)^K - F^K = Q s(F, Q),   s(F, Q) = sum_{i < K} (F + Q)^i F^(K - 1 - i),

so that the token x after it follows q^G(x) = q(x) s(F', Q') / s(F, Q), where
Q' = Q q(x) and F' = F + Q q(tokens before x). All terms are positive. What
judges the path is block verification with q^G for q.

As published it is worse than one path where q is close to p: q^G is then far
from both, and of p = q in two tokens a fourth is turned down. Here the rule
also decides how many paths are in the race: at the root the first k of K, and
later whether those left race on or the first of them alone goes on, whichever
accepts the next token more often. That hangs on p, q and the prefix only, so
that the law of what is kept is as known as before.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.errors import UserError
from specsamp.sampling import draw
from specsamp.verification import probs
from specsamp.verification.verifier import Verifier

# So many tokens are put in order. Any order that p and q fix is as right, and
# to sort 4096 tokens takes a CPU as long as all the rest of a verdict 20 times.
_HEAD = 64
# By so many roundings fewer paths must be better: of those that are as good
# `stop_probs` and `leave_probs` have to take the same.
_ROUNDINGS = 16


def _terms(before: jax.Array, upto: jax.Array, count: jax.Array, most: int):
  """s = sum_{i < k} G^i F^(k - 1 - i) of F and G = F + Q, by Horner's rule.

  Args:
    before: F.
    upto: G, of the same shape.
    count: k, int32 of a shape that broadcasts; 0 counts as 1.
    most: the largest k, static.
  """
  total = power = jnp.ones_like(upto)
  for i in range(1, most):
    power = power * upto
    total = jnp.where(i < count, total * before + power, total)
  return total


class Race(NamedTuple):
  """The paths left at a prefix, those that begin with it.

  Attributes:
    before_b: F / (F + Q), so that no power of it vanishes.
    own_b: Q / (F + Q), never as a difference from 1.
    count_b: int32 [B], paths that began the race; 1 is the law q.
  """

  before_b: jax.Array
  own_b: jax.Array
  count_b: jax.Array

  def ends(self, q: jax.Array, below: jax.Array):
    """F' and F' + Q' of the tokens with these q and q before them, [B, ..]."""
    fill = lambda x_b: x_b.reshape(x_b.shape + (1,) * (q.ndim - 1))
    before = fill(self.before_b) + fill(self.own_b) * below
    return before, before + fill(self.own_b) * q

  def law(self, q: jax.Array, below: jax.Array, most: int) -> jax.Array:
    """q^G of the tokens with these q and q before them, [B, ..]."""
    fill = lambda x_b: x_b.reshape(x_b.shape + (1,) * (q.ndim - 1))
    terms = _terms(*self.ends(q, below), fill(self.count_b), most)
    ones_b = jnp.ones_like(self.before_b)
    return q * terms / fill(_terms(self.before_b, ones_b, self.count_b, most))

  def after(self, q_b: jax.Array, below_b: jax.Array) -> 'Race':
    """With the kept token of each row."""
    before_b, upto_b = self.ends(q_b, below_b)
    return Race(
      probs.ratio(before_b, upto_b, 0),
      probs.ratio(self.own_b * q_b, upto_b, 1),
      self.count_b,
    )


class Step(NamedTuple):
  """What is known at a depth of the kept path.

  Attributes:
    node_b: int32 [B], a node there, of the prefix that is kept. Several paths
      may share it: p and q are read at the first one.
    race: of the paths that share it.
    weight_b: r, the chance that the prefix is accepted, given that it was
      kept.
    mass_b: sum((r p - q^G)+) after it.
    follows_b: bool [B], whether a token was drafted after it.
  """

  node_b: jax.Array
  race: Race
  weight_b: jax.Array
  mass_b: jax.Array
  follows_b: jax.Array


def _order(p_bv: jax.Array, q_bv: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The q before each token and its place, [B, V], in an order of the tokens.

  The most probable of q by p / q, of equal ones the lower id first; the rest
  are side by side, by id, where all of them together would be.
  """
  size = p_bv.shape[1]
  count = min(_HEAD, size)
  head_q_bl, head_bl = draw.largest(q_bv, count)
  head_p_bl = jnp.take_along_axis(p_bv, head_bl, axis=1)
  put = jax.vmap(lambda row_v, at_l, new_l: row_v.at[at_l].set(new_l))
  falses_bl = jnp.zeros(head_bl.shape, bool)
  is_rest_bv = put(jnp.ones(p_bv.shape, bool), head_bl, falses_bl)
  rest_p_bv, rest_q_bv = (jnp.where(is_rest_bv, x, 0) for x in (p_bv, q_bv))
  rest_q_b1 = rest_q_bv.sum(axis=1, keepdims=True)

  key = lambda p, q: jnp.where(p > 0, probs.ratio(p, q, jnp.inf), 0)
  key_bl = key(head_p_bl, head_q_bl)
  first_bll = key_bl[:, None] < key_bl[..., None]
  first_bll |= (key_bl[:, None] == key_bl[..., None]) & (
    head_bl[:, None] < head_bl[..., None]
  )
  is_last_bl = key_bl >= key(rest_p_bv.sum(axis=1, keepdims=True), rest_q_b1)

  head_below_bl = jnp.where(first_bll, head_q_bl[:, None], 0).sum(axis=-1)
  head_below_bl += jnp.where(is_last_bl, rest_q_b1, 0)
  below_bv = jnp.pad(jnp.cumsum(rest_q_bv, axis=1)[:, :-1], ((0, 0), (1, 0)))
  below_bv += jnp.where(is_last_bl, 0, head_q_bl).sum(axis=1, keepdims=True)
  rank_bl = first_bll.sum(axis=-1, dtype=jnp.int32)
  rank_bl += jnp.where(is_last_bl, count + size, 0)
  place_bv = count + lax.broadcasted_iota(jnp.int32, p_bv.shape, 1)
  return (
    put(below_bv, head_bl, head_below_bl),
    put(place_bv, head_bl, rank_bl),
  )


def _enter(
  race: Race, ways: Iterable, most: int, goal_bv, q_bv, below_bv
) -> tuple[Race, jax.Array]:
  """The race of so many paths as accept the next token most often, and M.

  Args:
    race: of all that are left.
    ways: how many paths may race, the most first, each int32 [B].
    most: the largest of them, static.
    goal_bv: r p.
    q_bv: what the paths' next tokens were drawn from.
    below_bv: the q before each token.
  """
  fewer = 1 - _ROUNDINGS * jnp.finfo(q_bv.dtype).eps
  best_b, mass_b = race.count_b, jnp.full_like(race.before_b, jnp.inf)
  # Where none is left 1 stands for it, with a q of 0.
  left_b = jnp.maximum(race.count_b, 1)
  for count_b in ways:
    law_bv = race._replace(count_b=count_b).law(q_bv, below_bv, most)
    found_b = jnp.maximum(goal_bv - law_bv, 0).sum(axis=-1)
    better_b = (count_b <= left_b) & (found_b < fewer * mass_b)
    best_b = jnp.where(better_b, count_b, best_b)
    mass_b = jnp.where(better_b, found_b, mass_b)
  return race._replace(count_b=best_b), mass_b


def _at(values_bv: jax.Array, token: jax.Array, otherwise=0) -> jax.Array:
  """[B, K] of tokens [B, K]; `otherwise` outside of the vocabulary."""
  size = values_bv.shape[-1]
  found = jnp.take_along_axis(values_bv, jnp.clip(token, 0, size - 1), axis=1)
  return jnp.where((token >= 0) & (token < size), found, otherwise)


def _walk(draft: Draft, p_bnv: jax.Array, path_kt: np.ndarray) -> list[Step]:
  """Keeps the largest path, token by token; what is known at each depth."""
  most, dtype = len(path_kt), p_bnv.dtype
  ones_b = jnp.ones_like(p_bnv[:, 0, 0])
  alive_bk = jnp.ones((p_bnv.shape[0], most), bool)
  race = Race(0 * ones_b, ones_b, jnp.full(ones_b.shape, most, jnp.int32))
  weight_b, steps = ones_b, []
  row_n = np.zeros(draft.tree.size, np.int32)
  row_n[list(draft.tree.internal)] = np.arange(len(draft.tree.internal))
  for depth in range(draft.tree.depth):
    next_k = path_kt[:, depth + 1]
    follows_bk = alive_bk & draft.valid[:, next_k]
    follows_b = follows_bk.any(axis=1)
    among_bk = jnp.where(follows_b[:, None], follows_bk, alive_bk)
    first_b = jnp.argmax(among_bk, axis=1)
    node_b = jnp.asarray(path_kt[:, depth])[first_b]
    p_bv = probs.row_at(p_bnv, node_b)
    q_bv = probs.row_at(draft.q, jnp.asarray(row_n)[node_b]).astype(dtype)
    q_bv = jnp.where(follows_b[:, None], q_bv, 0)
    below_bv, place_bv = _order(p_bv, q_bv)

    ways = [race.count_b, jnp.ones_like(race.count_b)]
    if not depth:
      race = race._replace(count_b=follows_bk.sum(axis=1, dtype=jnp.int32))
      ways = [jnp.full_like(race.count_b, k) for k in range(most, 0, -1)]
    goal_bv = weight_b[:, None] * p_bv
    race, mass_b = _enter(race, ways, most, goal_bv, q_bv, below_bv)
    steps.append(Step(node_b, race, weight_b, mass_b, follows_b))

    # Of those in the race the largest; paths of its token stay.
    turn_bk = jnp.cumsum(follows_bk, axis=1, dtype=jnp.int32)
    alive_bk = follows_bk & (turn_bk <= race.count_b[:, None])
    tokens_bk = draft.tokens[:, next_k]
    at_bk = jnp.where(alive_bk, _at(place_bv, tokens_bk, -1), -2)
    alive_bk &= at_bk == at_bk.max(axis=1, keepdims=True)
    kept_b1 = jnp.argmax(alive_bk, axis=1)[:, None]
    token_b1 = jnp.take_along_axis(tokens_bk, kept_b1, axis=1)
    p_b, q_b, below_b = (
      _at(x_bv, token_b1)[:, 0] for x_bv in (p_bv, q_bv, below_bv)
    )
    law_b = race.law(q_b, below_b, most)
    accepted_b = jnp.minimum(weight_b * p_b, law_b)
    weight_b = jnp.where(follows_b, probs.ratio(accepted_b, law_b, 0), 0)
    race = race.after(q_b, below_b)
  node_b = jnp.asarray(path_kt[:, -1])[jnp.argmax(alive_bk, axis=1)]
  none_b = jnp.zeros(ones_b.shape, bool)
  return [*steps, Step(node_b, race, weight_b, 0 * ones_b, none_b)]


def _paths(tree: TokenTree) -> np.ndarray:
  """int32 [K, γ + 1], the nodes of each path, the root first.

  Raises:
    UserError: the tree is no paths of one length, disjoint below the root.
  """
  leaves = sorted(set(range(tree.size)) - set(tree.internal))
  path_kt = tree.paths[leaves]
  if 1 + path_kt[:, 1:].size != tree.size or (path_kt < 0).any():
    raise UserError(
      'GreedyBlockVerifier verifies paths of one length that part at the root, '
      'such as those of branching (3, 1, 1): got a tree of '
      f'{tree.size} nodes, {len(leaves)} leaves and depth {tree.depth}'
    )
  return path_kt


@dataclasses.dataclass(frozen=True)
class GreedyBlockVerifier(Verifier):
  """Block verification of the largest of K independent paths.

  Trees that are paths of one length from the root, `TokenTree.branching((K, 1,
  1, ..))`. With one path it is the block rule. Of the first token, which one
  path accepts with sum(min(p, q)), never less is accepted.

  Which children of the root are valid may differ between rows. Below, a node's
  validity must be the same for all paths of one prefix: a path that ends there
  is a shorter block.
  """

  accepts: ClassVar[frozenset[Law]] = frozenset({'iid'})
  lossless: ClassVar[bool] = True

  def stop_probs(self, draft: Draft, p_bnv: jax.Array) -> jax.Array:
    """[B, N]: h_i * prod_{j > i} (1 - h_j) on the kept path, 0 elsewhere."""
    path_kt = _paths(draft.tree)
    later_b = jnp.ones_like(p_bnv[:, 0, 0])
    stop_bn = jnp.zeros(p_bnv.shape[:2], p_bnv.dtype)
    node_1n = np.arange(draft.tree.size, dtype=np.int32)[None]
    for step in reversed(_walk(draft, p_bnv, path_kt)):
      # As in the block rule: h = M / (M + 1 - r), at the end of a draft r.
      total_b = (1 - step.weight_b) + step.mass_b
      pass_b = jnp.where(
        step.follows_b, probs.ratio(step.mass_b, total_b, 1), step.weight_b
      )
      here_bn = step.node_b[:, None] == node_1n
      stop_bn = jnp.where(here_bn, (pass_b * later_b)[:, None], stop_bn)
      later_b = later_b * (1 - pass_b)
    return stop_bn

  def leave_probs(
    self, draft: Draft, p_bnv: jax.Array, node_b: jax.Array
  ) -> jax.Array:
    """[B, V]: norm((r p - q^G)+) after `node_b`, or p where no draft follows.

    Where no probability is left (a node that a row never stops at, rounding
    aside) it is p.
    """
    steps = _walk(draft, p_bnv, _paths(draft.tree))
    p_bv, q_bv = probs.rows_at(draft, p_bnv, node_b)
    if len(steps) == 1:
      return p_bv
    depth_b1 = jnp.asarray(draft.tree.depths, jnp.int32)[node_b][:, None]

    def here(values: Sequence[jax.Array]) -> jax.Array:
      stacked_bt = jnp.stack(values, axis=1)
      return jnp.take_along_axis(stacked_bt, depth_b1, axis=1)[:, 0]

    race = Race(*map(here, zip(*(step.race for step in steps), strict=True)))
    weight_b = here([step.weight_b for step in steps])
    below_bv, _ = _order(p_bv, q_bv)
    law_bv = race.law(q_bv, below_bv, draft.tree.width)
    return probs.residual(weight_b[:, None] * p_bv, law_bv, p_bv)
