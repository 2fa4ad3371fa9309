"""Candidates of a draft's nodes, chosen from a drafter's logits.

Drafters without a model propose branches: chains of draft tokens that share
only the root.
"""

import numbers
from collections.abc import Sequence
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import Draft, DynamicTree, Law, TokenTree
from specsamp.errors import UserError, check_name
from specsamp.sampling import coupling, draw, transforms
from specsamp.sampling.transforms import SamplingParams

# A greedy target accepts the draft's most probable token far more often than
# its q. At this temperature q is near the acceptance: of EAGLE's tokens with q
# 0.49, 0.74, 0.90 and 0.99 the target accepted 58, 71, 87 and 93 % (692 rounds
# on three tasks); of a draft model's with q 0.46, 0.68, 0.87 and 0.99 it
# accepted 41, 66, 74 and 92 %. Dynamic trees of 32 nodes have τ 6.5 to 6.6 at
# 0.1 to 0.25, and 6.1 at 0.5.
GREEDY_TEMPERATURE = 0.2


def random_numbers(tree: TokenTree, keys_b, root_b, num_racing: int | None):
  """Returns the random numbers of a round's draft.

  Args:
    tree: tree of the draft.
    keys_b: keys of the rows.
    root_b: int [B], positions of the roots.
    num_racing: V for a coupled drafter, None for others.

  Returns:
    Numbers of a draw for each draft token, [B, N - 1, 2]; and the handicaps of
    the target's races, [B, depth, V], or None.
  """
  round_keys_b = draw.stream_keys(keys_b, root_b, draw.Stream.DRAFT)
  uniform_bk2 = draw.uniforms(round_keys_b, tree.size - 1)
  if num_racing is None:
    return uniform_bk2, None
  at_g = 1 + jnp.arange(tree.depth, dtype=jnp.int32)
  at_bg = root_b[:, None] + at_g[None, :]
  return uniform_bk2, coupling.handicaps(keys_b, at_bg, num_racing)


def pick(
  logits_bwv,
  uniform_bwc2,
  sampling: SamplingParams,
  law: Law,
  handicap_bwv=None,
  counts_w: Sequence[int] | None = None,
  *,
  is_confidence: bool = False,
):
  """Chooses C candidates for each of W nodes.

  Rows of temperature 0 take the C most probable tokens. They report q at
  temperature 1, or at `GREEDY_TEMPERATURE` if q is a confidence. If a single
  candidate is drawn, they report the cheaper one-hot. Any q is lossless in such
  a row, because p is a one-hot and every verifier emits its argmax.

  Args:
    logits_bwv: the drafter's logits after each node.
    uniform_bwc2: numbers of `draw.uniforms`, one draw for each candidate.
    sampling: values per row; q is the distribution after this transform.
    law: how the candidates of a node are chosen.
    handicap_bwv: handicaps of each node's race, for a coupled drafter; [B, 1,
      V] if all nodes have the same depth.
    counts_w: number of first candidates that each node keeps; None is all. The
      last of them uses the node's last uniform numbers under `top_plus_one`.
    is_confidence: True if q of a greedy candidate is read as the probability
      that it is accepted.

  Returns:
    Candidates and their validity, [B, W, C], and q, [B, W, V].
  """
  batch, _, count = uniform_bwc2.shape[:3]
  sampling = sampling.broadcast(batch)
  greedy_b = sampling.temperature == 0
  needs_q = count > 1 or law == 'deterministic' or is_confidence
  if needs_q:
    temperature = GREEDY_TEMPERATURE if is_confidence else 1.0
    sampling = greedy_at(temperature, sampling)
  q_bwv = transforms.probabilities(logits_bwv, sampling)
  most_probable = lambda: _most_probable(q_bwv, count, greedy_b, handicap_bwv)
  drawn = lambda: _drawn(q_bwv, uniform_bwc2, law, counts_w)

  def by_row():
    select = lambda a, b: jnp.where(greedy_b[:, None, None], a, b)
    return jax.tree.map(select, most_probable(), drawn())

  if law == 'deterministic':
    tokens, valid = most_probable()
  elif not needs_q:
    tokens, valid = drawn()
  else:
    tokens, valid = jax.lax.cond(greedy_b.any(), by_row, drawn)
  return tokens, valid, q_bwv


def _most_probable(q_bwv, count: int, greedy_b, handicap_bwv):
  """Returns the C most probable tokens and their validity.

  A coupled drafter takes the first C tokens of its race in rows that are not
  greedy.
  """
  speed_bwv = q_bwv
  if handicap_bwv is not None:
    raced_bwv = coupling.speeds(q_bwv, handicap_bwv)
    speed_bwv = jnp.where(greedy_b[:, None, None], q_bwv, raced_bwv)
  best, tokens = draw.largest(speed_bwv, count)
  return tokens, best > 0


def _drawn(q_bwv, uniform_bwc2, law: Law, counts_w: Sequence[int] | None):
  """Returns C tokens drawn from q and their validity."""
  batch, width, count = uniform_bwc2.shape[:3]
  uniform_rc2 = uniform_bwc2.reshape(-1, count, 2)
  q_rv = q_bwv.reshape(-1, q_bwv.shape[-1])
  if law == 'iid' or count == 1:
    inverse_cdf = jax.vmap(draw.inverse_cdf, in_axes=(1, None), out_axes=1)
    tokens = inverse_cdf(uniform_rc2, q_rv)
    valid = jnp.ones(tokens.shape, bool)
  elif law == 'top_plus_one':
    counts_r = jnp.tile(jnp.asarray(counts_w or [count] * width), batch)
    tokens, valid = draw.top_plus_one(
      uniform_rc2[:, -1], q_rv, counts_r - 1, count - 1
    )
  else:
    tokens, valid = draw.without_replacement(uniform_rc2, q_rv)
  shape = (batch, width, count)
  return tokens.reshape(shape), valid.reshape(shape)


