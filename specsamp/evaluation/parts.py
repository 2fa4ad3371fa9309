"""What a round costs, and what its parts cost by themselves."""

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.decoding import loop
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
  sampling: SamplingParams,
  prompt: list[int],
  repeats: int = 9,
) -> dict[str, Any]:
  """Milliseconds of a round, of its draft, and of its target pass.

  Each is timed in a compiled loop of its own, the loops taking turns; medians.
  All start at the end of the same prompt, batch size 1.

  Args:
    target: the target.
    drafter: what drafts.
    verifier: the rule of the round.
    sampling: of both laws, scalars.
    prompt: token ids.
    repeats: how often each loop is timed.

  Returns:
    draft_len, round_ms, draft_ms (all γ steps), score_ms (the pass over γ + 1
    tokens) and overhead, the round over its two parts.
  """
  sampling = sampling.broadcast(1)
  transformer, params = target.transformer, target.params
  length = np.asarray([len(prompt)], np.int32)
  size = drafter.tree.size
  capacity = len(prompt) + _ROUNDS * size + size
  no_stop = jnp.full((1,), -1, jnp.int32)

  @jax.jit
  def start(params, drafter):
    return loop.prefill(
      transformer,
      params,
      drafter,
      jnp.asarray([prompt], jnp.int32),
      jnp.asarray(length),
      jnp.full((1,), capacity, jnp.int32),
      jnp.zeros((1,), jnp.int32),
      capacity,
    )

  def one_round(params, drafter, state):
    state = loop.play_round(
      transformer, verifier, params, drafter, sampling, no_stop, state
    )
    # Every round starts at the prompt's end: the parts do as well.
    return state.replace(length=jnp.asarray(length))

  def one_draft(params, drafter, state):
    draft, drafter_state = drafter.propose(
      state.drafter,
      state.tokens,
      state.length,
      sampling,
      draw.stream_keys(state.keys, state.stats.rounds, draw.Stream.DRAFT),
    )
    root = jnp.arange(state.tokens.shape[1])[None, :] == state.length - 1
    return state.replace(
      # The next draft hangs on this one's last token, so that none is skipped.
      tokens=jnp.where(root, draft.tokens[:, -1:], state.tokens),
      drafter=drafter_state,
      stats=state.stats.replace(rounds=state.stats.rounds + 1),
    )

  def one_score(params, drafter, state):
    at = state.length[:, None] - 1 + jnp.arange(size, dtype=jnp.int32)[None, :]
    out = transformer.apply(
      {'params': params},
      jnp.take_along_axis(state.tokens, at, axis=1),
      at,
      state.cache,
    )
    change = (out.logits[:, -1:, 0] > out.logits[:, -1:, 1]).astype(jnp.int32)
    return state.replace(tokens=state.tokens ^ change, cache=out.cache)

  def repeat(step):
    return jax.jit(
      lambda params, drafter, state: jax.lax.fori_loop(
        0, _ROUNDS, lambda _, s: step(params, drafter, s), state
      ),
      donate_argnums=2,
    )

  loops = {
    'round_ms': repeat(one_round),
    'draft_ms': repeat(one_draft),
    'score_ms': repeat(one_score),
  }
  times: dict[str, list[float]] = {name: [] for name in loops}
  for turn in range(repeats + 1):
    for name, run in loops.items():
      state = jax.block_until_ready(start(params, drafter))
      began = time.perf_counter()
      jax.block_until_ready(run(params, drafter, state))
      if turn:  # the first one compiles
        times[name].append(1e3 * (time.perf_counter() - began) / _ROUNDS)
  found = {name: statistics.median(values) for name, values in times.items()}
  found['overhead'] = found['round_ms'] / (
    found['draft_ms'] + found['score_ms']
  )
  return {'draft_len': drafter.tree.depth} | found
