"""What a round costs, and what its parts cost by themselves."""

import itertools
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.decoding import scoring
from specsamp.decoding.request import Request, slots
from specsamp.drafting import model_drafter
from specsamp.drafting.draft import TokenTree, Verdict
from specsamp.drafting.drafter import Drafter, Scored
from specsamp.evaluation import runner
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import distributed
from specsamp.sharding import mesh as meshes
from specsamp.verification.token import TokenVerifier
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
  All start at the end of the same prompt, batch size 1; the rounds are those
  of `generate`, in its own program.

  Args:
    target: the target.
    drafter: what drafts, in every round and nothing beside; what a round of
      another costs depends on its text.
    verifier: the rule of the round.
    samplings: of target and draft, scalars.
    prompt: token ids.
    max_new_tokens: sizes the caches as `generate` would.
    repeats: how often each loop is timed.

  Returns:
    For each sampling draft_len, branching, round_ms, draft_ms (all levels, and
    what the drafter makes of the verdict), score_ms (the pass over all nodes),
    both_ms (one after the other in one loop), and the round over its parts:
    `overhead` over draft_ms + score_ms, `verification` over both_ms (see
    `medians`). Where a processor's cache holds one model but not two, the parts
    are faster alone, which is no cost of verifying.
  """
  transformer = target.transformer
  node_n = jnp.arange(drafter.tree.size, dtype=jnp.int32)
  width = max(len(drafter.taps), 1) * transformer.config.width
  # Room for the rounds, in the program of a budget of `max_new_tokens`.
  _, text_slots = slots(target, len(prompt), len(prompt) + max_new_tokens)
  jobs = [
    Request.make(
      target,
      [prompt],
      drafter,
      verifier,
      sampling,
      max_new_tokens=text_slots - len(prompt),
      seed=0,
      stop_tokens=(),
      tree_attention=True,
    )
    for sampling in samplings
  ]

  def one_draft(params, drafter, sampling, state):
    draft, drafter_state = drafter.propose(
      state.drafter,
      state.tokens,
      state.length,
      sampling,
      # Other bits every time, as in a text that grows.
      jax.vmap(jax.random.fold_in)(state.keys, state.stats.rounds),
    )
    # What a drafter makes of a verdict is part of drafting. Any will do that
    # is not known to the compiler.
    node_b = draft.tokens[:, -1] % draft.tree.size
    verdict = Verdict(
      node=node_b,
      num_accepted=jnp.asarray(draft.tree.depths, jnp.int32)[node_b],
      path=jnp.asarray(draft.tree.paths)[node_b],
      next_token=draft.tokens[:, -1],
    )
    hidden_bnd = jnp.broadcast_to(
      1e-3 * draft.tokens[:, :, None].astype(transformer.config.dtype),
      (*draft.tokens.shape, width),
    )
    drafter_state = drafter.commit(
      drafter_state,
      draft,
      verdict,
      state.length - 1,
      Scored(hidden_bnd, extra_logits=None),
    )
    return state.replace(
      # The next draft hangs on this one's last token, so that none is skipped;
      # the compiler does not know that none is below 0.
      tokens=state.tokens + jnp.minimum(draft.tokens[:, -1:], 0),
      drafter=drafter_state,
      stats=state.stats.replace(rounds=state.stats.rounds + 1),
    )

  def one_score(params, drafter, sampling, state):
    root_b = state.length - 1
    end = state.tokens.shape[1] - 1
    at_n = jnp.minimum(node_n[None, :] + root_b[:, None], end)
    tokens = jnp.take_along_axis(state.tokens, at_n, axis=1)
    out = scoring.tree_attention(
      transformer, params, drafter.tree, tokens, root_b, state.cache
    )
    # The next pass hangs on this one's last logits.
    last = (out.logits[:, -1, :1] > 0).astype(jnp.int32)
    return state.replace(
      tokens=jnp.maximum(state.tokens - last, 0), cache=out.cache
    )

  def one_of_both(params, drafter, sampling, state):
    state = one_draft(params, drafter, sampling, state)
    return one_score(params, drafter, sampling, state)

  def repeat(step):
    loop = jax.jit(
      lambda params, drafter, sampling, state: jax.lax.fori_loop(
        0, _ROUNDS, lambda _, s: step(params, drafter, sampling, s), state
      ),
      donate_argnums=3,
    )
    return lambda job, state: loop(
      target.params, drafter, job.inputs.sampling, state
    )

  loops = {
    'round_ms': lambda job, state: job.decode(state, _ROUNDS),
    'draft_ms': repeat(one_draft),
    'score_ms': repeat(one_score),
    'both_ms': repeat(one_of_both),
  }
  times = [{name: [] for name in loops} for _ in samplings]
  turns = itertools.product(
    range(repeats + 1), zip(jobs, times, strict=True), loops.items()
  )
  with meshes.use(target.mesh):
    for turn, (job, into), (name, run) in turns:
      state = jax.block_until_ready(job.prefill())
      began = time.perf_counter()
      state = jax.block_until_ready(run(job, state))
      taken = time.perf_counter() - began
      # A text that comes to its end takes fewer rounds.
      rounds = int(meshes.fetch(state.stats.rounds)[0])
      rounds = rounds if name == 'round_ms' else _ROUNDS
      if turn:  # the first one compiles
        into[name].append(1e3 * taken / rounds)
  name = runner.tree_name(drafter.tree)
  rows = []
  for into in times:
    row = distributed.of_first(medians(into))
    rows.append({'draft_len': drafter.tree.depth, 'branching': name} | row)
  return rows


def medians(times: dict[str, list[float]]) -> dict[str, float]:
  """Of the times, and of the ratios of each turn, as `measure` returns them.

  A machine that changes its speed between turns moves each median of times on
  its own, so that their ratio need not be one that any turn has seen.

  Args:
    times: milliseconds of every turn, [repeats] each: round_ms, draft_ms,
      score_ms and both_ms.
  """
  round_ms, draft_ms, score_ms, both_ms = (
    np.asarray(times[name])
    for name in ('round_ms', 'draft_ms', 'score_ms', 'both_ms')
  )
  ratios = {
    'overhead': round_ms / (draft_ms + score_ms),
    'verification': round_ms / both_ms,
  }
  return {
    name: float(np.median(values)) for name, values in (times | ratios).items()
  }


def pass_times(
  target: LanguageModel,
  sizes: Sequence[int],
  prompt: list[int],
  max_new_tokens: int,
  repeats: int = 9,
) -> dict[int, float]:
  """Milliseconds of a pass of the target over trees of these sizes.

  Each in a compiled loop of its own, the loops taking turns; medians.

  Args:
    target: the target.
    sizes: nodes, the root included.
    prompt: token ids.
    max_new_tokens: sizes the cache as `generate` would.
    repeats: how often each loop is timed.
  """
  _, text_slots = slots(target, len(prompt), len(prompt) + max_new_tokens)
  num_slots = text_slots + max(sizes)
  tokens = jnp.asarray([prompt], jnp.int32)
  root_b = jnp.asarray([len(prompt) - 1], jnp.int32)

  def passes(params, cache, tree):
    def step(_, carry):
      tokens, cache = carry
      out = scoring.tree_attention(
        target.transformer, params, tree, tokens, root_b, cache
      )
      last = (out.logits[:, -1, :1] > 0).astype(jnp.int32)
      return jnp.maximum(tokens - last, 0), out.cache

    tokens = jnp.full((1, tree.size), 5, jnp.int32)
    return jax.lax.fori_loop(0, _ROUNDS, step, (tokens, cache))

  run = jax.jit(passes, static_argnums=2, donate_argnums=1)
  start = jax.jit(
    lambda params: (
      target.transformer.apply(
        {'params': params},
        tokens,
        cache=target.transformer.init_cache(params, 1, num_slots),
      ).cache
    )
  )
  times = {size: [] for size in sizes}
  with meshes.use(target.mesh):
    for turn, (size, into) in itertools.product(
      range(repeats + 1), times.items()
    ):
      # A root and its children: any tree of this size costs the same.
      tree = TokenTree((-1, *[0] * (size - 1)))
      cache = jax.block_until_ready(start(target.params))
      began = time.perf_counter()
      jax.block_until_ready(run(target.params, cache, tree))
      if turn:
        into.append(1e3 * (time.perf_counter() - began) / _ROUNDS)
  found = {size: float(np.median(values)) for size, values in times.items()}
  return distributed.of_first(found)


def level_time(
  target: LanguageModel,
  draft: LanguageModel,
  sampling: SamplingParams,
  prompt: list[int],
  max_new_tokens: int,
) -> float:
  """Milliseconds of a level of the draft: a fourth of a chain of four."""
  drafter = model_drafter(draft, 4)
  (found,) = measure(
    target, drafter, TokenVerifier(), [sampling], prompt, max_new_tokens
  )
  return found['draft_ms'] / 4
