"""Times of a round and of its parts."""

import dataclasses
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.decoding import scoring
from specsamp.decoding.arguments import slots
from specsamp.decoding.loop import Inputs
from specsamp.decoding.request import Request
from specsamp.decoding.state import DecodeState
from specsamp.drafting import NoDrafter
from specsamp.drafting.draft import TokenTree, Verdict
from specsamp.drafting.drafter import Drafter, Scored
from specsamp.evaluation.methods import Json, sampling_name, tree_name
from specsamp.evaluation.metrics import Row
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import mesh as meshes
from specsamp.utils import distributed, progress
from specsamp.verification.token import TokenVerifier
from specsamp.verification.verifier import Verifier

ROUNDS = 20  # rounds of one compiled loop


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundCost:
  """Cost of a round of a draft, and of its parts.

  Attributes:
    round_ms: milliseconds of a round.
    draft_ms: milliseconds of all levels of the draft, and of the drafter's
      update after the verdict.
    score_ms: milliseconds of the target's pass over all nodes.
    both_ms: milliseconds of draft and pass, one after the other in one loop.
    overhead: `round_ms` over `draft_ms + score_ms`.
    verification: `round_ms` over `both_ms`. If a processor's cache holds one
      model but not two, the parts are faster alone; verification does not cause
      that cost.
    temperature, top_p, top_k: sampling of target and draft.
    tree: tree of the draft.
    row: figures of the method while decoding, or None.
    ideal_speedup: speedup if a round cost only its parts, or None.
  """

  round_ms: float
  draft_ms: float
  score_ms: float
  both_ms: float
  overhead: float
  verification: float
  temperature: float
  top_p: float
  tree: TokenTree
  top_k: int = 0
  row: Row | None = None
  ideal_speedup: float | None = None

  @property
  def sampling_name(self) -> str:
    return sampling_name(self.temperature, self.top_p, self.top_k)

  @property
  def draft_name(self) -> str:
    return tree_name(self.tree)

  def plain(self) -> dict[str, Json]:
    """Returns values of JSON: those of the row, then the times."""
    values = self.row.plain() if self.row else {}
    if self.row:
      values['decode_round_ms'] = self.row.round_ms
    times = {k: v for k, v in vars(self).items() if k not in ('tree', 'row')}
    shape = {'draft_len': self.tree.depth, 'branching': self.draft_name}
    return values | times | shape


def measure(
  target: LanguageModel,
  drafter: Drafter,
  verifier: Verifier,
  samplings: Sequence[SamplingParams],
  prompt: list[int],
  max_new_tokens: int,
  repeats: int = 9,
) -> list[RoundCost]:
  """Times a round, its draft and its target pass, for each sampling.

  Each is timed in a compiled loop, and the loops are interleaved. All start at
  the end of the same prompt with batch size 1. The rounds run in the program of
  `generate`.

  Args:
    target: the target.
    drafter: a drafter whose rounds all cost the same, whatever the text.
    verifier: verifier of the round.
    samplings: sampling of target and draft, scalars.
    prompt: token ids.
    max_new_tokens: sizes the caches, as in `generate`.
    repeats: number of times that each loop is timed.
  """
  # Enough slots for the rounds, in the program of a budget of `max_new_tokens`.
  text_slots = slots(target, len(prompt) + max_new_tokens)
  requests = [
    Request.make(
      target,
      [prompt],
      drafter,
      verifier,
      sampling=sampling,
      max_new_tokens=text_slots - len(prompt),
      stop_tokens=(),
    )
    for sampling in samplings
  ]
  transformer = target.transformer
  draft = lambda inputs, state: _draft(transformer, inputs, state)
  score = lambda inputs, state: _score(transformer, inputs, state)
  both = lambda inputs, state: score(inputs, draft(inputs, state))
  loops = [_decode, *map(_repeat, (draft, score, both))]
  times = in_turns(
    [_timed(request, run) for request in requests for run in loops], repeats
  )
  return [
    RoundCost(
      **medians(*times[i * len(loops) : (i + 1) * len(loops)]),
      temperature=float(sampling.temperature),
      top_p=float(sampling.top_p),
      top_k=int(sampling.top_k),
      tree=drafter.tree,
    )
    for i, sampling in enumerate(samplings)
  ]


def medians(round_ms, draft_ms, score_ms, both_ms) -> dict[str, float]:
  """Returns the medians of times, and of their ratios in each turn.

  A machine that changes its speed between turns shifts the medians of times
  independently, so that no turn may have had the ratio of the medians. There is
  a time per turn; the result has the first six fields of `RoundCost`.
  """
  times = dict(
    round_ms=round_ms, draft_ms=draft_ms, score_ms=score_ms, both_ms=both_ms
  )
  round_ms, draft_ms, score_ms, both_ms = map(np.asarray, times.values())
  times['overhead'] = round_ms / (draft_ms + score_ms)
  times['verification'] = round_ms / both_ms
  return {name: float(np.median(values)) for name, values in times.items()}


def level_time(
  target: LanguageModel,
  drafter: Drafter,
  sampling: SamplingParams,
  prompt: list[int],
  max_new_tokens: int,
) -> float:
  """Returns the milliseconds of one level of a chain's draft; see `measure`."""
  (cost,) = measure(
    target, drafter, TokenVerifier(), [sampling], prompt, max_new_tokens
  )
  return cost.draft_ms / drafter.tree.depth