def greedy_at(temperature: float, sampling: SamplingParams) -> SamplingParams:
  """Returns `sampling` with greedy rows at `temperature` and untruncated."""
  is_greedy_b = sampling.temperature == 0
  plain = SamplingParams(temperature).broadcast(len(is_greedy_b))
  return jax.tree.map(
    lambda value, plain: jnp.where(is_greedy_b, plain, value), sampling, plain
  )


def draft_of(tree, law, root_b1, tokens_bk, valid_bk, q_biv) -> Draft:
  """Returns the draft of a root and the tokens drafted after it.

  Args:
    tree: tree of the draft.
    law: how its tokens were chosen.
    root_b1: int32 [B, 1], the last committed tokens, from `root_of`.
    tokens_bk: int32 [B, N - 1], a token for each other node of the tree.
    valid_bk: bool [B, N - 1], nodes that were drafted.
    q_biv: float32 [B, I, V], q after each internal node; not read if the law is
      deterministic.

  Raises:
    UserError: the root's shape is not [B, 1].
  """
  batch = tokens_bk.shape[0]
  if root_b1.shape != (batch, 1):
    raise UserError(
      f'draft_of: root_b1: got shape {root_b1.shape}, expected [B, 1] = '
      f'{(batch, 1)}, as root_of returns'
    )
  return Draft(
    tokens=jnp.concatenate([root_b1, tokens_bk], axis=1),
    q=None if law == 'deterministic' else q_biv,
    tree=tree,
    law=law,
    valid=jnp.pad(valid_bk, ((0, 0), (1, 0)), constant_values=True),
  )


def check_shape(
  shape: int | TokenTree, law: Law, coupled: bool = False
) -> TokenTree:
  """Returns the tree of a draft length, or a tree that `grow` can grow.

  Raises:
    UserError: the draft length is below 1, the tree is not numbered breadth
      first, the law is unknown, a dynamic tree has a law that draws, or a
      coupled drafter has a dynamic tree or a law other than `deterministic`.
  """
  if isinstance(shape, numbers.Integral):
    if shape < 1:
      raise UserError(f'draft length: got {shape}, expected at least 1')
    shape = TokenTree.chain(shape)
  if not isinstance(shape, TokenTree):
    raise UserError(
      f'shape: got {shape!r}, expected a draft length or a TokenTree, such as '
      'TokenTree.branching((4, 2))'
    )
  if shape.size < 2 or not shape.is_breadth_first:
    raise UserError(
      'the tree of a draft must have a node below the root and be numbered '
      f'breadth first, got parents {shape.parents}'
    )
  check_name('law', law, get_args(Law))
  if isinstance(shape, DynamicTree) and law != 'deterministic':
    # It is not lossless to keep the more probable ones of drawn tokens.
    raise UserError(
      f"law: got {law!r}, expected 'deterministic' for a dynamic tree, whose "
      'nodes are the most probable ones'
    )
  if coupled and law != 'deterministic':
    raise UserError(f'a coupled drafter is deterministic, got law {law!r}')
  if coupled and isinstance(shape, DynamicTree):
    raise UserError(
      'a coupled drafter takes the winners of races, not the most probable '
      'tokens: got a dynamic tree'
    )
  return shape


def check_branches(shape: int | TokenTree) -> TokenTree:
  """Returns the tree of a draft length, or a tree of branches.

  Raises:
    UserError: the draft length is below 1, or the tree parts below the root.
  """
  tree = check_shape(shape, 'deterministic')
  if isinstance(tree, DynamicTree) or any(
    len(tree.children(node)) > 1 for node in range(1, tree.size)
  ):
    raise UserError(
      'the tree of this drafter parts at the root only, as 3x1x1 does; got '
      f'parents {tree.parents}'
    )
  return tree


def best_branches(score_bt, first_bt, uniform_bc2):
  """Chooses the best C of T branches that begin with different tokens.

  A verifier would never follow a second branch with the same first token.

  Args:
    score_bt: int [B, T], higher is better; 0 marks a branch that is missing.
    first_bt: int [B, T], first tokens of the branches.
    uniform_bc2: float32 [B, C, 2], numbers of `draw.uniforms`, one draw among
      equally good branches for each choice.

  Returns:
    Indices of the chosen branches, int [B, C], and their validity, bool [B, C].
  """
  places, valids = [], []
  for uniform_b2 in jnp.moveaxis(uniform_bc2, 1, 0):
    best_b1 = score_bt.max(axis=1, keepdims=True)
    tied_bt = (score_bt == best_b1) & (best_b1 > 0)
    place_b = draw.inverse_cdf(uniform_b2, tied_bt.astype(jnp.float32))
    token_b1 = jnp.take_along_axis(first_bt, place_b[:, None], axis=1)
    score_bt = jnp.where(first_bt == token_b1, 0, score_bt)
    places.append(place_b)
    valids.append(best_b1[:, 0] > 0)
  return jnp.stack(places, axis=1), jnp.stack(valids, axis=1)


def draft_of_branches(tree: TokenTree, root_b1, tokens_bcg, valid_bcg):
  """Returns the draft of C branches from [B, C, depth] tokens and validity."""
  branch_k = np.searchsorted(tree.children(0), tree.paths[1:, 1])
  step_k = np.asarray(tree.depths[1:]) - 1
  return draft_of(
    tree,
    'deterministic',
    root_b1,
    tokens_bcg[:, branch_k, step_k],
    valid_bcg[:, branch_k, step_k],
    None,
  )
