"""Measured acceptance of first tokens, and its upper bound for lossless rules.

Hu et al., arXiv 2502.18779: to move p onto the candidates is optimal transport,
whose value is a minimum cut over sets H of tokens ::

  alpha* = 1 + min_H [p(H) - Pr(all candidates are in H)].

For draws from q, with replacement or without, the best H is a prefix of the
tokens in ascending order of p / q. It limits how often any rule accepts the
first drafted token. The host computes it in float64.

`best_accepted_length` bounds whole trees by linear programming, which takes an
enumeration of all drafts.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from specsamp import verification
from specsamp.conformance.drafters import Recorder, draft_of
from specsamp.conformance.enumeration import Table, context, enumerate_drafts
from specsamp.decoding.request import Request
from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.evaluation import likelihood
from specsamp.evaluation.methods import Label, Method
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import probabilities

_ROUNDS = 32  # upper bound on the rounds of a prompt
# Grid of log t in `_not_all_inside`, where the trapezoid rule is exact to 1e-9.
_LOG_STEP = 0.4
_LOG_TIMES = np.arange(-12, 18, _LOG_STEP)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound(Label):
  """Acceptance of the first token of a method's drafts.

  Attributes:
    accepted: share of the rounds that accepted a token.
    at_most: mean of alpha*, the largest acceptance of any lossless rule for the
      same candidates and distributions.
    rounds: number of rounds.
  """

  accepted: float
  at_most: float
  rounds: int


def is_bounded(method: Method) -> bool:
  """Returns True if the bound holds for the method and is informative.

  The bound does not hold for lossy rules and for races that the drafter knows.
  In greedy decoding it equals the acceptance.
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
  """Decodes prompts as a batch, and bounds the first step of each round.

  `is_bounded` must be True for the method. Prompt i draws from `seed + i`.
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
  best = []
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
    for p_v, (_, draft) in zip(p_rv, active, strict=False):
      best.append(_best(p_v, draft, row))
  rounds = int(fetched.stats.rounds.sum())
  accepted = fetched.stats.num_accepted_per_pos[:, 0].sum()
  return Bound(
    **vars(method.label),
    accepted=float(accepted / rounds),
    at_most=float(np.mean(best)),
    rounds=rounds,
  )


def _best(p_v: np.ndarray, draft: Draft, row: int) -> float:
  """Returns alpha* of the children of the root."""
  children = list(draft.tree.children(0))
  drafted = draft.tokens[row, children][draft.valid[row, children]]
  if draft.law == 'deterministic':  # there may be no q
    return float(p_v[np.unique(drafted)].sum())
  return best_acceptance(p_v, draft.q[row, 0], draft.law, len(drafted))


def _probs(hidden_td, logits_of, tokens_t, position_r, sampling):
  """Returns p [R, V] after these positions of a sequence."""
  del tokens_t
  return probabilities(logits_of(hidden_td[position_r]), sampling)


def best_acceptance(
  p_v: np.ndarray, q_v: np.ndarray, law: Law, count: int
) -> float:
  """Returns alpha*, the largest chance to accept one of `count` candidates.

  Args:
    p_v: float [V], the target's distribution, normalized here.
    q_v: float [V], the draft's distribution, normalized here.
    law: how the candidates are chosen; the deterministic ones are the most
      probable tokens of q.
    count: number of candidates, at least 0. Without replacement it is at most
      the number of tokens of q.
  """
  if not count:
    return 0.0
  p_v, q_v = (np.asarray(x, np.float64) for x in (p_v, q_v))
  p_v, q_v = p_v / p_v.sum(), q_v / q_v.sum()
  if law in ('top_plus_one', 'deterministic'):
    top_v = np.zeros(q_v.shape, bool)
    num_top = count - (law == 'top_plus_one')
    top_v[np.argsort(-q_v, kind='stable')[:num_top]] = True
    rest_v = np.where(top_v | (law == 'deterministic'), 0, q_v)
    rest_v /= rest_v.sum() or 1
    accepted = np.where(top_v, p_v, np.minimum(p_v, rest_v)).sum()
    return float(min(accepted, 1))
  with np.errstate(divide='ignore', invalid='ignore'):
    ratio_v = np.where(p_v > 0, p_v / q_v, 0)
  order_v = np.argsort(ratio_v, kind='stable')
  p_v, q_v = p_v[order_v], q_v[order_v]
  # For each prefix H, the empty one included. Sums of the tokens outside start
  # from the other end, so that nothing cancels.
  outside = np.append(np.cumsum(q_v[::-1])[::-1], 0)
  inside = np.append(0, np.cumsum(q_v))
  if law == 'iid':  # 1 - q(H)^n = (1 - q(H)) (1 + q(H) + ..)
    terms = sum(inside**i for i in range(count))
  else:
    terms = _not_all_inside(q_v, min(count, np.count_nonzero(q_v)))
  cut = np.append(0, np.cumsum(p_v)) + outside * terms
  return float(min(cut.min(), 1))


def _not_all_inside(q_v: np.ndarray, count: int) -> np.ndarray:
  """Returns Pr(a draw without replacement is not in H) / (1 - q(H)), [V + 1].

  There is a value for every prefix H. Tokens that arrive at random times of
  rate q arrive in the order of such draws. One of n = `count` draws is not in H
  if fewer than n tokens of H arrive before the first one outside, whose time
  has rate 1 - q(H). The result is therefore ::

    sum_{k < n} integral exp(-t) e_k(exp(q t) - 1 of the tokens in H) dt,

  where e_k are elementary symmetric polynomials: prefix sums of prefix sums.
  The first two integrals are 1 and sum q / (1 - q). Later integrals are sums
  over log t in log space, because the remaining tokens may have any time scale.
  """
  terms = np.ones(len(q_v) + 1)
  if count < 2:
    return terms
  # A token of q = 1 leaves nothing to the others: then 1 - q(H) is 0 too.
  pairs_v = np.divide(q_v, 1 - q_v, where=q_v < 1, out=np.zeros_like(q_v))
  terms += np.append(0, np.cumsum(pairs_v))
  if count < 3:
    return terms
  for time in np.exp(_LOG_TIMES):
    with np.errstate(divide='ignore'):  # where q is 0
      odds_v = q_v * time + np.log(-np.expm1(-q_v * time))
    log_e = np.append(-np.inf, np.logaddexp.accumulate(odds_v))
    for _ in range(2, count):
      log_e = np.append(-np.inf, np.logaddexp.accumulate(odds_v + log_e[:-1]))
      terms += _LOG_STEP * time * np.exp(log_e - time)
  return terms


def best_accepted_length(table: Table, tree: TokenTree, law: Law) -> float:
  """Returns the largest mean accepted length of any lossless rule.

  Such a rule accepts a path s of the drafted tree and emits a token y after it
  that is not drafted there, and the target continues. Its mean accepted length
  is linear in P(draft, s, y), and so are its conditions: each draft has its
  probability, and the first `tree.depth` tokens follow the target's
  distribution. The rule may know p after tokens that were not drafted. The
  solver's tolerance is 1e-7.

  Args:
    table: p, q and the drafted candidates; see `enumerate_drafts`.
    tree: tree of the drafts, at least one token deep.
    law: how the candidates of a node are chosen.
  """
  # Every installation has it, because jax needs it. It is slow to import.
  from scipy import optimize, sparse

  drafts = enumerate_drafts(table, tree, law)
  weights: dict[frozenset[tuple[int, ...]], float] = {}
  nodes = [context(tree, node) for node in range(tree.size)]
  for tokens, valid, weight in zip(
    drafts.tokens.tolist(), drafts.valid, drafts.weight, strict=True
  ):
    # Drafts of the same paths are one: their order does not depend on p.
    paths = frozenset(
      tuple(tokens[n] for n in path) for path in nodes if valid[path].all()
    )
    weights[paths] = weights.get(paths, 0) + weight

  vocab, depth = table.p[0].shape[-1], tree.depth
  target = np.ones(())
  for p in table.p[:depth]:
    target = target[..., None] * p

  def continued(emitted: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Returns continuations, as indices into `target`, and P of each."""
    probs = target[emitted].reshape(-1)
    first = sum(x * vocab ** (depth - 1 - i) for i, x in enumerate(emitted))
    if not probs.sum():  # no rule may emit it
      return first + np.arange(1), np.ones(1)
    return first + np.arange(probs.size), probs / probs.sum()

  lengths, values, rows, columns = [], [], [], []
  for row, paths in enumerate(weights):
    for path in paths:
      ends = [(*path, y) for y in range(vocab) if (*path, y) not in paths]
      for emitted in [path] if len(path) == depth else ends:
        index, probs = continued(emitted)
        rows += [row, *(len(weights) + index)]
        values += [1, *probs]
        columns += [len(lengths)] * (1 + len(index))
        lengths.append(len(path))
  # All rows of either group sum to 1: one of them follows from the others, and
  # rounding must not contradict it.
  bounded = np.concatenate([list(weights.values()), target.reshape(-1)])
  matrix = sparse.csr_matrix((values, (rows, columns)))
  found = optimize.linprog(
    -np.array(lengths), A_eq=matrix[:-1], b_eq=bounded[:-1]
  )
  if not found.success:
    raise ArithmeticError(found.message)
  return -found.fun
