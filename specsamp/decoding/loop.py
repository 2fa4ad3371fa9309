"""Prefill, and the round that is repeated until every row is done.

A round: propose -> one target pass over the draft -> probabilities -> verdict
-> commit. `decode` repeats it in one `while_loop` on the device; streaming has
it repeat it once.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from specsamp import flow
from specsamp.decoding.scoring import Scorer
from specsamp.decoding.state import DecodeState, Stats, with_axes
from specsamp.drafting.draft import Draft, TokenTree
from specsamp.drafting.drafter import Drafter, Scored, emitted_tokens
from specsamp.models import Transformer, kv_cache
from specsamp.sampling import coupling, draw, transforms
from specsamp.sampling.draw import Stream
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import rules
from specsamp.verification.gumbel import GumbelVerifier
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
    capacity: S, at least the largest limit plus the nodes of draft and
      extra tree; static.
  """
  batch, width = tokens_bp.shape
  cache = transformer.init_cache(params, batch, capacity)
  transformer = transformer.clone(taps=drafter.taps)
  out = transformer.apply({'params': params}, tokens_bp, cache=cache)
  state = DecodeState(
    tokens=jnp.pad(tokens_bp, ((0, 0), (0, capacity - width))),
    length=length_b,
    limit=limit_b,
    done=length_b >= limit_b,
    broken=jnp.zeros((batch,), bool),
    cache=out.cache,
    drafter=drafter.init(tokens_bp, length_b, out.features, capacity),
    keys=draw.row_keys(seeds_b),
    stats=Stats.zeros(batch, drafter.tree),
  )
  return with_axes(state, rules.constrain)


def play_round(
  transformer: Transformer,
  verifier: Verifier,
  scorer: Scorer,
  params,
  drafter: Drafter,
  sampling: SamplingParams,
  stop_tokens_k,
  state: DecodeState,
) -> DecodeState:
  """One round: every row that is not done grows by 1 to depth + 1 tokens.

  Args:
    transformer: the target; static.
    verifier: static.
    scorer: how the target's pass over a draft is made; static.
    params: the target's parameters.
    drafter: what drafts.
    sampling: values per row, [B], for target and draft alike.
    stop_tokens_k: int [K], tokens that end a row; -1 is none.
    state: before the round.

  Raises:
    ValueError: at trace time, a draft that the verifier cannot correct.
  """
  draft, drafter_state = drafter.propose(
    state.drafter, state.tokens, state.length, sampling, state.keys
  )
  state = state.replace(drafter=drafter_state)
  finish = functools.partial(
    _finish_round,
    transformer,
    verifier,
    scorer,
    params,
    drafter,
    sampling,
    stop_tokens_k,
  )
  if not drafter.may_draft_nothing:
    return finish(draft, state)
  # Where no row has a draft the pass is one over the roots.
  is_any = (draft.valid[:, 1:] & ~state.done[:, None]).any()
  roots = draft.replace(
    tokens=draft.tokens[:, :1],
    q=None,
    tree=TokenTree.chain(0),
    valid=draft.valid[:, :1],
  )
  state = flow.cond_in_place(is_any, lambda s: finish(draft, s), state)
  return flow.cond_in_place(~is_any, lambda s: finish(roots, s), state)


def decode(
  transformer: Transformer,
  verifier: Verifier,
  scorer: Scorer,
  params,
  drafter: Drafter,
  sampling: SamplingParams,
  stop_tokens_k,
  state: DecodeState,
  rounds,
) -> DecodeState:
  """Rounds until every row is done, in one program.

  Arguments: see `play_round`, and `rounds`, int [], how many at most.
  """
  step = functools.partial(
    play_round,
    transformer,
    verifier,
    scorer,
    params,
    drafter,
    sampling,
    stop_tokens_k,
  )
  return jax.lax.while_loop(
    lambda carry: (carry[0] > 0) & ~carry[1].done.all(),
    lambda carry: (carry[0] - 1, step(carry[1])),
    (rounds, state),
  )[1]


