"""State that the decoding loop carries from round to round."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.drafting.draft import TokenTree
from specsamp.drafting.drafter import SharedState
from specsamp.models import KVCache, kv_cache


@struct.dataclass
class Prompts:
  """Prompts of a batch.

  Attributes:
    tokens: int [B, P], prompts, padded on the right.
    length: int [B], their lengths, at least 1.
    limit: int [B], their lengths plus budgets, at which the rows end.
    seeds: int [B].
  """

  tokens: jax.Array
  length: jax.Array
  limit: jax.Array
  seeds: jax.Array


@struct.dataclass
class Stats:
  """Counts of each row over the rounds in which it was not done.

  Tokens that the verifier accepted count even if a stop token or the budget
  then cuts them.

  Attributes:
    rounds: int [B], passes of the target.
    num_drafted_per_round: int [B, S], depth of the draft in each round; noise
      from index `rounds`.
    num_drafted_per_pos: int [B, γ], rounds that drafted a token of this depth.
    num_accepted_per_pos: int [B, γ], rounds that accepted a token of this
      depth.
    num_tried_per_rank: int [B, C], times that a node with a child of this rank
      was reached. Dynamic trees do not count here.
    num_accepted_per_rank: int [B, C], times that the child of this rank was
      accepted.
  """

  rounds: jax.Array
  num_drafted_per_round: jax.Array
  num_drafted_per_pos: jax.Array
  num_accepted_per_pos: jax.Array
  num_tried_per_rank: jax.Array
  num_accepted_per_rank: jax.Array

  @classmethod
  def zeros(cls, batch: int, tree: TokenTree, max_rounds: int) -> 'Stats':
    zeros = lambda *shape: jnp.zeros((batch, *shape), jnp.int32)
    return cls(
      rounds=zeros(),
      num_drafted_per_round=zeros(max_rounds),
      num_drafted_per_pos=zeros(tree.depth),
      num_accepted_per_pos=zeros(tree.depth),
      num_tried_per_rank=zeros(tree.width),
      num_accepted_per_rank=zeros(tree.width),
    )


def block_efficiency(num_accepted, rounds):
  """Returns τ, the tokens that a round yields: 1 + accepted / rounds.

  A round yields the draft tokens that the verifier accepts and one token of the
  target. Tokens that a stop token or the budget then cuts count, so τ does not
  depend on where a completion ends. It is NaN without rounds. Both arguments
  are numbers or arrays.
  """
  return 1 + num_accepted / rounds if np.all(rounds) else float('nan')


@struct.dataclass
class Logprobs:
  """Log-probabilities of tokens, each at the position of its token.

  Positions without a token are noise. So are a row's first token, and the rest
  of the prompt unless `LogprobOptions.prompts` is set.

  Attributes:
    raw: float32 [B, S], under the target's distribution at temperature 1.
    processed: float32 [B, S], under the distribution that the token was drawn
      from, after temperature and cuts. It is 0 for a greedy token, and noise
      for a prompt.
    top_tokens: int32 [B, S, K], the most probable tokens at that position.
    top_raw: float32 [B, S, K], `raw` of these tokens.
  """

  raw: jax.Array
  processed: jax.Array
  top_tokens: jax.Array
  top_raw: jax.Array


@struct.dataclass
class DecodeState:
  """State of one batch between two rounds.

  Attributes:
    tokens: int [B, S], committed tokens; noise from index `length`.
    length: int [B], number of committed tokens. The last one is the root of the
      next round and has no cache entry yet.
    limit: int [B], length at which a row's budget is spent.
    done: bool [B], True if a stop token was emitted or the budget is spent.
    broken: bool [B], True if the target's logits had a NaN, which ends a row.
    cache: the target's cache, S slots.
    drafter: the drafter's state.
    keys: keys [B] of the rows.
    stats: counts.
    logprobs: log-probabilities of the tokens, or None.
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

  @property
  def visible(self) -> 'DecodeState':
    """The state without the parts that only the device reads."""
    return self.replace(cache=None, drafter=None, keys=None, limit=None)


def with_axes(state: Any, place: Callable[..., Any]) -> Any:
  """Applies a function to each array and the names of its axes.

  The first axis of every array is the batch, except in `SharedState`, in tables
  of a cache and in scalars. `place` is `rules.constrain` or the result of
  `rules.sharding`, for example.
  """

  def place_node(node):
    if isinstance(node, KVCache):
      return kv_cache.with_axes(node, place)
    if isinstance(node, SharedState):
      return jax.tree.map(lambda x: place(x, *(None,) * x.ndim), node)
    return place(node, *('batch', *(None,) * (node.ndim - 1))[: node.ndim])

  is_leaf = lambda node: isinstance(node, KVCache | SharedState)
  return jax.tree.map(place_node, state, is_leaf=is_leaf)
