"""Measured acceptance of first tokens, and its upper bound."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from specsamp import verification
from specsamp.conformance.drafters import Recorder, draft_of
from specsamp.decoding.request import Request
from specsamp.drafting.draft import Draft
from specsamp.evaluation import likelihood, optimal_acceptance
from specsamp.evaluation.methods import Label, Method
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import probabilities

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
    Recorder(method.drafter),
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
    position_r = np.zeros(_ROUNDS, np.int32)
    position_r[: len(active)] = [at.length[row] - 1 for at, _ in active]
    p_rv = likelihood.pass_over(
      target,
      _probs,
      fetched.tokens[row, : fetched.length[row]],
      position_r,
      sampling.broadcast(_ROUNDS),
    )
    bounds += [
      _best(p_v, draft, row)
      for p_v, (_, draft) in zip(p_rv, active, strict=False)
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


def _probs(hidden_td, logits_of, tokens_t, position_r, sampling):
  """Returns p [R, V] after these positions of a sequence."""
  del tokens_t
  return probabilities(logits_of(hidden_td[position_r]), sampling)
