"""Prefill, and the round that is repeated until every row is done.

A round: propose -> one target pass over the draft -> probabilities -> verdict
-> commit. `decode` repeats it in one `while_loop` on the device; streaming
calls the same round from Python.
"""

import functools

import jax
import jax.numpy as jnp

from specsamp.decoding.state import DecodeState, Stats
from specsamp.drafting.draft import Draft
from specsamp.drafting.drafter import Drafter
from specsamp.models import Transformer
from specsamp.sampling import draw, transforms
from specsamp.sampling.draw import Stream
from specsamp.sampling.transforms import SamplingParams
from specsamp.verification.verifier import Verdict, Verifier, draw_verdict


def prefill(
  transformer: Transformer,
  params,
  drafter: Drafter,
  tokens_bp,
  length_b,
  limit_b,
  seeds_b,
  capacity: int,
) -> DecodeState:
  """The state before the first round.

  The last token of each prompt is the first root, so that no token is sampled
  outside of the loop. What this pass writes for it and for the padding is
  never seen: the rounds write it over.

  Args:
    transformer: the target; static.
    params: its parameters.
    drafter: what will draft.
    tokens_bp: int [B, P], prompts, padded on the right.
    length_b: int [B], their lengths, at least 1.
    limit_b: int [B], lengths at which the rows end.
    seeds_b: int [B].
    capacity: S, at least the largest limit plus the draft's nodes; static.
  """
  batch, width = tokens_bp.shape
  cache = transformer.init_cache(params, batch, capacity)
  out = transformer.apply({'params': params}, tokens_bp, cache=cache)
  depth = drafter.tree.depth
  return DecodeState(
    tokens=jnp.pad(tokens_bp, ((0, 0), (0, capacity - width))),
    length=length_b,
    limit=limit_b,
    done=length_b >= limit_b,
    broken=jnp.zeros((batch,), bool),
    cache=out.cache,
    drafter=drafter.init(tokens_bp, length_b, out.hidden, capacity),
    keys=draw.row_keys(seeds_b),
    stats=Stats(
      rounds=jnp.zeros((batch,), jnp.int32),
      drafted_at=jnp.zeros((batch, depth), jnp.int32),
      accepted_at=jnp.zeros((batch, depth), jnp.int32),
    ),
  )


def play_round(
  transformer: Transformer,
  verifier: Verifier,
  params,
  drafter: Drafter,
  sampling: SamplingParams,
  stop_tokens_k,
  state: DecodeState,
) -> DecodeState:
  """One round: every row that is not done grows by 1 to γ + 1 tokens.

  Args:
    transformer: the target; static.
    verifier: static.
    params: the target's parameters.
    drafter: what drafts.
    sampling: values per row, [B], for target and draft alike.
    stop_tokens_k: int [K], tokens that end a row; -1 is none.
    state: before the round.

  Raises:
    ValueError: at trace time, a draft that is no chain.
  """
  root_b = state.length - 1
  # Root positions only grow, so that no two rounds of a row share a key; a
  # draft that was thrown away must not lend its random bits to the next one.
  keys = lambda stream: draw.stream_keys(state.keys, root_b, stream)
  draft, drafter_state = drafter.propose(
    state.drafter, state.tokens, state.length, sampling, keys(Stream.DRAFT)
  )
  if not draft.tree.is_chain:
    raise ValueError(
      f'the loop decodes chains: got a tree of parents {draft.tree.parents}'
    )
  node_n = jnp.arange(draft.tree.size, dtype=jnp.int32)
  out = transformer.apply(
    {'params': params},
    draft.tokens,
    root_b[:, None] + node_n[None, :],
    state.cache,
  )
  verdict = draw_verdict(
    keys(Stream.STOP),
    keys(Stream.LEAVE),
    verifier,
    draft,
    transforms.probabilities(out.logits, sampling),
  )
  drafter_state = drafter.commit(drafter_state, draft, verdict, out.hidden)

  said_bt = _said(draft, verdict)
  nan_b = jnp.isnan(out.logits).any(axis=(1, 2))
  count_b, stopped_b = _cut(
    said_bt, verdict.num_accepted + 1, state.limit - state.length, stop_tokens_k
  )
  active_b = ~state.done
  count_b = jnp.where(active_b & ~nan_b, count_b, 0)
  length_b = state.length + count_b
  write = jax.vmap(
    lambda row, new, start: jax.lax.dynamic_update_slice(row, new, (start,))
  )
  return state.replace(
    # What is said past the cut, or by a row that is done, lands past `length`.
    tokens=write(state.tokens, said_bt, state.length),
    length=length_b,
    done=state.done | nan_b | stopped_b | (length_b >= state.limit),
    broken=state.broken | (nan_b & active_b),
    cache=out.cache,
    drafter=drafter_state,
    stats=_count(state.stats, draft, verdict, active_b),
  )


def decode(
  transformer: Transformer,
  verifier: Verifier,
  params,
  drafter: Drafter,
  sampling: SamplingParams,
  stop_tokens_k,
  state: DecodeState,
) -> DecodeState:
  """Rounds until every row is done, in one program. Arguments: `play_round`."""
  step = functools.partial(
    play_round, transformer, verifier, params, drafter, sampling, stop_tokens_k
  )
  return jax.lax.while_loop(lambda s: ~s.done.all(), step, state)


def _said(draft: Draft, verdict: Verdict):
  """Accepted tokens, then the verdict's: int [B, depth + 1], noise after."""
  node_bt = jnp.maximum(verdict.path, 0)
  path_bt = jnp.take_along_axis(draft.tokens, node_bt, axis=1)
  accepted_bt = jnp.roll(path_bt, -1, axis=1)  # the root has been said
  at = jnp.arange(path_bt.shape[1], dtype=jnp.int32)[None, :]
  return jnp.where(
    at == verdict.num_accepted[:, None],
    verdict.next_token[:, None],
    accepted_bt,
  )


def _cut(said_bt, count_b, left_b, stop_tokens_k):
  """How many of `count` tokens stand, and whether a stop token is among them.

  A stop token ends the text wherever it stands, inside an accepted draft too.
  """
  at = jnp.arange(said_bt.shape[1], dtype=jnp.int32)[None, :]
  count_b = jnp.minimum(count_b, left_b)
  is_stop = (said_bt[:, :, None] == stop_tokens_k[None, None, :]).any(axis=-1)
  is_stop = is_stop & (at < count_b[:, None])
  first_b = jnp.where(is_stop, at, said_bt.shape[1]).min(axis=1)
  return jnp.minimum(count_b, first_b + 1), is_stop.any(axis=1)


def _count(stats: Stats, draft: Draft, verdict: Verdict, active_b) -> Stats:
  depths = jnp.arange(1, draft.tree.depth + 1, dtype=jnp.int32)[None, :]
  active = active_b[:, None]
  at_depth = jnp.asarray(draft.tree.depths, jnp.int32)[None, :, None]
  drafted = draft.valid[:, :, None] & (at_depth == depths[:, None, :])
  accepted = verdict.num_accepted[:, None] >= depths
  return Stats(
    rounds=stats.rounds + active_b.astype(jnp.int32),
    drafted_at=stats.drafted_at
    + (drafted.any(axis=1) & active).astype(jnp.int32),
    accepted_at=stats.accepted_at + (accepted & active).astype(jnp.int32),
  )
