"""Prefill and the speculative decoding loop.

The loop is Algorithm 2 of Chen et al. 2302.01318, for a batch of rows, chains
and trees, and any verifier. It repeats rounds until every row is done. A round
is one step of the algorithm ::

  draft   Drafter.propose drafts tokens after the root, the last committed token
  score   _score: one pass of the target gives its p after every node
  verify  _verify draws the accepted path and the next token
  commit  caches keep the accepted path; _append appends the emitted tokens

`Decoder.decode` is one `while_loop` on the device. Streaming calls it for one
round at a time.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.decoding import logprobs, scoring
from specsamp.decoding.logprobs import LogprobOptions
from specsamp.decoding.scoring import Scorer
from specsamp.decoding.state import DecodeState, Prompts, Stats, with_axes
from specsamp.drafting.draft import Draft, Verdict
from specsamp.drafting.drafter import (
  Drafter,
  Scored,
  emitted_tokens,
  spans,
  tokens_from,
)
from specsamp.models import KVCache, Transformer, kv_cache
from specsamp.sampling import coupling, draw, transforms
from specsamp.sampling.draw import Stream
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import rules
from specsamp.utils import flow
from specsamp.verification.verifier import Verifier, draw_verdict, is_coupled

# Prompt tokens of all rows of a shard in one pass of the prefill. On a TPU v5e
# or an H100 the arithmetic of 256 to 300 tokens takes as long as reading the
# weights, so more tokens save no time, but cost memory. On a CPU the scores of
# fewer tokens stay in its caches: 1,500 tokens of SmolLM2 135M took 14.3
# seconds of CPU time in one pass, 10.5 in chunks of 512, 7.1 in those of 128
# and 7.6 in those of 64.
ACCELERATOR_TOKENS = 512
CPU_TOKENS = 128
# Scores of a layer in such a pass, float32 [H, T, S]: 1 GiB. Programs for an
# H100 take 2.5 times as much.
_MAX_SCORES = 2**28
_MIN_CHUNK = 64  # tokens of a row


@struct.dataclass
class Inputs:
  """Inputs of every round: traced, and never changed.

  Attributes:
    params: the target's parameters.
    drafter: proposes the draft tokens.
    sampling: values per row, [B], for target and draft.
    stop_tokens: int [B, K], tokens that end each row; -1 is padding.
  """

  params: Any
  drafter: Drafter
  sampling: SamplingParams
  stop_tokens: jax.Array


@dataclasses.dataclass(frozen=True)
class Decoder:
  """Static parts of a compiled program: hashable.

  Attributes:
    transformer: the target.
    verifier: the verification rule.
    scorer: the target's pass over a draft.
    prefill_chunk: prompt tokens of a row in one pass of the prefill; None is
      `chunk_size`.
    prefill_tokens: upper bound on those of all rows of a shard, if it is None;
      a row has 64 at least.
  """

  transformer: Transformer
  verifier: Verifier
  scorer: Scorer = scoring.tree_attention
  prefill_chunk: int | None = None
  prefill_tokens: int = ACCELERATOR_TOKENS

  def prefill(
    self,
    inputs: Inputs,
    prompts: Prompts,
    capacity: int,
    logprob_options: LogprobOptions | None = None,
  ) -> DecodeState:
    """Returns the state before the first round.

    The last token of each prompt is the first root, so no token is sampled
    outside of the loop. The first round overwrites the cache entries of that
    token and of the padding before anything reads them.

    Prompts are read in chunks, by one loop: its memory does not grow with the
    prompts but for the caches, and shorter prompts of a width take fewer
    passes.

    The capacity S is at least the largest limit plus `cache_slots` of the
    drafter. Sampling values and stop tokens are not read.
    """
    drafter = inputs.drafter
    batch, width = prompts.tokens.shape
    no_feature_b1f = self.transformer.clone(taps=drafter.taps).no_features(
      batch
    )
    state = self._before_prompts(
      inputs,
      prompts,
      capacity,
      cache=self.transformer.init_cache(inputs.params, batch, capacity),
      drafter=drafter.init(
        prompts.tokens, prompts.length, no_feature_b1f, capacity
      ),
      logprobs=logprobs.empty(logprob_options, batch, capacity),
    )
    size = min(width, self.chunk_size(batch, capacity))
    start_b = jnp.zeros_like(prompts.length)
    return self._read(
      inputs, state, start_b, size, no_feature_b1f, logprob_options
    )

  def resume(
    self,
    inputs: Inputs,
    state: DecodeState,
    prompts: Prompts,
    start_b,
    size: int,
    logprob_options: LogprobOptions | None = None,
  ) -> DecodeState:
    """Returns the state before the first round of prompts that continue texts.

    It is that of `prefill`, but the first `start` tokens are not read again.

    Args:
      inputs: see `prefill`.
      state: a state of other texts with the same parameters, after any round. A
        text begins with the first `start` and `Drafter.overlap` more tokens of
        its row's prompt, and at least one more token.
      prompts: the whole prompts.
      start_b: int [B].
      size: tokens of a row in one pass, from 2 to the width of the prompts.
      logprob_options: those of the state.
    """
    drafter, capacity = inputs.drafter, state.tokens.shape[1]
    is_cache = lambda node: isinstance(node, KVCache)
    clear = lambda node: (
      kv_cache.cleared(node, start_b + 1) if is_cache(node) else node
    )
    inner = drafter.resume(
      state.drafter, prompts.tokens, start_b, prompts.length
    )
    state = self._before_prompts(
      inputs,
      prompts,
      capacity,
      cache=clear(state.cache),
      drafter=jax.tree.map(clear, inner, is_leaf=is_cache),
      logprobs=logprobs.of_prompts(state.logprobs),
    )
    return self._read(inputs, state, start_b, size, None, logprob_options)

  def _before_prompts(
    self, inputs: Inputs, prompts: Prompts, capacity: int, **parts
  ) -> DecodeState:
    """Returns a state with these parts, before the prompts are read."""
    drafter, (batch, width) = inputs.drafter, prompts.tokens.shape
    return DecodeState(
      tokens=jnp.pad(prompts.tokens, ((0, 0), (0, capacity - width))),
      length=prompts.length,
      limit=prompts.limit,
      done=prompts.length >= prompts.limit,
      broken=jnp.zeros((batch,), bool),
      keys=self._row_keys(drafter, prompts.seeds),
      stats=Stats.zeros(batch, drafter.tree, capacity),
      **parts,
    )

  def _read(
    self,
    inputs: Inputs,
    state: DecodeState,
    start_b,
    size: int,
    before_b1f,
    logprob_options: LogprobOptions | None,
  ) -> DecodeState:
    """Returns the state after the prompts' tokens from `start` on, in chunks.

    `before` are features of the tokens before `start`. If they are None, the
    drafter has read the first token, and each chunk begins with the last token
    of the one before it.
    """
    drafter = inputs.drafter
    # Its output has the features that the drafter reads.
    transformer = self.transformer.clone(taps=drafter.taps)
    has_logprobs = logprob_options is not None and logprob_options.prompts
    stride = size - (before_b1f is None)

    def first(number):
      # The last chunk of a row ends with its prompt. A row that ended in an
      # earlier chunk reads its last chunk again, with the same results.
      return jnp.clip(state.length - size, 0, start_b + number * stride)

    def step(carry):
      number, state, before_b1f = carry
      start_b, number = first(number), number + 1
      positions_bc = spans(start_b, size)
      tokens_bc = tokens_from(state.tokens, start_b, size)
      out = transformer.apply(
        {'params': inputs.params}, tokens_bc, positions_bc, state.cache
      )
      if has_logprobs:
        next_bc = tokens_from(state.tokens, start_b + 1, size)
        new = logprobs.after_chunk(state.logprobs, out.logits, next_bc, start_b)
        state = state.replace(logprobs=new)
      if before_b1f is None:
        chunk = tokens_bc[:, 1:], out.features, start_b + 1
      else:
        features_bcf = jnp.concatenate([before_b1f, out.features], axis=1)
        chunk = tokens_bc, features_bcf, start_b
        before_b1f = jnp.take_along_axis(
          features_bcf, (first(number) - start_b)[:, None, None], axis=1
        )
      inner = drafter.prefill(state.drafter, *chunk, state.length)
      state = state.replace(cache=out.cache, drafter=inner)
      return number, state, before_b1f

    count = -(-(state.length - start_b - size + stride).max() // stride)
    _, state, _ = jax.lax.while_loop(
      lambda carry: carry[0] < count, step, (jnp.int32(0), state, before_b1f)
    )
    return with_axes(state, rules.constrain)

  def decode(
    self, inputs: Inputs, state: DecodeState, rounds, max_done=None
  ) -> DecodeState:
    """Repeats rounds until every row is done, in one program.

    The loop also ends after `rounds`, int [], or once more than `max_done`
    rows, int [], are done.
    """

    def has_work(carry):
      rounds_left, state = carry
      if max_done is None:
        is_open = ~state.done.all()
      else:
        is_open = state.done.sum(dtype=jnp.int32) <= max_done
      return (rounds_left > 0) & is_open

    def step(carry):
      rounds_left, state = carry
      return rounds_left - 1, self.round(inputs, state)

    _, state = jax.lax.while_loop(has_work, step, (rounds, state))
    return state

  def round(self, inputs: Inputs, state: DecodeState) -> DecodeState:
    """Runs one round: rows that are not done grow by 1 to depth + 1 tokens.

    Raises:
      ValueError: at trace time, the verifier cannot correct the draft.
    """
    # Draft.
    draft, drafter_state = inputs.drafter.propose(
      state.drafter, state.tokens, state.length, inputs.sampling, state.keys
    )
    # Nodes that were not drafted go through the target too. For a token that
    # does not exist an embedding that is split by vocabulary returns NaN.
    draft = draft.replace(tokens=jnp.where(draft.valid, draft.tokens, 0))
    state = state.replace(drafter=drafter_state)
    sizes = inputs.drafter.passes
    if len(sizes) == 1:
      return self.score_and_commit(inputs, draft, state)
    # The smallest pass over all drafted nodes of rows that are not done.
    is_drafted_n = (draft.valid & ~state.done[:, None]).any(axis=0)
    size_n = 1 + np.arange(len(is_drafted_n))
    min_size = jnp.max(jnp.where(is_drafted_n, size_n, 1))
    chosen = (np.asarray(sizes) < min_size).sum()
    for i, size in enumerate(sizes):

      def finish(state, size=size):
        # Cut inside the branch: otherwise every round would make all cuts.
        return self.score_and_commit(inputs, draft.first(size), state)

      state = flow.cond_in_place(chosen == i, finish, state)
    return state

  def score_and_commit(
    self, inputs: Inputs, draft: Draft, state: DecodeState
  ) -> DecodeState:
    """Finishes the round of a draft: score, verify, commit."""
    drafter, tree = inputs.drafter, draft.tree
    root_b = state.length - 1

    # Score.
    out, logits = self._score(inputs, draft, state)
    logits_bnv, extra_logits = logits[:, : tree.size], logits[:, tree.size :]
    p_bnv = transforms.probabilities(logits_bnv, inputs.sampling)

    # Verify.
    verdict = self._verify(draft, p_bnv, root_b, state.keys)

    # Commit.
    cache = out.cache
    if not tree.is_chain:
      path_bt = jnp.maximum(verdict.path[:, 1:], 0)
      cache = kv_cache.keep_path(cache, root_b, path_bt)
    scored = Scored(out.features[:, : tree.size], extra_logits, ~state.done)
    drafter_state = drafter.commit(
      state.drafter, draft, verdict, root_b, scored
    )
    state = state.replace(
      cache=cache,
      drafter=drafter_state,
      logprobs=logprobs.after_round(
        state.logprobs, logits_bnv, p_bnv, draft, verdict, root_b
      ),
    )
    has_nan_b = jnp.isnan(logits_bnv).any(axis=(1, 2))
    return _append(state, draft, verdict, has_nan_b, inputs.stop_tokens)

  def _score(self, inputs: Inputs, draft: Draft, state: DecodeState):
    """Runs the target's pass over a draft and the drafter's extra tokens.

    Returns its output, and the logits after the draft's nodes and after the
    extra tokens that are read.
    """
    tree, extra_tree = draft.tree, inputs.drafter.extra_tree
    tokens = draft.tokens
    if extra_tree.parents:
      tokens = jnp.concatenate([tokens, draft.extra_tokens], axis=1)
    whole = tree.with_extra(extra_tree)
    transformer = self.transformer.clone(taps=inputs.drafter.taps)
    out = self.scorer(
      transformer,
      inputs.params,
      whole,
      tokens,
      state.length - 1,
      state.cache,
      draft.parents,
    )
    if not extra_tree.parents:
      return out, out.logits
    # The LM head is applied to the tokens that are read only.
    read = np.r_[: tree.size, whole.size - extra_tree.num_read : whole.size]
    return out, transformer.apply(
      {'params': inputs.params}, out.hidden[:, read], method='logits'
    )

  def _verify(self, draft: Draft, p_bnv, root_b, row_keys) -> Verdict:
    if is_coupled(self.verifier):
      p_bnv = _race_winners(p_bnv, draft, root_b, row_keys)
    # A row's root moves in every round, so no two rounds share a key.
    stop_keys = draw.stream_keys(row_keys, root_b, Stream.STOP)
    leave_keys = draw.stream_keys(row_keys, root_b, Stream.LEAVE)
    return draw_verdict(stop_keys, leave_keys, self.verifier, draft, p_bnv)

  def chunk_size(self, batch: int, capacity: int) -> int:
    """Returns the prompt tokens of a row in one pass of the prefill."""
    if self.prefill_chunk is not None:
      return self.prefill_chunk
    mesh = rules.mesh_in_use()
    rows, heads = batch, self.transformer.config.num_heads
    if mesh is not None:
      rows = -(-rows // mesh.shape[rules.DATA])
      heads = -(-heads // mesh.shape[rules.MODEL])
    tokens = min(self.prefill_tokens, _MAX_SCORES // (heads * capacity))
    return max(_MIN_CHUNK, tokens // rows)

  def needs_distinct_bits(self, drafter: Drafter) -> bool:
    """Returns True if rows of one seed must not share random bits.

    The same holds for successive requests in a slot, see `Drafter.mixes_rows`.
    Coupled verifiers are exempt: they emit the same tokens for any draft.
    """
    return drafter.mixes_rows and not is_coupled(self.verifier)

  def _row_keys(self, drafter: Drafter, seeds_b) -> jax.Array:
    keys_b = draw.row_keys(seeds_b)
    if not self.needs_distinct_bits(drafter):
      return keys_b
    is_same_bb = seeds_b[:, None] == seeds_b[None, :]
    earlier_b = jnp.tril(is_same_bb, -1).sum(axis=1, dtype=jnp.int32)
    return draw.apart(keys_b, earlier_b)


def _append(
  state: DecodeState, draft: Draft, verdict: Verdict, has_nan_b, stop_tokens_bk
) -> DecodeState:
  """Appends the emitted tokens, up to stop tokens and budgets."""
  emitted_bt = emitted_tokens(draft, verdict)
  count_b, is_stopped_b = _cut(
    emitted_bt,
    verdict.num_accepted + 1,
    state.limit - state.length,
    stop_tokens_bk,
  )
  active_b = ~state.done
  count_b = jnp.where(active_b & ~has_nan_b, count_b, 0)
  length_b = state.length + count_b
  write = jax.vmap(
    lambda row, new, start: jax.lax.dynamic_update_slice(row, new, (start,))
  )
  return state.replace(
    # Tokens after the cut, and tokens of rows that are done, are written past
    # `length`.
    tokens=write(state.tokens, emitted_bt, state.length),
    length=length_b,
    done=state.done | has_nan_b | is_stopped_b | (length_b >= state.limit),
    broken=state.broken | (has_nan_b & active_b),
    stats=_count(state.stats, draft, verdict, active_b),
  )


def _race_winners(p_bnv, draft: Draft, root_b, row_keys):
  """Returns the winner of each node's race under p, as one-hots [B, N, V]."""
  at_t = 1 + jnp.arange(draft.tree.depth + 1, dtype=jnp.int32)
  handicap_btv = coupling.handicaps(
    row_keys, root_b[:, None] + at_t[None, :], p_bnv.shape[-1]
  )
  if draft.parents is None:
    handicap_bnv = handicap_btv[:, np.asarray(draft.tree.depths)]
  else:
    handicap_bnv = jnp.take_along_axis(
      handicap_btv, draft.depths()[:, :, None], axis=1
    )
  return coupling.winner_one_hot(p_bnv, handicap_bnv)


