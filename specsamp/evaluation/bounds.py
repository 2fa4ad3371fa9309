"""How often a first token is accepted, and how often it could be at most."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specsamp import verification
from specsamp.conformance.recorder import Recorder, draft_of
from specsamp.decoding.arguments import slots
from specsamp.decoding.request import Request
from specsamp.drafting.draft import Draft
from specsamp.evaluation import optimal_acceptance
from specsamp.evaluation.methods import Json, Label, Method
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams, probabilities
from specsamp.sharding import mesh as meshes
from specsamp.sharding.rules import DATA

_ROUNDS = 32  # of each prompt, at most


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound(Label):
  """Of a method, in rounds of its own.

  Attributes:
    accepted: share of the rounds that accepted a token.
    at_most: the most that any lossless rule accepts of the same candidates
      under the same p, the mean of alpha* (see `optimal_acceptance`).
    rounds: how many.
  """

  accepted: float
  at_most: float
  rounds: int

  def plain(self) -> dict[str, Json]:
    own = ('accepted', 'at_most', 'rounds')
    return super().plain() | {name: getattr(self, name) for name in own}


def is_bounded(method: Method) -> bool:
  """Whether the bound holds of it, and is more than its own figure.

  Not of a rule that is not lossless, nor of races that the drafter knows. Of a
  greedy text it is what is accepted.
  """
  if method.drafter is None or not method.temperature:
    return False
  verifier = verification.make(method.verifier)
  return verifier.lossless and not verification.is_coupled(verifier)


def measure(
  target: LanguageModel,
  method: Method,
  prompts: Sequence[list[int]],
  max_new_tokens: int,
  seed: int,
) -> Bound:
  """Decodes by a method, and bounds the first step of each of its rounds.

  Args:
    target: the target.
    method: one that `is_bounded`.
    prompts: token ids of each, decoded as one batch.
    max_new_tokens: of each text.
    seed: of the first prompt.
  """
  sampling = method.sampling_params
  request = Request.make(
    target,
    prompts,
    Recorder.of(method.drafter),
    method.verifier,
    sampling=sampling,
    max_new_tokens=max_new_tokens,
    seed=seed,
    tree_attention=method.tree_attention,
  )
  state = request.prefill()
  seen, drafts = request.fetch(state), []
  while not seen.done.all() and len(drafts) < _ROUNDS:
    state = request.decode(state, 1)
    drafts.append((seen, draft_of(request, state)))
    seen = request.fetch(state)
  found = []
  for row in range(len(prompts)):
    own = [(at, draft) for at, draft in drafts if not at.done[row]]
    p_rv = _after(
      target,
      seen.tokens[row, : seen.length[row]],
      [at.length[row] - 1 for at, _ in own],
      sampling,
    )
    found += [
      _best(p_v, draft, row) for p_v, (_, draft) in zip(p_rv, own, strict=True)
    ]
  rounds = int(seen.stats.rounds.sum())
  accepted = seen.stats.num_accepted_per_pos[:, 0].sum()
  return Bound(
    **vars(method.label),
    accepted=float(accepted / rounds),
    at_most=float(np.mean(found)),
    rounds=rounds,
  )


def _best(p_v: np.ndarray, draft: Draft, row: int) -> float:
  """alpha* of the children of the root."""
  children = list(draft.tree.children(0))
  drafted = draft.tokens[row, children][draft.valid[row, children]]
  if draft.law == 'deterministic':  # of which there may be no q
    return float(p_v[np.unique(drafted)].sum())
  return optimal_acceptance.best_acceptance(
    p_v, draft.q[row, 0], draft.law, len(drafted)
  )


def _after(
  target: LanguageModel,
  text: np.ndarray,
  places: Sequence[int],
  sampling: SamplingParams,
) -> np.ndarray:
  """p [R, V] after the tokens at these places of a text, in one pass."""
  _, size = slots(target, 1, len(text))
  at_r = np.zeros(_ROUNDS, np.int32)
  at_r[: len(places)] = places
  with meshes.use(target.mesh):
    p_rv = _compiled()(
      target.transformer,
      target.params,
      np.pad(text, (0, size - len(text))).astype(np.int32),
      at_r,
      sampling.broadcast(_ROUNDS),
      # Rows fill the shards of a batch.
      target.mesh.shape[DATA] if target.mesh else 1,
    )
  return meshes.fetch(p_rv)[: len(places)]


@functools.cache
def _compiled():
  return jax.jit(_probs, static_argnums=(0, 5))


def _probs(transformer, params, tokens_t, at_r, sampling, rows):
  variables = {'params': params}
  fill = lambda x: jnp.broadcast_to(x, (rows, *x.shape))
  hidden_td = transformer.apply(variables, fill(tokens_t)).hidden[0]
  hidden_rd = jnp.take(hidden_td, at_r, axis=0)
  logits_brv = transformer.apply(variables, fill(hidden_rd), method='logits')
  return probabilities(logits_brv[0], sampling)
