"""Tests that a drafter draws its tokens from the q that it reports.

The tests look at quantiles. A token's quantile is the q of all more probable
tokens plus a random part of its q. It is uniform in [0, 1) if the token is a
draw from q, and NaN here if the token is not a draw.
"""

import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.scipy import special

from specsamp.decoding.request import Request
from specsamp.decoding.state import DecodeState
from specsamp.drafting import checks
from specsamp.drafting.draft import Draft
from specsamp.drafting.drafter import Drafter
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling import draw
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import mesh as meshes

_MAX_PROMPT_LEN = 12
_MIN_P = 1e-6  # a test refuses one correct drafter in a million
_BINS, _PAIR_BINS = 16, 4
_REPEATS = 4  # drafts from one state, with different keys
# A table of the ranks of K repeats is a sum of permutation matrices, whose
# cells vary by K / (K - 1) times as much as those of K independent pairs.
_RANK_SCALE = 1 - 1 / _REPEATS
# Allowed mean distance of two q after the same tokens, for a target in float32
# and in other dtypes. In float32 they differ by 1e-7, and by 0.03 if a drafter
# of random weights has kept the wrong path of a tree.
_MAX_DISTANCE, _MAX_DISTANCE_OF_OTHERS = 0.005, 0.05
# One row in eight is greedy. It drafts the most probable tokens, no draws.
_TEMPERATURES = (1.0, 0.6, 1.0, 1.0, 0.6, 1.0, 1.0, 0.0)
_TOP_P = (1.0, 1.0, 0.9, 1.0, 1.0, 0.9, 1.0, 1.0)


def check_drafter(
  drafter: Drafter,
  target: LanguageModel,
  *,
  reads_text_alone: bool = True,
  rows: int = 40,
  rounds: int = 4,
) -> None:
  """Tests that a drafter draws its tokens from the q that it reports.

  The drafter drafts after short prompts of random tokens at several
  temperatures; half of the prompts repeat two tokens. It drafts several times
  from the same states with other keys, and continues with the tokens that the
  target accepts. Each draft must fit its tree, its law and the vocabulary.
  Drawn tokens must be draws from the reported q, and independent of each other.
  An error of q that occurs only in long or special texts is not found.

  A correct drafter fails with a chance below 1 in 100,000. Seeds are fixed, so
  a rerun has the same result. A chain of 4 tokens has about 1,700 draws. They
  reveal a q that is off by a total variation of 0.1 in 19 of 20 cases, and by
  0.08 in one of two. If q is only too flat or too sharp, 0.07 is enough in 19
  of 20. More rows and rounds reveal smaller errors.

  Args:
    drafter: the drafter.
    target: a target for the drafter; a small target suffices.
    reads_text_alone: True if a draft depends on the text alone, so that after
      steps it must be the draft after the same prompt; False for lookahead. A
      difference means that `commit` lost state, which costs only speed.
    rows: batch size, two rows per prompt.
    rounds: number of steps.

  Raises:
    UserError: a test fails.
  """
  checks.check_parts(drafter)
  name = f'drafter {type(drafter).__name__}'
  step = drafter.tree.depth + 1
  # One round from the first state, `rounds`, and one from the last state.
  rounds = min(rounds, (target.config.max_length - _MAX_PROMPT_LEN) // step - 2)
  if rounds < 2:
    raise UserError(
      f'{name}: the target has {target.config.max_length} positions, expected '
      f'at least {_MAX_PROMPT_LEN + 4 * step}, for a prompt and four rounds of '
      f'{step} tokens'
    )
  trial = _Trial(drafter, target, rows, rounds)
  request, state = trial.start(trial.prompts)
  is_drawn = drafter.law != 'deterministic'
  repeats = _REPEATS if is_drawn else 1
  first, state = trial.repeat(request, state, repeats)
  between = []
  for _ in range(rounds):
    draft, state = trial.round(request, state)
    between.append(draft)
  texts = trial.texts(request, state)
  last, _ = trial.repeat(request, state, repeats)
  fresh = trial.round(*trial.start(texts))[0] if reads_text_alone else None
  try:
    if is_drawn:
      _check_quantiles(*trial.quantiles(first, between, last))
    if fresh is not None:
      is_float32 = target.config.dtype == 'float32'
      bound = _MAX_DISTANCE if is_float32 else _MAX_DISTANCE_OF_OTHERS
      _check_same(bound, last[0], fresh)
  except UserError as error:
    raise UserError(f'{name}: {error}') from None


@struct.dataclass
class Recorder(Drafter):
  """Wrapper of a drafter that keeps the last draft in its state."""

  drafter: Drafter
  tree = property(operator.attrgetter('drafter.tree'))
  law = property(operator.attrgetter('drafter.law'))
  extra_tree = property(operator.attrgetter('drafter.extra_tree'))
  taps = property(operator.attrgetter('drafter.taps'))

  def check(self, target, batch):
    self.drafter.check(target, batch)

  def init(self, tokens_bp, length_b, no_feature_b1f, capacity):
    batch = len(length_b)
    state = self.drafter.init(tokens_bp, length_b, no_feature_b1f, capacity)
    draft, _ = jax.eval_shape(
      self.drafter.propose,
      state,
      jax.ShapeDtypeStruct((batch, capacity), jnp.int32),
      length_b,
      jax.tree.map(jnp.asarray, SamplingParams().broadcast(batch)),
      draw.row_keys(jnp.zeros((batch,), jnp.int32)),
    )
    return state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), draft)

  def prefill(self, state, *chunk):
    return self.drafter.prefill(state[0], *chunk), state[1]

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    draft, new_state = self.drafter.propose(
      state[0], tokens_bs, length_b, sampling, keys_b
    )
    return draft, (new_state, draft)

  def commit(self, state, draft, verdict, root_b, scored):
    new_state = self.drafter.commit(state[0], draft, verdict, root_b, scored)
    return new_state, state[1]


