"""A drafter's tokens are draws from the q that it reports, round by round."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from specsamp.conformance.recorder import Recorder, draft_of
from specsamp.decoding.request import Request
from specsamp.decoding.state import DecodeState
from specsamp.drafting import checks
from specsamp.drafting.draft import Draft
from specsamp.drafting.drafter import Drafter
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling import draw
from specsamp.sampling.transforms import SamplingParams

_LONGEST_PROMPT = 12
_LEAST_P = 1e-6  # one drafter in a million that is right is refused
_BINS, _BINS_OF_PAIRS = 16, 4
_REPEATS = 4  # drafts from one state, each with keys of its own
# A table of the ranks of K repeats is a sum of permutation matrices, whose
# cells vary by K / (K - 1) times as much as those of K independent pairs.
_OF_RANKS = 1 - 1 / _REPEATS
# Of two q after the same text, on average. In float32 they differ by 1e-7, and
# where a tree's drafter has kept the wrong path, of random weights, by 0.03.
_MOST_DISTANCE = {'float32': 0.005}
_MOST_OF_OTHERS = 0.05
# One row in eight is greedy. Its q is of another temperature, because its text
# is the best one, so its tokens are no draws.
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

  It drafts for short prompts at several temperatures. Their tokens are random;
  half of the prompts repeat two tokens. It drafts several times with other keys
  from the same states, and continues from what the target accepts. Each draft
  must fit its tree, its law and the vocabulary. Tokens that are draws must be
  draws from the reported q, and independent of each other. A q that is wrong in
  long or special texts only is not found.

  The test of q holds whatever the draws of two tokens or of two rounds have in
  common, and comes before the tests of these. A correct drafter is refused less
  than once in 100,000 times, and then always, because the seeds are fixed. A
  chain of 4 tokens has about 1,700 draws. A q that is off by a total variation
  of 0.1 is found in 19 of 20 cases, by 0.08 in one of two, and if it is only
  too flat or too sharp by 0.07 in 19 of 20. More rows and rounds find smaller
  errors.

  Args:
    drafter: what drafts.
    target: a target that it drafts for; a small one is as good.
    reads_text_alone: whether its drafts depend on the text alone, so that they
      are the same after rounds and after the same text as a prompt. Those of
      lookahead do not. Where they do and differ, `commit` has lost something,
      which costs speed and no losslessness.
    rows: texts at once, two of each prompt.
    rounds: of each text.

  Raises:
    UserError: what is wrong.
  """
  checks.check_parts(drafter)
  name = f'drafter {type(drafter).__name__}'
  step = drafter.tree.depth + 1
  # One round from the first state, `rounds`, and one from the last state.
  rounds = min(rounds, (target.config.max_length - _LONGEST_PROMPT) // step - 2)
  if rounds < 2:
    raise UserError(
      f'{name}: the target has {target.config.max_length} positions, expected '
      f'room for a prompt of {_LONGEST_PROMPT} and four rounds of {step} tokens'
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
  if is_drawn:
    rng = np.random.default_rng(0)
    places = lambda drafts: np.stack(
      [trial.drawn(_places(draft, rng)) for draft in drafts]
    )
    first_kbn, last_kbn = places(first), places(last)
    _check_repeats(name, first, last, trial.is_drawn_b)
    _check_places(
      name,
      np.stack([first_kbn, last_kbn]),
      np.concatenate([first_kbn[-1:], places(between), last_kbn[:1]]),
    )
  if reads_text_alone:
    fresh, _ = trial.round(*trial.start(texts))
    most = _MOST_DISTANCE.get(target.config.dtype, _MOST_OF_OTHERS)
    _check_same(name, most, last[0], fresh)


class _Trial:
  """Requests of a drafter, all of which run the same two programs.

  Attributes:
    prompts: random tokens; the second half repeats the first.
    is_drawn_b: bool [B], rows that are not greedy.
  """

  def __init__(self, drafter, target, rows, rounds):
    self._drafter, self._target = drafter, target
    half = max(rows // 2, 1)
    rng = np.random.default_rng(0)
    prompt = lambda size: rng.integers(target.config.num_tokens, size=size)
    # Every second prompt repeats two tokens, one of them more often: there a q
    # that is made of the text is far from uniform.
    uneven = lambda size: rng.choice(prompt(2), size, p=(0.75, 0.25))
    self.prompts = 2 * [
      (uneven if i % 2 else prompt)(1 + i % _LONGEST_PROMPT)
      for i in range(half)
    ]
    turns = 2 * [i % len(_TEMPERATURES) for i in range(half)]
    self._sampling = SamplingParams(
      temperature=np.asarray([*np.take(_TEMPERATURES, turns), 1.0]),
      top_p=np.asarray([*np.take(_TOP_P, turns), 1.0]),
    )
    self.is_drawn_b = np.take(_TEMPERATURES, turns) > 0
    self._step = drafter.tree.depth + 1
    # Programs are compiled for the longest prompt: a row that is not looked at
    # has one as long as the longest text of all rounds.
    self._longest = prompt(_LONGEST_PROMPT + (rounds + 1) * self._step)
    self._keys = 0

  def start(self, texts) -> tuple[Request, DecodeState]:
    """Returns a request and its state before the first round."""
    whole = len(self._longest) + self._step
    texts = [*texts, self._longest]
    # The naive rule keeps drafts of any law.
    request = Request.make(
      self._target,
      texts,
      Recorder.of(self._drafter),
      'naive',
      sampling=self._sampling,
      max_new_tokens=[whole - len(text) for text in texts],
      stop_tokens=(),
      max_length=whole,
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
    """Returns drafts of one state, each with other keys, and the last state."""
    drafts = []
    for _ in range(count):
      self._keys += len(state.length)
      seeds_b = jnp.arange(len(state.length), dtype=jnp.int32) + self._keys
      copy = jax.tree.map(jnp.copy, state)
      draft, after = self.round(
        request, copy.replace(keys=draw.row_keys(seeds_b))
      )
      drafts.append(draft)
    return drafts, after

  def texts(self, request: Request, state: DecodeState) -> list[np.ndarray]:
    """Returns the committed tokens of each row."""
    seen = request.fetch(state)
    return [
      row[:length] for row, length in zip(seen.tokens, seen.length, strict=True)
    ][: len(self.prompts)]

  def drawn(self, places_bn: np.ndarray) -> np.ndarray:
    """Returns the places with NaN in greedy rows."""
    return np.where(self.is_drawn_b[:, None], places_bn, np.nan)


def _places(draft: Draft, rng: np.random.Generator) -> np.ndarray:
  """Where in its q each token lies, [B, N]: uniform in [0, 1) for a draw.

  The mass of the tokens that are more probable, and a random part of its own.
  NaN where nothing was drafted, or not by a draw.
  """
  tree, (batch, size) = draft.tree, draft.tokens.shape
  valid = checks.reached(draft)
  places = np.full((batch, size), np.nan)
  rows = np.arange(batch)
  for i, node in enumerate(tree.internal):
    left = draft.q[:, i].astype(np.float64)
    *_, last = tree.children(node)
    for child in tree.children(node):
      drafted = valid[:, child]
      x = np.where(drafted, draft.tokens[:, child], 0)
      own = left[rows, x]
      before = left > own[:, None]
      before |= (left == own[:, None]) & (np.arange(left.shape[1]) < x[:, None])
      place = (left * before).sum(axis=1) + rng.random(batch) * own
      with np.errstate(invalid='ignore'):  # of q where nothing was drafted
        place /= left.sum(axis=1)
      if draft.law != 'top_plus_one' or child == last:
        places[drafted, child] = place[drafted]
      if draft.law != 'iid':
        left[rows[drafted], x[drafted]] = 0
  return places


def _check_repeats(
  name: str, first: list[Draft], last: list[Draft], is_drawn_b: np.ndarray
) -> None:
  """Raises `UserError` if other keys never change a first token that is drawn.

  Args:
    name: name of the drafter.
    first: drafts of one state.
    last: drafts of another one.
    is_drawn_b: bool [B], rows to look at.
  """
  log_p = 0.0
  for drafts in (first, last):
    drafted_b = is_drawn_b & np.all([d.valid[:, 1] for d in drafts], axis=0)
    tokens_kb = np.stack([draft.tokens[drafted_b, 1] for draft in drafts])
    if (tokens_kb != tokens_kb[0]).any():
      return
    q_bv = drafts[0].q[drafted_b, 0].astype(np.float64)
    log_p += np.log((q_bv ** len(drafts)).sum(axis=-1)).sum()
  if drafts[0].law != 'top_plus_one' and log_p < np.log(_LEAST_P):
    raise UserError(
      f'{name}: its tokens are not drawn from the q that it reports: with '
      'other keys it drafts the same tokens, which has p = '
      f'{np.exp(log_p):.1g} under that q'
    )


def _check_places(
  name: str, places_skbn: np.ndarray, places_rbn: np.ndarray
) -> None:
  """Raises `UserError` where places are not uniform, or not independent.

  Repeated drafts of a state have one distribution each, right or wrong, so that
  the ranks of their places show what rows or tokens share without any q.

  Args:
    name: name of the drafter.
    places_skbn: of repeated drafts of each of S states.
    places_rbn: of drafts of successive rounds.
  """
  places_skbn, places_rbn = places_skbn[..., 1:], places_rbn[..., 1:]
  places = np.concatenate([places_skbn.ravel(), places_rbn[1:-1].ravel()])
  count = np.isfinite(places).sum()
  if count < 5 * _BINS:
    raise UserError(
      f'{name}: drafted {count} tokens, too few to tell what they are draws '
      f'of; expected at least {5 * _BINS}: give more rows or rounds'
    )
  ranks_skbn = places_skbn.argsort(axis=1).argsort(axis=1) / _REPEATS
  is_missing = np.isnan(places_skbn).any(axis=1, keepdims=True)
  ranks_skbn = np.where(is_missing, np.nan, ranks_skbn)
  half = places_skbn.shape[2] // 2
  # Node by node, because two tokens of a draft may share random bits.
  nodes = places_skbn.shape[-1]
  for node in range(nodes):
    ranks_skb = ranks_skbn[..., node]
    one, other = ranks_skb[..., :half], ranks_skb[..., half : 2 * half]
    _check_independent(
      name, 'the drafts of two rows', one, other, _OF_RANKS, nodes
    )
  for node in range(nodes):
    _check_uniform(name, places_skbn[..., node], nodes)
  one, other = ranks_skbn[..., :-1], ranks_skbn[..., 1:]
  _check_independent(name, 'two tokens of a draft', one, other, _OF_RANKS)
  _check_uniform(name, places_skbn)
  _check_means(name, places_skbn)
  _check_independent(
    name, 'the drafts of two rounds', places_rbn[:-1], places_rbn[1:]
  )
  _check_uniform(name, places)


def _check_uniform(name: str, places: np.ndarray, tests: int = 1) -> None:
  """Raises `UserError` unless the places are uniform.

  Args:
    name: name of the drafter.
    places: independent of each other; NaN is none.
    tests: how many are made, any one of which may fail by chance.
  """
  found = places[~np.isnan(places)]
  seen = np.bincount(_bins(found, _BINS), minlength=_BINS)
  p = _p_of(seen, np.full(_BINS, len(found) / _BINS), _BINS - 1)
  # The mean tells where q is too flat or too sharp, with more power.
  z = (found.mean() - 0.5) * math.sqrt(12 * len(found)) if len(found) else 0
  p = 2 * min(p, math.erfc(abs(z) / math.sqrt(2)))
  _check_p_of_q(name, p * tests, len(found))


def _check_means(name: str, places_skbn: np.ndarray) -> None:
  """Raises `UserError` if some texts have too low places and others too high.

  Their places may be uniform taken together. A q that is wrong so would make
  two rounds of a row alike.

  Args:
    name: name of the drafter.
    places_skbn: of repeated drafts of each of S states.
  """
  mean_sbn = places_skbn.mean(axis=1)
  mean = mean_sbn[~np.isnan(mean_sbn)]
  statistic = 12 * _REPEATS * ((mean - 0.5) ** 2).sum()
  p = special.gammaincc(len(mean) / 2, statistic / 2) if len(mean) else 1.0
  _check_p_of_q(name, float(p), len(mean) * _REPEATS)


def _check_p_of_q(name: str, p: float, count: int) -> None:
  """Raises `UserError` if the reported q makes these draws too improbable."""
  if p < _LEAST_P:
    raise UserError(
      f'{name}: its tokens are not drawn from the q that it reports: p = '
      f'{p:.1g} in a test of {count} of them'
    )


def _check_independent(
  name: str,
  what: str,
  one: np.ndarray,
  other: np.ndarray,
  scale: float = 1.0,
  tests: int = 1,
) -> None:
  """Raises `UserError` unless the places or ranks are independent.

  Args:
    name: name of the drafter.
    what: is compared.
    one: places or ranks; NaN is none.
    other: places of the tokens that are compared with them.
    scale: factor on the chi-square statistic; `_OF_RANKS` for ranks.
    tests: how many are made, any one of which may fail by chance.
  """
  p, count = _p_of_independent(one, other, scale)
  if p * tests < _LEAST_P:
    raise UserError(
      f'{name}: {what} are not independent draws: p = {p:.1g} of a '
      f'chi-square test over {count} pairs; what is drawn in a round '
      'takes draw.stream_keys(keys_b, length_b - 1, draw.Stream.DRAFT), and '
      'a number of its own for every token'
    )


def _p_of_independent(one, other, scale: float) -> tuple[float, int]:
  """Of the places that both have, and how many these are."""
  both = ~(np.isnan(one) | np.isnan(other))
  size = _BINS_OF_PAIRS
  pairs = _bins(one[both], size) * size + _bins(other[both], size)
  seen = np.bincount(pairs, minlength=size**2).reshape(size, size)
  count = max(len(pairs), 1)
  expected = seen.sum(1, keepdims=True) * seen.sum(0, keepdims=True) / count
  return _p_of(seen, expected, (size - 1) ** 2, scale), len(pairs)


def _bins(places: np.ndarray, count: int) -> np.ndarray:
  return np.minimum(places * count, count - 1).astype(int)


def _p_of(
  seen: np.ndarray, expected: np.ndarray, degrees: int, scale: float = 1.0
) -> float:
  """Of Pearson's chi-square; 1 where there is too little to tell."""
  if expected.min() < 5:
    return 1.0
  statistic = scale * ((seen - expected) ** 2 / expected).sum()
  return float(
    special.gammaincc(np.float32(degrees / 2), np.float32(statistic / 2))
  )


def _check_same(name: str, most: float, after: Draft, fresh: Draft) -> None:
  """Raises `UserError` where two drafts after the same text differ much."""
  if after.q is None:
    distance_b = after.tokens[:, 1] != fresh.tokens[:, 1]
  else:
    distance_b = np.abs(after.q[:, 0] - fresh.q[:, 0]).sum(axis=1) / 2
  # Where nothing was drafted, no token and no q was.
  drafted_b, other_b = after.valid[:, 1], fresh.valid[:, 1]
  distance_b = np.where(drafted_b & other_b, distance_b, drafted_b != other_b)
  distance = distance_b.mean()
  if distance > most:
    raise UserError(
      f'{name}: drafts after rounds differ from those after the same text as '
      f'a prompt, by {distance:.2g} of 1: commit leaves a state of another '
      'text; if its drafts are to depend on more, reads_text_alone=False'
    )
