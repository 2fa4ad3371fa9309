"""What the decoding loop carries from round to round."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.drafting.draft import TokenTree
from specsamp.drafting.drafter import OfBatch
from specsamp.models import KVCache, kv_cache


class Prompts(NamedTuple):
  """What a batch begins with.

  Attributes:
    tokens: int [B, P], prompts, padded on the right.
    length: int [B], their lengths, at least 1.
    limit: int [B], lengths at which the rows end.
    seeds: int [B].
  """

  tokens: jax.Array
  length: jax.Array
  limit: jax.Array
  seeds: jax.Array


@struct.dataclass
class Stats:
  """Counts of each row, over the rounds in which it was not done.

  They are the verifier's own: tokens that it accepted count even where a stop
  token or the budget then cut the text.

  Attributes:
    rounds: int [B], target passes.
    num_drafted_per_round: int [B, S], how deep each round drafted; noise from
      `rounds` on.
    num_drafted_per_pos: int [B, γ], rounds in which a token of this depth was
      drafted.
    num_accepted_per_pos: int [B, γ], rounds in which one of this depth was
      accepted.
    num_tried_per_rank: int [B, C], times that a node was reached which has a
      candidate of this rank among its children. Not of dynamic trees.
    num_accepted_per_rank: int [B, C], times that the candidate of this rank was
      accepted.
  """

  rounds: jax.Array
  num_drafted_per_round: jax.Array
  num_drafted_per_pos: jax.Array
  num_accepted_per_pos: jax.Array
  num_tried_per_rank: jax.Array
  num_accepted_per_rank: jax.Array

  @classmethod
  def zeros(cls, batch: int, tree: TokenTree, most_rounds: int) -> 'Stats':
    zeros = lambda *shape: jnp.zeros((batch, *shape), jnp.int32)
    return cls(
      rounds=zeros(),
      num_drafted_per_round=zeros(most_rounds),
      num_drafted_per_pos=zeros(tree.depth),
      num_accepted_per_pos=zeros(tree.depth),
      num_tried_per_rank=zeros(tree.width),
      num_accepted_per_rank=zeros(tree.width),
    )


def block_efficiency(num_accepted, rounds):
  """Returns τ, the tokens that a round yields: 1 + accepted / rounds.

  A round yields the draft tokens that the verifier accepts and one token of the
  target. Tokens that a stop token or the budget then cuts count. τ is therefore
  (emitted + cut tokens) / rounds, and does not depend on where a text ends.

  Args:
    num_accepted: accepted draft tokens, a number or an array.
    rounds: rounds in which they were accepted, a number or an array.

  Returns:
    τ, or NaN if there was no round.
  """
  return 1 + num_accepted / rounds if np.all(rounds) else float('nan')


@struct.dataclass
class Logprobs:
  """Log-probabilities of the tokens of rows, each at its token's place.

  Noise where there is no token, and at a row's first one, before which there
  is nothing. Of a prompt's tokens too, if `Decoder.prefill` was asked for them.

  Attributes:
    raw: float32 [B, S], under the target's distribution at temperature 1.
    processed: float32 [B, S], under what the token was drawn from: after
      temperature and cuts. A greedy token's is 0; a prompt's are noise.
    top_tokens: int32 [B, S, K], the most probable tokens at that place.
    top_raw: float32 [B, S, K], what `raw` would be of them.
  """

  raw: jax.Array
  processed: jax.Array
  top_tokens: jax.Array
  top_raw: jax.Array


@struct.dataclass
class DecodeState:
  """One batch in the middle of its text.

  Attributes:
    tokens: int [B, S], prompt and text; what stands past `length` is noise.
    length: int [B], committed tokens. The last of them is the next round's
      root: it has no cache entry yet.
    limit: int [B], the length at which a row's budget is spent.
    done: bool [B], a stop token was emitted or the budget is spent.
    broken: bool [B], the target's logits held a NaN; the row ends there.
    cache: the target's, S slots.
    drafter: the drafter's own state.
    keys: keys [B] of the rows' seeds.
    stats: counts.
    logprobs: of the tokens, or None where nobody asks.
  """

  tokens: jax.Array
  length: jax.Array
  limit: jax.Array
  done: jax.Array
  broken: jax.Array
  cache: KVCache
  drafter: Any
  keys: jax.Array
  stats: Stats
  logprobs: Logprobs | None = None


def with_axes(state: Any, apply: Callable[..., Any]) -> Any:
  """`apply(array, *axes)` of each array: see `kv_cache.with_axes`.

  Args:
    state: a `DecodeState` or a part of one. Every array in it has the batch's
      rows on its first axis, but for the tables of a cache, what is `OfBatch`,
      and scalars.
    apply: `rules.constrain`, or what `rules.sharding` returns.
  """

  def of(node):
    if isinstance(node, KVCache):
      return kv_cache.with_axes(node, apply)
    if isinstance(node, OfBatch):
      return jax.tree.map(lambda x: apply(x, *(None,) * x.ndim), node)
    return apply(node, *('batch', *(None,) * (node.ndim - 1))[: node.ndim])

  is_leaf = lambda node: isinstance(node, KVCache | OfBatch)
  return jax.tree.map(of, state, is_leaf=is_leaf)