def draft_of(request: Request, state: DecodeState) -> Draft:
  """Returns the last draft of a request with a `Recorder`, on the host."""
  draft = meshes.fetch(state.drafter[1])
  return jax.tree.map(lambda rows: rows[: request.batch], draft)


class _Trial:
  """Requests with one drafter; all run the same two programs.

  The second half of the prompts repeats the first. `is_drawn_b` are the rows
  that are not greedy.
  """

  def __init__(self, drafter, target, rows, rounds):
    self._drafter, self._target = drafter, target
    half = max(rows // 2, 1)
    rng = np.random.default_rng(0)
    prompt = lambda size: rng.integers(target.config.num_tokens, size=size)
    # Every second prompt repeats two tokens, one of them more often, so that a
    # q computed from the text is far from uniform.
    uneven = lambda size: rng.choice(prompt(2), size, p=(0.75, 0.25))
    self.prompts = 2 * [
      (uneven if i % 2 else prompt)(1 + i % _MAX_PROMPT_LEN)
      for i in range(half)
    ]
    kinds = 2 * [i % len(_TEMPERATURES) for i in range(half)]
    self._sampling = SamplingParams(
      temperature=np.asarray([*np.take(_TEMPERATURES, kinds), 1.0]),
      top_p=np.asarray([*np.take(_TOP_P, kinds), 1.0]),
    )
    self.is_drawn_b = np.take(_TEMPERATURES, kinds) > 0
    self._step = drafter.tree.depth + 1
    # Programs are compiled for the longest prompt. So an extra row, which no
    # test reads, has a prompt as long as the longest text of all rounds.
    self._longest = prompt(_MAX_PROMPT_LEN + (rounds + 1) * self._step)
    self._num_keys = 0

  def start(self, texts) -> tuple[Request, DecodeState]:
    """Returns a request and its state before the first round."""
    max_length = len(self._longest) + self._step
    texts = [*texts, self._longest]
    request = Request.make(
      self._target,
      texts,
      Recorder(self._drafter),
      'naive',  # accepts any law
      sampling=self._sampling,
      max_new_tokens=[max_length - len(text) for text in texts],
      stop_tokens=(),
      max_length=max_length,
    )
    return request, request.prefill()

  def round(
    self, request: Request, state: DecodeState
  ) -> tuple[Draft, DecodeState]:
    """Returns the checked draft of a round and the state after the round."""
    rows = len(self.prompts)
    before = request.fetch(state)
    root_b = before.tokens[np.arange(rows), before.length[:rows] - 1]
    state = request.decode(state, 1)
    draft = jax.tree.map(lambda x: x[:rows], draft_of(request, state))
    vocab_size = self._target.config.vocab_size
    checks.check_draft(self._drafter, draft, root_b, vocab_size)
    return draft, state

  def repeat(
    self, request: Request, state: DecodeState, count: int
  ) -> tuple[list[Draft], DecodeState]:
    """Drafts from one state with different keys; returns also a next state."""
    drafts = []
    for _ in range(count):
      self._num_keys += len(state.length)
      seeds_b = jnp.arange(len(state.length), dtype=jnp.int32) + self._num_keys
      copy = jax.tree.map(jnp.copy, state)
      draft, after = self.round(
        request, copy.replace(keys=draw.row_keys(seeds_b))
      )
      drafts.append(draft)
    return drafts, after

  def texts(self, request: Request, state: DecodeState) -> list[np.ndarray]:
    """Returns the committed tokens of each row."""
    host, rows = request.fetch(state), range(len(self.prompts))
    return [host.tokens[row, : host.length[row]] for row in rows]

  def quantiles(
    self, first: list[Draft], between: list[Draft], last: list[Draft]
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns quantiles, NaN in greedy rows.

    The quantiles are [2, K, B, N] of the repeats from two states, and [R, B, N]
    of successive rounds.
    """
    rng = np.random.default_rng(0)
    first_kbn, last_kbn, between_rbn = (
      np.stack([_quantiles(draft, rng) for draft in drafts])
      for drafts in (first, last, between)
    )
    for quantiles in (first_kbn, last_kbn, between_rbn):
      quantiles[:, ~self.is_drawn_b] = np.nan
    rounds_rbn = np.concatenate([first_kbn[-1:], between_rbn, last_kbn[:1]])
    return np.stack([first_kbn, last_kbn]), rounds_rbn


def _quantiles(draft: Draft, rng: np.random.Generator) -> np.ndarray:
  """Returns the quantile of each token in its q, [B, N]."""
  tree, (batch, size) = draft.tree, draft.tokens.shape
  valid = checks.reached(draft)
  quantiles = np.full((batch, size), np.nan)
  rows = np.arange(batch)
  for i, node in enumerate(tree.internal):
    left = draft.q[:, i].astype(np.float64)
    *_, last = tree.children(node)
    for child in tree.children(node):
      drafted = valid[:, child]
      x = np.where(drafted, draft.tokens[:, child], 0)
      q_of_x = left[rows, x]
      before = left > q_of_x[:, None]
      is_lower = np.arange(left.shape[1]) < x[:, None]
      before |= (left == q_of_x[:, None]) & is_lower
      quantile = (left * before).sum(axis=1) + rng.random(batch) * q_of_x
      with np.errstate(invalid='ignore'):  # q may be NaN at undrafted nodes
        quantile /= left.sum(axis=1)
      if draft.law != 'top_plus_one' or child == last:
        quantiles[drafted, child] = quantile[drafted]
      if draft.law != 'iid':
        left[rows[drafted], x[drafted]] = 0
  return quantiles


def _check_quantiles(states_skbn: np.ndarray, rounds_rbn: np.ndarray) -> None:
  """Refuses quantiles that are not uniform or not independent.

  Repeated drafts from a state have one distribution, right or wrong. So the
  ranks of their quantiles show a dependence of rows or tokens whatever q is.
  The test of q is valid even if draws of two tokens or rounds depend on each
  other, so it runs before the tests of these.
  """
  states_skbn, rounds_rbn = states_skbn[..., 1:], rounds_rbn[..., 1:]
  quantiles = np.concatenate([states_skbn.ravel(), rounds_rbn[1:-1].ravel()])
  count = np.isfinite(quantiles).sum()
  if count < 5 * _BINS:
    raise UserError(
      f'drafted {count} tokens, too few to test, expected at least '
      f'{5 * _BINS}: use more rows or rounds'
    )
  ranks_skbn = states_skbn.argsort(axis=1).argsort(axis=1) / _REPEATS
  is_missing = np.isnan(states_skbn).any(axis=1, keepdims=True)
  ranks_skbn = np.where(is_missing, np.nan, ranks_skbn)
  half, nodes = states_skbn.shape[2] // 2, states_skbn.shape[-1]
  # Node by node, because two tokens of a draft may share random bits.
  for node in range(nodes):
    ranks_skb = ranks_skbn[..., node]
    one, other = ranks_skb[..., :half], ranks_skb[..., half : 2 * half]
    _check_independent('the drafts of two rows', one, other, _RANK_SCALE, nodes)
  for node in range(nodes):
    _check_uniform(states_skbn[..., node], nodes)
  one, other = ranks_skbn[..., :-1], ranks_skbn[..., 1:]
  _check_independent('two tokens of a draft', one, other, _RANK_SCALE)
  _check_uniform(states_skbn)
  # If q is wrong, some texts may have too low quantiles and others too high
  # ones. They may be uniform together, but two rounds of a row are then alike.
  mean = states_skbn.mean(axis=1)
  mean = mean[~np.isnan(mean)]
  statistic = 12 * _REPEATS * ((mean - 0.5) ** 2).sum()
  p = special.gammaincc(len(mean) / 2, statistic / 2) if len(mean) else 1.0
  _check_p_of_q(float(p), len(mean) * _REPEATS)
  _check_independent(
    'the drafts of two rounds', rounds_rbn[:-1], rounds_rbn[1:]
  )
  _check_uniform(quantiles)


def _check_uniform(quantiles: np.ndarray, num_tests: int = 1) -> None:
  """Refuses quantiles that are not uniform, as one of `num_tests` tests."""
  quantiles = quantiles[~np.isnan(quantiles)]
  count = len(quantiles)
  counts = np.bincount(_bins(quantiles, _BINS), minlength=_BINS)
  p = _chi_square_p(counts, np.full(_BINS, count / _BINS), _BINS - 1)
  # The mean reveals a q that is too flat or too sharp, with more power.
  z = (quantiles.mean() - 0.5) * math.sqrt(12 * count) if count else 0
  p = 2 * min(p, math.erfc(abs(z) / math.sqrt(2)))
  _check_p_of_q(p * num_tests, count)


def _check_p_of_q(p: float, count: int) -> None:
  if p < _MIN_P:
    raise UserError(
      'its tokens are not drawn from the q that it reports: p = '
      f'{p:.1g} in a test of {count} of them'
    )


def _check_independent(
  what: str,
  one: np.ndarray,
  other: np.ndarray,
  scale: float = 1.0,
  num_tests: int = 1,
) -> None:
  """Refuses quantiles or ranks that depend on those of other tokens.

  The p-value is corrected for `num_tests`. `scale` is `_RANK_SCALE` for ranks.
  """
  p, count = _p_of_independent(one, other, scale)
  if p * num_tests < _MIN_P:
    raise UserError(
      f'{what} are not independent draws: p = {p:.1g} of a chi-square test of '
      f'{count} pairs; use the keys draw.stream_keys(keys_b, length_b - 1, '
      'draw.Stream.DRAFT) and a different random number for every token'
    )


def _p_of_independent(one, other, scale: float) -> tuple[float, int]:
  """Returns the p-value, and the number of pairs without NaN."""
  both = ~(np.isnan(one) | np.isnan(other))
  size = _PAIR_BINS
  pairs = _bins(one[both], size) * size + _bins(other[both], size)
  counts = np.bincount(pairs, minlength=size**2).reshape(size, size)
  total = max(len(pairs), 1)
  expected = counts.sum(1, keepdims=True) * counts.sum(0, keepdims=True) / total
  return _chi_square_p(counts, expected, (size - 1) ** 2, scale), len(pairs)


def _bins(quantiles: np.ndarray, count: int) -> np.ndarray:
  return np.minimum(quantiles * count, count - 1).astype(int)


def _chi_square_p(
  counts: np.ndarray, expected: np.ndarray, degrees: int, scale: float = 1.0
) -> float:
  """Returns the p-value of Pearson's chi-square; 1 for too few counts."""
  if expected.min() < 5:
    return 1.0
  statistic = scale * ((counts - expected) ** 2 / expected).sum()
  return float(
    special.gammaincc(np.float32(degrees / 2), np.float32(statistic / 2))
  )


def _check_same(bound: float, after: Draft, fresh: Draft) -> None:
  """Refuses drafts that differ on average after rounds and after a prompt."""
  if after.q is None:
    distance_b = after.tokens[:, 1] != fresh.tokens[:, 1]
  else:
    distance_b = np.abs(after.q[:, 0] - fresh.q[:, 0]).sum(axis=1) / 2
  # Tokens and q of an invalid node are noise.
  after_b, fresh_b = after.valid[:, 1], fresh.valid[:, 1]
  distance_b = np.where(after_b & fresh_b, distance_b, after_b != fresh_b)
  distance = distance_b.mean()
  if distance > bound:
    raise UserError(
      'drafts after rounds differ from those after the same text as a prompt, '
      f'by {distance:.2g} of 1: commit leaves a state of another text; use '
      'reads_text_alone=False if drafts depend on more than the text'
    )
