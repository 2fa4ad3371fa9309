"""Prefill, and the round that is repeated until every row is done.

A round: propose -> one target pass over the draft -> probabilities -> verdict
-> commit. `decode` repeats it in one `while_loop` on the device; streaming has
it repeat it once.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.decoding import logprobs, scoring
from specsamp.decoding.logprobs import Asked
from specsamp.decoding.scoring import Scorer
from specsamp.decoding.state import DecodeState, Prompts, Stats, with_axes
from specsamp.drafting.draft import Draft, Verdict
from specsamp.drafting.drafter import Drafter, Scored, emitted_tokens
from specsamp.models import Transformer, kv_cache
from specsamp.sampling import coupling, draw, transforms
from specsamp.sampling.draw import Stream
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import rules
from specsamp.utils import flow
from specsamp.verification.verifier import Verifier, draw_verdict, is_coupled


@struct.dataclass
class Inputs:
  """What a program reads in every round: traced, and never changed.

  Attributes:
    params: the target's parameters.
    drafter: what drafts.
    sampling: values per row, [B], for target and draft alike.
    stop_tokens: int [B, K], tokens that end each row; -1 is none.
  """

  params: Any
  drafter: Drafter
  sampling: SamplingParams
  stop_tokens: jax.Array


@dataclasses.dataclass(frozen=True)
class Decoder:
  """What a program is compiled for: static and hashable.

  Attributes:
    transformer: the target.
    verifier: the rule.
    scorer: how the target's pass over a draft is made.
  """

  transformer: Transformer
  verifier: Verifier
  scorer: Scorer = scoring.tree_attention

  def prefill(
    self,
    inputs: Inputs,
    prompts: Prompts,
    capacity: int,
    asked: Asked = logprobs.NOTHING,
  ) -> DecodeState:
    """The state before the first round.

    The last token of each prompt is the first root, so that no token is sampled
    outside of the loop. What this pass writes for it and for the padding is
    never seen: the rounds write it over.

    Args:
      inputs: of the rounds; sampling and stop tokens are not read.
      prompts: padded on the right.
      capacity: S, at least the largest limit plus the drafter's `room`; static.
      asked: which log-probabilities the state shall have; static.
    """
    drafter = inputs.drafter
    batch, width = prompts.tokens.shape
    cache = self.transformer.init_cache(inputs.params, batch, capacity)
    out = self._tapped(drafter).apply(
      {'params': inputs.params}, prompts.tokens, cache=cache
    )
    state = DecodeState(
      tokens=jnp.pad(prompts.tokens, ((0, 0), (0, capacity - width))),
      length=prompts.length,
      limit=prompts.limit,
      done=prompts.length >= prompts.limit,
      broken=jnp.zeros((batch,), bool),
      cache=out.cache,
      drafter=drafter.init(
        prompts.tokens, prompts.length, out.features, capacity
      ),
      keys=self._row_keys(drafter, prompts.seeds),
      stats=Stats.zeros(batch, drafter.tree, capacity),
      logprobs=logprobs.begin(asked, out.logits, prompts.tokens, capacity),
    )
    return with_axes(state, rules.constrain)

  def decode(
    self, inputs: Inputs, state: DecodeState, rounds, most_done=None
  ) -> DecodeState:
    """Rounds until every row is done, in one program.

    Args:
      inputs: of the rounds.
      state: before them.
      rounds: int [], how many at most.
      most_done: int [], they end as soon as more rows than these are done; None
        is all but one.
    """

    def goes_on(state):
      if most_done is None:
        return ~state.done.all()
      return state.done.sum(dtype=jnp.int32) <= most_done

    return jax.lax.while_loop(
      lambda carry: (carry[0] > 0) & goes_on(carry[1]),
      lambda carry: (carry[0] - 1, self.round(inputs, carry[1])),
      (rounds, state),
    )[1]

  def round(self, inputs: Inputs, state: DecodeState) -> DecodeState:
    """One round: every row that is not done grows by 1 to depth + 1 tokens.

    Raises:
      ValueError: at trace time, a draft that the verifier cannot correct.
    """
    draft, drafter_state = inputs.drafter.propose(
      state.drafter, state.tokens, state.length, inputs.sampling, state.keys
    )
    # A node that was not drafted goes through the target all the same; for what
    # is no token an embedding that is split by vocabulary has NaN.
    draft = draft.replace(tokens=jnp.where(draft.valid, draft.tokens, 0))
    state = state.replace(drafter=drafter_state)
    passes = inputs.drafter.passes
    if len(passes) == 1:
      return self._finish(inputs, draft, state)
    # The fewest nodes that hold what rows have drafted that are not done.
    has_n = (draft.valid & ~state.done[:, None]).any(axis=0)
    nodes = jnp.max(jnp.where(has_n, 1 + np.arange(len(has_n)), 1))
    chosen = (np.asarray(passes) < nodes).sum()
    for i, size in enumerate(passes):
      # Cut within: else every round would cut what is of the others, too.
      finish = lambda state, size=size: self._finish(
        inputs, draft.first(size), state
      )
      state = flow.cond_in_place(chosen == i, finish, state)
    return state

  def sets_apart(self, drafter: Drafter) -> bool:
    """Whether rows of one seed, and texts of one slot, need bits of their own.

    They do where the drafter mixes rows (`Drafter.mixes_rows`), but for a
    coupled verifier, which emits what its noise chooses, whatever is drafted.
    """
    return drafter.mixes_rows and not is_coupled(self.verifier)

  def _row_keys(self, drafter: Drafter, seeds_b) -> jax.Array:
    """Keys [B] of the rows' seeds, int [B]."""
    keys_b = draw.row_keys(seeds_b)
    if not self.sets_apart(drafter):
      return keys_b
    is_same_bb = seeds_b[:, None] == seeds_b[None, :]
    earlier_b = jnp.tril(is_same_bb, -1).sum(axis=1, dtype=jnp.int32)
    return draw.apart(keys_b, earlier_b)

  def _tapped(self, drafter: Drafter) -> Transformer:
    """The target with the features that the drafter reads."""
    return self.transformer.clone(taps=drafter.taps)

  def _finish(
    self, inputs: Inputs, draft: Draft, state: DecodeState
  ) -> DecodeState:
    """The round of a draft: the target's pass, the verdict, what they leave."""
    drafter, tree = inputs.drafter, draft.tree
    root_b = state.length - 1
    out, logits = self._score(inputs, draft, state)
    logits_bnv = logits[:, : tree.size]
    drawn_from_bnv = p_bnv = transforms.probabilities(
      logits_bnv, inputs.sampling
    )
    if is_coupled(self.verifier):
      p_bnv = _coupled(p_bnv, draft, root_b, state.keys)
    # Root positions only grow, so that no two rounds of a row share a key.
    keys = lambda stream: draw.stream_keys(state.keys, root_b, stream)
    verdict = draw_verdict(
      keys(Stream.STOP), keys(Stream.LEAVE), self.verifier, draft, p_bnv
    )
    cache = out.cache
    if not tree.is_chain:
      kept_bt = jnp.maximum(verdict.path[:, 1:], 0)
      cache = kv_cache.keep_path(cache, root_b, kept_bt)
    scored = Scored(
      out.features[:, : tree.size], logits[:, tree.size :], ~state.done
    )
    drafter_state = drafter.commit(
      state.drafter, draft, verdict, root_b, scored
    )
    state = state.replace(
      cache=cache,
      drafter=drafter_state,
      logprobs=logprobs.write(
        state.logprobs, logits_bnv, drawn_from_bnv, draft, verdict, root_b
      ),
    )
    nan_b = jnp.isnan(logits_bnv).any(axis=(1, 2))
    return _grow(state, draft, verdict, nan_b, inputs.stop_tokens)

  def _score(self, inputs: Inputs, draft: Draft, state: DecodeState):
    """The target's pass over a draft and the extra tree; the logits read."""
    tree, extra_tree = draft.tree, inputs.drafter.extra_tree
    tokens = draft.tokens
    if extra_tree.parents:
      tokens = jnp.concatenate([tokens, draft.extra_tokens], axis=1)
    passed = tree.with_extra(extra_tree)
    transformer = self._tapped(inputs.drafter)
    out = self.scorer(
      transformer,
      inputs.params,
      passed,
      tokens,
      state.length - 1,
      state.cache,
      draft.parents,
    )
    if not extra_tree.parents:
      return out, out.logits
    # The head is for those that are read.
    read = np.r_[: tree.size, passed.size - extra_tree.num_read : passed.size]
    return out, transformer.apply(
      {'params': inputs.params}, out.hidden[:, read], method='logits'
    )


