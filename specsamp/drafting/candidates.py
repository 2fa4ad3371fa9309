"""From a drafter's logits after nodes to the candidates of these nodes."""

import numbers
from collections.abc import Sequence
from typing import get_args

import jax
import jax.numpy as jnp

from specsamp.drafting.draft import Draft, DynamicTree, Law, TokenTree
from specsamp.errors import UserError, check_name
from specsamp.sampling import coupling, draw, transforms
from specsamp.sampling.transforms import SamplingParams

# A greedy target emits its most probable token, which the draft's is far more
# often than its q tells. At this temperature it tells that: 0.49, 0.74, 0.90
# and 0.99 of EAGLE's were accepted 58, 71, 87 and 93 times of 100 (692 rounds
# on three tasks; 0.46, 0.68, 0.87 and 0.99 of a draft model's 41, 66, 74, 92).
# Dynamic trees of 32 nodes have τ 6.5 to 6.6 at 0.1 to 0.25, 6.1 at 0.5.
GREEDY_TEMPERATURE = 0.2


def pick(
  logits_bwv,
  uniform_bwc2,
  sampling: SamplingParams,
  law: Law,
  handicap_bv=None,
  counts_w: Sequence[int] | None = None,
  *,
  is_confidence: bool = False,
):
  """Candidates of W nodes, their validity, both [B, W, C], and q [B, W, V].

  Rows of temperature 0 take the C most probable tokens, and report q of
  temperature 1: their target's p is a one-hot, of which every verifier emits
  the argmax, whatever was drafted. A single one's is the one-hot that it is
  drawn from, less to compute; where it is asked for as a confidence it is q of
  `GREEDY_TEMPERATURE`.

  Args:
    logits_bwv: the drafter's, after each node.
    uniform_bwc2: numbers of `draw.uniforms`, one draw for each candidate.
    sampling: values per row; q is the distribution after this transform.
    law: how the candidates of a node are chosen.
    handicap_bv: of the race of this depth, for a coupled drafter.
    counts_w: how many of its C candidates each node keeps, the first ones; None
      is all. Their last one is drawn with the last of its numbers.
    is_confidence: whether q tells how probable a single greedy candidate was.
  """
  batch, _, count = uniform_bwc2.shape[:3]
  greedy_b = sampling.broadcast(batch).temperature == 0
  several = count > 1 or law == 'deterministic' or is_confidence
  if several:
    temperature = GREEDY_TEMPERATURE if is_confidence else 1.0
    sampling = greedy_at(temperature, sampling.broadcast(batch))
  q_bwv = transforms.probabilities(logits_bwv, sampling)
  most_probable = lambda: _most_probable(q_bwv, count, greedy_b, handicap_bv)
  drawn = lambda: _drawn(q_bwv, uniform_bwc2, law, counts_w)
  if law == 'deterministic':
    tokens, valid = most_probable()
  elif not several:
    tokens, valid = drawn()
  else:
    greedy_b11 = greedy_b[:, None, None]
    tokens, valid = jax.lax.cond(
      greedy_b.any(),
      lambda: jax.tree.map(
        lambda a, b: jnp.where(greedy_b11, a, b), most_probable(), drawn()
      ),
      drawn,
    )
  return tokens, valid, q_bwv


def _most_probable(q_bwv, count: int, greedy_b, handicap_bv):
  """The C most probable tokens and their validity, see `pick`.

  Rows that are not greedy have the first ones of a coupled drafter's race.
  """
  speed_bwv = q_bwv
  if handicap_bv is not None:
    speed_bwv = jnp.where(
      greedy_b[:, None, None],
      q_bwv,
      coupling.speeds(q_bwv, handicap_bv[:, None]),
    )
  best, tokens = draw.largest(speed_bwv, count)
  return tokens, best > 0


def _drawn(q_bwv, uniform_bwc2, law: Law, counts_w: Sequence[int] | None):
  """Tokens that are drawn from q by this law, and their validity."""
  batch, width, count = uniform_bwc2.shape[:3]
  uniform_rc2 = uniform_bwc2.reshape(-1, count, 2)
  q_rv = q_bwv.reshape(-1, q_bwv.shape[-1])
  if law == 'iid' or count == 1:
    each = jax.vmap(draw.inverse_cdf, in_axes=(1, None), out_axes=1)
    tokens = each(uniform_rc2, q_rv)
    valid = jnp.ones(tokens.shape, bool)
  elif law == 'top_plus_one':
    counts_bw = jnp.broadcast_to(
      jnp.asarray([count] * width if counts_w is None else counts_w),
      (batch, width),
    )
    tokens, valid = draw.top_plus_one(
      uniform_rc2[:, -1], q_rv, counts_bw.reshape(-1) - 1, count - 1
    )
  else:
    tokens, valid = draw.without_replacement(uniform_rc2, q_rv)
  shape = (batch, width, count)
  return tokens.reshape(shape), valid.reshape(shape)


def greedy_at(temperature: float, sampling: SamplingParams) -> SamplingParams:
  """Rows of temperature 0 at this one, and without cuts.

  Args:
    temperature: above 0.
    sampling: values per row.
  """
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


def check_shape(shape: int | TokenTree, law: Law) -> TokenTree:
  """The tree of a draft that `grow` can grow.

  Args:
    shape: a draft length, or a tree.
    law: how its candidates are chosen.

  Raises:
    UserError: a draft length below 1, a tree that is not numbered breadth
      first, a dynamic one of candidates that are drawn, or an unknown law.
  """
  if not isinstance(shape, TokenTree):
    if not isinstance(shape, numbers.Integral):
      raise UserError(
        f'shape: got {shape!r}, expected a draft length or a TokenTree, such '
        'as TokenTree.branching((4, 2))'
      )
    if shape < 1:
      raise UserError(f'draft length: got {shape}, expected at least 1')
    try:
      shape = TokenTree.chain(shape)
    except ValueError as error:
      raise UserError(str(error)) from None
  if shape.size < 2 or not shape.is_breadth_first:
    raise UserError(
      'the tree of a draft must have a node below the root and be numbered '
      f'breadth first, got parents {shape.parents}'
    )
  check_name('law', law, get_args(Law))
  if isinstance(shape, DynamicTree) and law != 'deterministic':
    # Keeping the likelier ones of drawn tokens is not lossless.
    raise UserError(
      f'law: got {law!r}; a dynamic tree, whose nodes are the most probable '
      "ones, expected 'deterministic'"
    )
  return shape
