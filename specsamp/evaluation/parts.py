"""What a round costs, and what its parts cost by themselves."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.decoding import loop
from specsamp.decoding.generate import capacity, slots
from specsamp.drafting.drafter import Drafter
from specsamp.language_model import LanguageModel
from specsamp.sampling import draw
from specsamp.sampling.transforms import SamplingParams
from specsamp.verification.verifier import Verifier

_ROUNDS = 20  # in one compiled loop


def measure(
  target: LanguageModel,
  drafter: Drafter,
  verifier: Verifier,
  samplings: Sequence[SamplingParams],
  prompt: list[int],
  max_new_tokens: int,
  repeats: int = 9,
) -> list[dict[str, Any]]:
  """Milliseconds of a round, of its draft, and of its target pass.

  Each is timed in a compiled loop of its own, the loops taking turns; medians.
  All start at the end of the same prompt, batch size 1.

  Args:
    target: the target.
    drafter: what drafts.
    verifier: the rule of the round.
    samplings: of both laws, scalars.
    prompt: token ids.
    max_new_tokens: sizes the caches as `generate` would.
    repeats: how often each loop is timed.

  Returns:
    For each sampling draft_len, round_ms, draft_ms (all γ steps), score_ms
    (the pass over γ + 1 tokens), both_ms (one after the other in one loop),
    and the round over its parts: `overhead` over draft_ms + score_ms,
    `verification` over both_ms. Where a processor's cache holds one model but
    not two, the parts are faster alone, which is no cost of verifying.
  """
  transformer, params = target.transformer, target.params
  length = np.asarray([len(prompt)], np.int32)
  size = drafter.tree.size
  _, text_slots = slots(target, len(prompt), len(prompt) + max_new_tokens)
  num_slots = capacity(text_slots, drafter)
  no_stop = jnp.full((1,), -1, jnp.int32)

  @jax.jit
  def start(params, drafter):
    return loop.prefill(
      transformer,
      params,
      drafter,
      jnp.asarray([prompt], jnp.int32),
      jnp.asarray(length),
      jnp.full((1,), text_slots, jnp.int32),
      jnp.zeros((1,), jnp.int32),
      num_slots,
    )

  def one_round(params, drafter, sampling, state):
    state = loop.play_round(
      transformer, verifier, params, drafter, sampling, no_stop, state
    )
    # Every round starts at the prompt's end, as the parts do.
    return state.replace(length=jnp.asarray(length))

  def one_draft(params, drafter, sampling, state):
    draft, drafter_state = drafter.propose(
      state.drafter,
      state.tokens,
      state.length,
      sampling,
      draw.stream_keys(state.keys, state.stats.rounds, draw.Stream.DRAFT),
    )
    slot = jnp.arange(state.tokens.shape[1], dtype=jnp.int32)[None, :]
    return state.replace(
      # The next draft hangs on this one's last token, so that none is skipped.
      tokens=jnp.where(
        slot == state.length[:, None] - 1, draft.tokens[:, -1:], state.tokens
      ),
      drafter=drafter_state,
      stats=state.stats.replace(rounds=state.stats.rounds + 1),
    )

  def one_score(params, drafter, sampling, state):
    at = jnp.arange(size, dtype=jnp.int32)[None, :] + state.length[:, None] - 1
    tokens = jnp.take_along_axis(state.tokens, at, axis=1)
    out = transformer.apply({'params': params}, tokens, at, state.cache)
    # The next pass hangs on this one's last logits.
    last = (out.logits[:, -1, :1] > 0).astype(jnp.int32)
    return state.replace(
      tokens=jnp.maximum(state.tokens - last, 0), cache=out.cache
    )

  def one_of_both(params, drafter, sampling, state):
    state = one_draft(params, drafter, sampling, state)
    return one_score(params, drafter, sampling, state)

  def repeat(step):
    return jax.jit(
      lambda params, drafter, sampling, state: jax.lax.fori_loop(
        0, _ROUNDS, lambda _, s: step(params, drafter, sampling, s), state
      ),
      donate_argnums=3,
    )

  loops = {
    'round_ms': repeat(one_round),
    'draft_ms': repeat(one_draft),
    'score_ms': repeat(one_score),
    'both_ms': repeat(one_of_both),
  }
  times = [{name: [] for name in loops} for _ in samplings]
  for turn in range(repeats + 1):
    for sampling, into in zip(samplings, times, strict=True):
      for name, run in loops.items():
        state = jax.block_until_ready(start(params, drafter))
        began = time.perf_counter()
        jax.block_until_ready(
          run(params, drafter, sampling.broadcast(1), state)
        )
        if turn:  # the first one compiles
          into[name].append(1e3 * (time.perf_counter() - began) / _ROUNDS)
  rows = []
  for into in times:
    row = {name: statistics.median(values) for name, values in into.items()}
    row['overhead'] = row['round_ms'] / (row['draft_ms'] + row['score_ms'])
    row['verification'] = row['round_ms'] / row['both_ms']
    rows.append({'draft_len': drafter.tree.depth} | row)
  return rows