def _finish_round(
  transformer, verifier, scorer, params, drafter, sampling, stop_tokens_k,
  draft, state,
):  # fmt: skip
  """The round of a draft: the target's pass, the verdict, what they leave."""
  tree, extra_tree = draft.tree, drafter.extra_tree
  root_b = state.length - 1
  tokens = draft.tokens
  if extra_tree.parents:
    tokens = jnp.concatenate([tokens, draft.extra_tokens], axis=1)
  passed = tree.with_extra(extra_tree)
  transformer = transformer.clone(taps=drafter.taps)
  out = scorer(transformer, params, passed, tokens, root_b, state.cache)
  logits = out.logits
  if extra_tree.parents:  # the head is for those that are read
    read = np.r_[: tree.size, passed.size - extra_tree.num_read : passed.size]
    logits = transformer.apply(
      {'params': params}, out.hidden[:, read], method='logits'
    )
  logits_bnv = logits[:, : tree.size]
  p_bnv = transforms.probabilities(logits_bnv, sampling)
  if isinstance(verifier, GumbelVerifier):
    p_bnv = _coupled(p_bnv, tree, root_b, state.keys)
  # Root positions only grow, so that no two rounds of a row share a key.
  keys = lambda stream: draw.stream_keys(state.keys, root_b, stream)
  verdict = draw_verdict(
    keys(Stream.STOP), keys(Stream.LEAVE), verifier, draft, p_bnv
  )
  cache = out.cache
  if not tree.is_chain:
    kept_bt = jnp.maximum(verdict.path[:, 1:], 0)
    cache = kv_cache.keep_path(cache, root_b, kept_bt)
  scored = Scored(out.features[:, : tree.size], logits[:, tree.size :])
  drafter_state = drafter.commit(state.drafter, draft, verdict, root_b, scored)

  emitted_bt = emitted_tokens(draft, verdict)
  nan_b = jnp.isnan(logits_bnv).any(axis=(1, 2))
  count_b, stopped_b = _cut(
    emitted_bt,
    verdict.num_accepted + 1,
    state.limit - state.length,
    stop_tokens_k,
  )
  active_b = ~state.done
  count_b = jnp.where(active_b & ~nan_b, count_b, 0)
  length_b = state.length + count_b
  write = jax.vmap(
    lambda row, new, start: jax.lax.dynamic_update_slice(row, new, (start,))
  )
  return state.replace(
    # What is emitted past the cut, or by a row that is done, lands past
    # `length`.
    tokens=write(state.tokens, emitted_bt, state.length),
    length=length_b,
    done=state.done | nan_b | stopped_b | (length_b >= state.limit),
    broken=state.broken | (nan_b & active_b),
    cache=cache,
    drafter=drafter_state,
    stats=_count(state.stats, draft, verdict, active_b),
  )


def _coupled(p_bnv, tree, root_b, row_keys):
  """p after each node as the winner of its position's race, a one-hot."""
  at_t = 1 + jnp.arange(tree.depth + 1, dtype=jnp.int32)
  handicap_btv = coupling.handicaps(
    row_keys, root_b[:, None] + at_t[None, :], p_bnv.shape[-1]
  )
  depth_n = jnp.asarray(tree.depths, jnp.int32)
  return coupling.winner_one_hot(p_bnv, handicap_btv[:, depth_n])


def _cut(emitted_bt, count_b, left_b, stop_tokens_k):
  """How many of `count` tokens stand, and whether a stop token is among them.

  A stop token ends the text wherever it stands, inside an accepted draft too.
  """
  at = jnp.arange(emitted_bt.shape[1], dtype=jnp.int32)[None, :]
  count_b = jnp.minimum(count_b, left_b)
  is_stop = (emitted_bt[:, :, None] == stop_tokens_k[None, None, :]).any(
    axis=-1
  )
  is_stop = is_stop & (at < count_b[:, None])
  first_b = jnp.where(is_stop, at, emitted_bt.shape[1]).min(axis=1)
  return jnp.minimum(count_b, first_b + 1), is_stop.any(axis=1)


def _count(stats: Stats, draft: Draft, verdict: Verdict, active_b) -> Stats:
  tree = draft.tree
  rounds = stats.rounds + active_b.astype(jnp.int32)
  if not tree.depth:
    return stats.replace(rounds=rounds)
  depths = jnp.arange(1, tree.depth + 1, dtype=jnp.int32)[None, :]
  at_depth = jnp.asarray(tree.depths, jnp.int32)[None, :, None]
  drafted = draft.valid[:, :, None] & (at_depth == depths[:, None, :])
  accepted = verdict.num_accepted[:, None] >= depths
  # By node: how often its path takes a rank, and passes nodes that offer it.
  is_rank = np.asarray(tree.ranks)[:, None] == np.arange(tree.width)
  is_rank[0] = False
  offers = np.asarray(
    [np.arange(tree.width) < len(tree.children(n)) for n in range(tree.size)]
  )
  over_path = lambda has: jnp.asarray(tree.ancestor_mask.astype(np.int32) @ has)
  count = lambda old, new: (
    old
    + jnp.where(
      active_b.reshape((-1,) + (1,) * (new.ndim - 1)), new.astype(jnp.int32), 0
    )
  )
  return Stats(
    rounds=rounds,
    num_drafted_per_pos=count(stats.num_drafted_per_pos, drafted.any(axis=1)),
    num_accepted_per_pos=count(stats.num_accepted_per_pos, accepted),
    num_tried_per_rank=count(
      stats.num_tried_per_rank, over_path(offers)[verdict.node]
    ),
    num_accepted_per_rank=count(
      stats.num_accepted_per_rank, over_path(is_rank)[verdict.node]
    ),
  )