def pass_times(
  target: LanguageModel,
  sizes: Sequence[int],
  prompt: list[int],
  max_new_tokens: int,
  repeats: int = 9,
) -> dict[int, float]:
  """Returns the median milliseconds of target passes, by their sizes.

  A size is a number of nodes, the root included. See `measure` for the other
  arguments; the loops are interleaved.
  """
  score = _repeat(
    lambda inputs, state: _score(target.transformer, inputs, state)
  )
  requests = [
    Request.make(
      target,
      [prompt],
      # A root and its children: all trees of a size cost the same.
      NoDrafter(TokenTree((-1, *[0] * (size - 1)))),
      'multi_candidate',
      max_new_tokens=max_new_tokens,
      stop_tokens=(),
    )
    for size in sizes
  ]
  # The caches are equally large, so that only the nodes differ in cost.
  capacity = max(request.capacity for request in requests)
  steps = [
    _timed(dataclasses.replace(request, capacity=capacity), score)
    for request in requests
  ]
  medians = map(np.median, in_turns(steps, repeats))
  return dict(zip(sizes, map(float, medians), strict=True))


def decoding(
  target: LanguageModel, prompt: list[int], max_new_tokens: int
) -> Callable[[], float]:
  """Returns a step for `in_turns`: ms per token of plain greedy decoding."""
  request = Request.make(
    target,
    [prompt],
    sampling=SamplingParams(temperature=0.0),
    max_new_tokens=max_new_tokens,
    stop_tokens=(),
  )
  return _timed(request, _decode)


def in_turns(
  steps: Sequence[Callable[[], float]], repeats: int
) -> list[list[float]]:
  """Runs the steps in turn, and returns the milliseconds that each measured.

  Each step runs once before its times count, because the first run compiles.
  """
  for step in progress.bar('compiling loops', steps, unit='loop', stays=False):
    step()
  turns = progress.bar('timing loops', range(repeats), unit='turn', stays=False)
  times = [[step() for step in steps] for _ in turns]
  return distributed.of_first(list(map(list, zip(*times, strict=True))))


def _timed(request: Request, run) -> Callable[[], float]:
  """Returns a step that times a round of `run(request, state)`."""

  def step() -> float:
    state = jax.block_until_ready(request.prefill())
    with meshes.use(request.model.mesh):
      began = time.perf_counter()
      state = jax.block_until_ready(run(request, state))
      taken = time.perf_counter() - began
    # A text that reaches its end takes fewer rounds than requested.
    rounds = int(meshes.fetch(state.stats.rounds)[0])
    return 1e3 * taken / (rounds or ROUNDS)

  return step


def _decode(request: Request, state: DecodeState) -> DecodeState:
  return request.decode(state, ROUNDS)


def _repeat(step: Callable[[Inputs, DecodeState], DecodeState]):
  """Returns (request, state) -> state after a loop of steps; donates state."""
  loop = jax.jit(
    lambda inputs, state: jax.lax.fori_loop(
      0, ROUNDS, lambda _, state: step(inputs, state), state
    ),
    donate_argnums=1,
  )
  return lambda request, state: loop(request.inputs, state)


def _draft(transformer: Transformer, inputs: Inputs, state: DecodeState):
  """Drafts, and updates the drafter with a verdict."""
  drafter = inputs.drafter
  draft, drafter_state = drafter.propose(
    state.drafter,
    state.tokens,
    state.length,
    inputs.sampling,
    # New random bits each time, as in a text that grows.
    jax.vmap(jax.random.fold_in)(state.keys, state.stats.rounds),
  )
  # Any verdict that the compiler does not know will do.
  node_b = draft.tokens[:, -1] % draft.tree.size
  verdict = Verdict(
    node=node_b,
    num_accepted=jnp.asarray(draft.tree.depths, jnp.int32)[node_b],
    path=jnp.asarray(draft.tree.paths)[node_b],
    next_token=draft.tokens[:, -1],
  )
  width = max(len(drafter.taps), 1) * transformer.config.width
  features_bnd = jnp.broadcast_to(
    1e-3 * draft.tokens[:, :, None].astype(transformer.config.dtype),
    (*draft.tokens.shape, width),
  )
  drafter_state = drafter.commit(
    drafter_state,
    draft,
    verdict,
    state.length - 1,
    Scored(features_bnd, extra_logits=None, active=~state.done),
  )
  return state.replace(
    # The next draft depends on the last token of this one, so that the compiler
    # skips no draft; it does not know that tokens are never negative.
    tokens=state.tokens + jnp.minimum(draft.tokens[:, -1:], 0),
    drafter=drafter_state,
    stats=state.stats.replace(rounds=state.stats.rounds + 1),
  )


def _score(transformer: Transformer, inputs: Inputs, state: DecodeState):
  """Runs the target's pass over the nodes of a draft."""
  tree = inputs.drafter.tree
  root_b = state.length - 1
  end = state.tokens.shape[1] - 1
  node_n = jnp.arange(tree.size, dtype=jnp.int32)
  at_n = jnp.minimum(node_n[None, :] + root_b[:, None], end)
  tokens = jnp.take_along_axis(state.tokens, at_n, axis=1)
  out = scoring.tree_attention(
    transformer, inputs.params, tree, tokens, root_b, state.cache
  )
  # The next pass depends on the last logits of this one.
  last = (out.logits[:, -1, :1] > 0).astype(jnp.int32)
  return state.replace(
    tokens=jnp.maximum(state.tokens - last, 0), cache=out.cache
  )
