"""Measured acceptance of first tokens, and its upper bound."""

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
from specsamp.evaluation.methods import Label, Method
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams, probabilities
from specsamp.sharding import mesh as meshes
from specsamp.sharding.rules import DATA

_ROUNDS = 32  # upper bound on the rounds of a prompt


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound(Label):
  """Acceptance of the first token of a method's drafts.

  Attributes:
    accepted: share of the rounds that accepted a token.
    at_most: mean of alpha*, the largest acceptance of any lossless rule for the
      same candidates and distributions, see `optimal_acceptance`.
    rounds: number of rounds.
  """

  accepted: float
  at_most: float
  rounds: int


def is_bounded(method: Method) -> bool:
  """Returns True if the bound holds for the method and is informative.

  It does not hold for lossy rules and for races that the drafter knows. For
  greedy texts it equals the acceptance.
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
  """Decodes by a method, and bounds the first step of each round.

  Args:
    target: the target.
    method: a method that `is_bounded`.
    prompts: token ids of each prompt, decoded as one batch.
    max_new_tokens: upper bound on the tokens of each completion.
    seed: seed of the first prompt.
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
  fetched, drafts = request.fetch(state), []
  while not fetched.done.all() and len(drafts) < _ROUNDS:
    state = request.decode(state, 1)
    drafts.append((fetched, draft_of(request, state)))
    fetched = request.fetch(state)
  bounds = []
  for row in range(len(prompts)):
    active = [(at, draft) for at, draft in drafts if not at.done[row]]
    p_rv = _probs_after(
      target,
      fetched.tokens[row, : fetched.length[row]],
      [at.length[row] - 1 for at, _ in active],
      sampling,
    )
    bounds += [
      _best(p_v, draft, row)
      for p_v, (_, draft) in zip(p_rv, active, strict=True)
    ]
  rounds = int(fetched.stats.rounds.sum())
  accepted = fetched.stats.num_accepted_per_pos[:, 0].sum()
  return Bound(
    **vars(method.label),
    accepted=float(accepted / rounds),
    at_most=float(np.mean(bounds)),
    rounds=rounds,
  )


def _best(p_v: np.ndarray, draft: Draft, row: int) -> float:
  """Returns alpha* of the children of the root."""
  children = list(draft.tree.children(0))
  drafted = draft.tokens[row, children][draft.valid[row, children]]
  if draft.law == 'deterministic':  # there may be no q
    return float(p_v[np.unique(drafted)].sum())
  return optimal_acceptance.best_acceptance(
    p_v, draft.q[row, 0], draft.law, len(drafted)
  )


def _probs_after(
  target: LanguageModel,
  tokens: np.ndarray,
  positions: Sequence[int],
  sampling: SamplingParams,
) -> np.ndarray:
  """Returns p [R, V] after these positions of a sequence, in one pass."""
  _, size = slots(target, 1, len(tokens))
  position_r = np.zeros(_ROUNDS, np.int32)
  position_r[: len(positions)] = positions
  with meshes.use(target.mesh):
    p_rv = _compiled()(
      target.transformer,
      target.params,
      np.pad(tokens, (0, size - len(tokens))).astype(np.int32),
      position_r,
      sampling.broadcast(_ROUNDS),
      # Rows fill the shards of a batch.
      target.mesh.shape[DATA] if target.mesh else 1,
    )
  return meshes.fetch(p_rv)[: len(positions)]


@functools.cache
def _compiled():
  return jax.jit(_probs, static_argnums=(0, 5))


def _probs(transformer, params, tokens_t, position_r, sampling, rows):
  variables = {'params': params}
  fill = lambda x: jnp.broadcast_to(x, (rows, *x.shape))
  hidden_td = transformer.apply(variables, fill(tokens_t)).hidden[0]
  hidden_rd = jnp.take(hidden_td, position_r, axis=0)
  logits_brv = transformer.apply(variables, fill(hidden_rd), method='logits')
  return probabilities(logits_brv[0], sampling)
