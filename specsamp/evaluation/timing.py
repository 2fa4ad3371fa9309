"""What a round costs, and what its parts cost by themselves."""

import dataclasses
import itertools
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

ROUNDS = 20  # in one compiled loop


@dataclasses.dataclass(frozen=True, kw_only=True)
class Times:
  """Medians over turns, and of the ratios of each turn.

  A machine that changes its speed between turns moves each median of times on
  its own, so that their ratio need not be one that any turn has seen.

  Attributes:
    round_ms: milliseconds of a round.
    draft_ms: of all levels of the draft, and of what the drafter makes of the
      verdict.
    score_ms: of the target's pass over all nodes.
    both_ms: of one after the other, in one loop.
    overhead: the round over draft_ms + score_ms.
    verification: the round over both_ms. Where a processor's cache holds one
      model but not two, the parts are faster alone, which is no cost of
      verifying.
  """

  round_ms: float
  draft_ms: float
  score_ms: float
  both_ms: float
  overhead: float
  verification: float

  @classmethod
  def of(cls, round_ms, draft_ms, score_ms, both_ms) -> 'Times':
    """Of the milliseconds of every turn, a list each."""
    round_ms, draft_ms, score_ms, both_ms = (
      np.asarray(x) for x in (round_ms, draft_ms, score_ms, both_ms)
    )
    median = lambda values: float(np.median(values))
    return cls(
      round_ms=median(round_ms),
      draft_ms=median(draft_ms),
      score_ms=median(score_ms),
      both_ms=median(both_ms),
      overhead=median(round_ms / (draft_ms + score_ms)),
      verification=median(round_ms / both_ms),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundCost(Times):
  """What a round of a draft costs, and of its parts.

  Attributes:
    temperature: of target and draft.
    top_p: of target and draft.
    top_k: likewise.
    tree: of the draft.
    row: what was measured of the method while decoding.
    ideal_speedup: if a round cost no more than its parts.
  """

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
    """Plain values, for JSON: the row's, then what was timed."""
    found = self.row.plain() if self.row else {}
    if self.row:
      found['decode_round_ms'] = self.row.round_ms
    own = {k: v for k, v in vars(self).items() if k not in ('tree', 'row')}
    shape = {'draft_len': self.tree.depth, 'branching': self.draft_name}
    return found | own | shape


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

  Each is timed in a compiled loop of its own, the loops taking turns. All start
  at the end of the same prompt, batch size 1; the rounds are those of
  `generate`, in its own program.

  Args:
    target: the target.
    drafter: what drafts, in every round and nothing beside; what a round of
      another costs depends on its text.
    verifier: the rule of the round.
    samplings: of target and draft, scalars.
    prompt: token ids.
    max_new_tokens: sizes the caches as `generate` would.
    repeats: how often each loop is timed.
  """
  # Room for the rounds, in the program of a budget of `max_new_tokens`.
  _, text_slots = slots(target, len(prompt), len(prompt) + max_new_tokens)
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
  loops = [
    lambda request, state: request.decode(state, ROUNDS),
    *map(_repeat, (draft, score, both)),
  ]
  times = in_turns(
    [_timed(request, run) for request in requests for run in loops], repeats
  )
  return [
    RoundCost(
      **vars(Times.of(*times[i * len(loops) : (i + 1) * len(loops)])),
      temperature=float(sampling.temperature),
      top_p=float(sampling.top_p),
      top_k=int(sampling.top_k),
      tree=drafter.tree,
    )
    for i, sampling in enumerate(samplings)
  ]


def pass_times(
  target: LanguageModel,
  sizes: Sequence[int],
  prompt: list[int],
  max_new_tokens: int,
  repeats: int = 9,
) -> dict[int, float]:
  """Milliseconds of a pass of the target over trees of these sizes; medians.

  Args:
    target: the target.
    sizes: nodes, the root included.
    prompt: token ids.
    max_new_tokens: sizes the cache as `generate` would.
    repeats: how often each loop is timed, the loops taking turns.
  """
  # A root and its children: any tree of this size costs the same.
  trees = [TokenTree((-1, *[0] * (size - 1))) for size in sizes]
  score = _repeat(
    lambda inputs, state: _score(target.transformer, inputs, state)
  )
  runs = [
    (
      Request.make(
        target,
        [prompt],
        NoDrafter(tree),
        'multi_candidate',
        max_new_tokens=max_new_tokens,
        stop_tokens=(),
      ),
      score,
    )
    for tree in trees
  ]
  # The caches of all are as large: a size's cost is that of its nodes.
  most = max(request.capacity for request, _ in runs)
  runs = [
    (dataclasses.replace(request, capacity=most), run) for request, run in runs
  ]
  times = in_turns([_timed(request, run) for request, run in runs], repeats)
  return {
    size: float(np.median(each))
    for size, each in zip(sizes, times, strict=True)
  }


def decoding(
  target: LanguageModel, prompt: list[int], max_new_tokens: int
) -> Callable[[], float]:
  """For `in_turns`: milliseconds a token of plain greedy decoding.

  Args:
    target: the target.
    prompt: token ids.
    max_new_tokens: sizes the cache as `generate` would.
  """
  request = Request.make(
    target,
    [prompt],
    sampling=SamplingParams(temperature=0.0),
    max_new_tokens=max_new_tokens,
    stop_tokens=(),
  )
  return _timed(request, lambda request, state: request.decode(state, ROUNDS))


def in_turns(
  steps: Sequence[Callable[[], float]], repeats: int
) -> list[list[float]]:
  """The milliseconds that each step returns, once every turn.

  Each runs once before its times count, for the first time it compiles.
  """
  times = [[] for _ in steps]
  for step in progress.bar('compiling loops', steps, unit='loop', stays=False):
    step()
  turns = list(itertools.product(range(repeats), range(len(steps))))
  for _, i in progress.bar('timing loops', turns, unit='loop', stays=False):
    times[i].append(steps[i]())
  return distributed.of_first(times)


def _timed(request: Request, run) -> Callable[[], float]:
  """Milliseconds a round of `run(request, state)`."""

  def step() -> float:
    state = jax.block_until_ready(request.prefill())
    with meshes.use(request.model.mesh):
      began = time.perf_counter()
      state = jax.block_until_ready(run(request, state))
      taken = time.perf_counter() - began
    # A text that comes to its end takes fewer rounds than were asked for.
    rounds = int(meshes.fetch(state.stats.rounds)[0])
    return 1e3 * taken / (rounds or ROUNDS)

  return step


def _repeat(step: Callable[[Inputs, DecodeState], DecodeState]):
  """(request, state) -> state after a loop of steps, which consumes it."""
  loop = jax.jit(
    lambda inputs, state: jax.lax.fori_loop(
      0, ROUNDS, lambda _, state: step(inputs, state), state
    ),
    donate_argnums=1,
  )
  return lambda request, state: loop(request.inputs, state)


def _draft(transformer: Transformer, inputs: Inputs, state: DecodeState):
  """A draft, and what the drafter makes of a verdict."""
  drafter = inputs.drafter
  draft, drafter_state = drafter.propose(
    state.drafter,
    state.tokens,
    state.length,
    inputs.sampling,
    # Other bits every time, as in a text that grows.
    jax.vmap(jax.random.fold_in)(state.keys, state.stats.rounds),
  )
  # Any verdict will do that is not known to the compiler.
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
    # The next draft depends on this one's last token, so that none is skipped;
    # the compiler does not know that none is below 0.
    tokens=state.tokens + jnp.minimum(draft.tokens[:, -1:], 0),
    drafter=drafter_state,
    stats=state.stats.replace(rounds=state.stats.rounds + 1),
  )


def _score(transformer: Transformer, inputs: Inputs, state: DecodeState):
  """The target's pass over as many nodes as a draft has."""
  tree = inputs.drafter.tree
  root_b = state.length - 1
  end = state.tokens.shape[1] - 1
  node_n = jnp.arange(tree.size, dtype=jnp.int32)
  at_n = jnp.minimum(node_n[None, :] + root_b[:, None], end)
  tokens = jnp.take_along_axis(state.tokens, at_n, axis=1)
  out = scoring.tree_attention(
    transformer, inputs.params, tree, tokens, root_b, state.cache
  )
  # The next pass depends on this one's last logits.
  last = (out.logits[:, -1, :1] > 0).astype(jnp.int32)
  return state.replace(
    tokens=jnp.maximum(state.tokens - last, 0), cache=out.cache
  )


def level_time(
  target: LanguageModel,
  drafter: Drafter,
  sampling: SamplingParams,
  prompt: list[int],
  max_new_tokens: int,
) -> float:
  """Milliseconds of a level of a chain's draft."""
  (cost,) = measure(
    target, drafter, TokenVerifier(), [sampling], prompt, max_new_tokens
  )
  return cost.draft_ms / drafter.tree.depth