def _cut(emitted_bt, count_b, budget_b, stop_tokens_bk):
  """Returns the number of tokens to append, and True for rows that stop.

  A stop token ends the text even inside an accepted draft.
  """
  at = jnp.arange(emitted_bt.shape[1], dtype=jnp.int32)[None, :]
  count_b = jnp.minimum(count_b, budget_b)
  is_stop = (emitted_bt[:, :, None] == stop_tokens_bk[:, None, :]).any(axis=-1)
  is_stop = is_stop & (at < count_b[:, None])
  first_b = jnp.where(is_stop, at, emitted_bt.shape[1]).min(axis=1)
  return jnp.minimum(count_b, first_b + 1), is_stop.any(axis=1)


def _count(stats: Stats, draft: Draft, verdict: Verdict, active_b) -> Stats:
  tree = draft.tree
  rounds = stats.rounds + active_b.astype(jnp.int32)
  if not tree.depth:
    return stats.replace(rounds=rounds)
  depths = jnp.arange(1, tree.depth + 1, dtype=jnp.int32)[None, :]
  at_depth = draft.depths()[:, :, None]
  drafted = draft.valid[:, :, None] & (at_depth == depths[:, None, :])
  accepted = verdict.num_accepted[:, None] >= depths

  def add(old, new):
    # A pass over the first nodes of a tree counts the first depths.
    new = jnp.where(active_b[:, None], new.astype(jnp.int32), 0)
    return old.at[:, : new.shape[1]].add(new)

  drafted_bg = drafted.any(axis=1)
  write = jax.vmap(lambda row, at, depth: row.at[at].set(depth))
  stats = stats.replace(
    rounds=rounds,
    num_drafted_per_round=write(
      stats.num_drafted_per_round,
      stats.rounds,
      drafted_bg.sum(axis=1, dtype=jnp.int32),
    ),
    num_drafted_per_pos=add(stats.num_drafted_per_pos, drafted_bg),
    num_accepted_per_pos=add(stats.num_accepted_per_pos, accepted),
  )
  if draft.parents is not None:
    return stats  # ranks of candidates are not static
  # For each node: how often its path takes a rank, and how often it passes a
  # node with a child of that rank.
  is_rank = np.asarray(tree.ranks)[:, None] == np.arange(tree.width)
  is_rank[0] = False
  has_rank = np.asarray(
    [np.arange(tree.width) < len(tree.children(n)) for n in range(tree.size)]
  )
  over_path = lambda x: jnp.asarray(tree.ancestor_mask.astype(np.int32) @ x)
  return stats.replace(
    num_tried_per_rank=add(
      stats.num_tried_per_rank, over_path(has_rank)[verdict.node]
    ),
    num_accepted_per_rank=add(
      stats.num_accepted_per_rank, over_path(is_rank)[verdict.node]
    ),
  )