def _grow(
  state: DecodeState, draft: Draft, verdict: Verdict, nan_b, stop_tokens_bk
) -> DecodeState:
  """The state with the emitted tokens, cut at stop tokens and budgets."""
  emitted_bt = emitted_tokens(draft, verdict)
  count_b, stopped_b = _cut(
    emitted_bt,
    verdict.num_accepted + 1,
    state.limit - state.length,
    stop_tokens_bk,
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
    stats=_count(state.stats, draft, verdict, active_b),
  )


def _coupled(p_bnv, draft: Draft, root_b, row_keys):
  """p after each node as the winner of its position's race, a one-hot."""
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


def _cut(emitted_bt, count_b, left_b, stop_tokens_bk):
  """How many of `count` tokens stand, and whether a stop token is among them.

  A stop token ends the text wherever it stands, inside an accepted draft too.
  """
  at = jnp.arange(emitted_bt.shape[1], dtype=jnp.int32)[None, :]
  count_b = jnp.minimum(count_b, left_b)
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

  def count(old, new):
    # A pass over fewer nodes than the tree's counts fewer depths.
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
    num_drafted_per_pos=count(stats.num_drafted_per_pos, drafted_bg),
    num_accepted_per_pos=count(stats.num_accepted_per_pos, accepted),
  )
  if draft.parents is not None:
    return stats  # candidates have no ranks that are fixed
  # By node: how often its path takes a rank, and passes nodes that offer it.
  is_rank = np.asarray(tree.ranks)[:, None] == np.arange(tree.width)
  is_rank[0] = False
  offers = np.asarray(
    [np.arange(tree.width) < len(tree.children(n)) for n in range(tree.size)]
  )
  over_path = lambda has: jnp.asarray(tree.ancestor_mask.astype(np.int32) @ has)
  return stats.replace(
    num_tried_per_rank=count(
      stats.num_tried_per_rank, over_path(offers)[verdict.node]
    ),
    num_accepted_per_rank=count(
      stats.num_accepted_per_rank, over_path(is_rank)[verdict.node]
    ),
  )
