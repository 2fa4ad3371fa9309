"""A drafter's tokens are draws from the q that it reports, round by round."""

import numpy as np
from jax.scipy import special

from specsamp.conformance.recorder import Recorder, draft_of
from specsamp.decoding.request import Request
from specsamp.drafting import checks
from specsamp.drafting.draft import Draft
from specsamp.drafting.drafter import Drafter
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams

_LONGEST_PROMPT = 6
_LEAST_P = 1e-6  # one drafter in a million that is right is refused
_BINS, _BINS_OF_PAIRS = 16, 4
# Of two q after the same text, on average. In float32 they differ by 1e-7, and
# where a tree's drafter has kept the wrong path, of random weights, by 0.03.
_MOST_DISTANCE = {'float32': 0.005}
_MOST_OF_OTHERS = 0.05


def check_drafter(
  drafter: Drafter,
  target: LanguageModel,
  *,
  reads_text_alone: bool = True,
  rows: int = 64,
  rounds: int = 8,
) -> None:
  """Tests that a drafter's drafts are what they say they are.

  It drafts for prompts of random tokens, at several temperatures, and goes on
  from what the target accepts. In every round a draft must fit its tree, its
  law and the vocabulary; its tokens, of those that are draws, must be draws
  from the q that it reports, and independent of each other. A drafter that is
  right is refused once in a million times, and then always: the seeds are
  fixed. One whose q is off by less than a tenth of the mass may pass; more rows
  and rounds find less.

  Args:
    drafter: what drafts.
    target: a target that it drafts for; a small one is as good.
    reads_text_alone: whether its drafts depend on the text alone, so that they
      are the same after rounds and after the same text as a prompt. Those of
      lookahead do not. Where they do and differ, `commit` has lost something,
      which costs speed and no losslessness.
    rows: texts at once.
    rounds: of each.

  Raises:
    UserError: what is wrong.
  """
  checks.check_parts(drafter)
  name = f'drafter {type(drafter).__name__}'
  longest = target.config.max_length - _LONGEST_PROMPT
  rounds = min(rounds, longest // (drafter.tree.depth + 1) - 1)
  if rounds < 2:
    raise UserError(
      f'{name}: the target has {target.config.max_length} positions, expected '
      'room for three rounds'
    )
  rng = np.random.default_rng(0)
  prompts = [
    rng.integers(target.config.num_tokens, size=1 + i % _LONGEST_PROMPT)
    for i in range(rows)
  ]
  turns = np.arange(rows) % 4
  sampling = SamplingParams(
    temperature=np.asarray([1.0, 0.6, 1.0, 0.0])[turns],
    top_p=np.asarray([1.0, 1.0, 0.9, 1.0])[turns],
  )
  # q of greedy rows is of another temperature: their text is the best one.
  drawn = turns != 3
  start = lambda texts, budget: _start(drafter, target, texts, sampling, budget)
  request, state = start(prompts, (rounds + 1) * (drafter.tree.depth + 1))
  places = []
  for _ in range(rounds):
    before = request.fetch(state)
    state = request.decode(state, 1)
    draft = draft_of(request, state)
    root_b = before.tokens[np.arange(rows), before.length - 1]
    checks.check_draft(drafter, draft, root_b, target.config.vocab_size)
    if drafter.law != 'deterministic':
      places.append(np.where(drawn[:, None], _places(draft, rng), np.nan))
  if places:
    _check_places(name, np.stack(places))
  if reads_text_alone:
    after = request.fetch(state)
    texts = [
      row[:length]
      for row, length in zip(after.tokens, after.length, strict=True)
    ]
    fresh, begun = start(texts, drafter.tree.depth + 1)
    _check_same(
      name,
      _MOST_DISTANCE.get(target.config.dtype, _MOST_OF_OTHERS),
      draft_of(request, request.decode(state, 1)),
      draft_of(fresh, fresh.decode(begun, 1)),
    )


def _start(drafter, target, texts, sampling, budget):
  # The naive rule keeps drafts of any law.
  request = Request.make(
    target,
    texts,
    Recorder.of(drafter),
    'naive',
    sampling,
    budget,
    stop_tokens=(),
  )
  return request, request.prefill()


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


def _check_places(name: str, places_rbn: np.ndarray) -> None:
  """Raises `UserError` where they are not independent, or not uniform.

  Args:
    name: of the drafter.
    places_rbn: of every round, row and node.
  """
  drafted = places_rbn[:, :, 1:]
  of_same_length = _LONGEST_PROMPT
  for what, one, other in (
    (
      'the drafts of two rows',
      drafted[:, :-of_same_length],
      drafted[:, of_same_length:],
    ),
    ('the drafts of two rounds', drafted[:-1], drafted[1:]),
    ('two tokens of a draft', drafted[:, :, :-1], drafted[:, :, 1:]),
  ):
    p, count = _p_of_independent(one, other)
    if p < _LEAST_P:
      raise UserError(
        f'{name}: {what} are not independent draws: p = {p:.1g} of a '
        f'chi-square test over {count} pairs; what is drawn in a round '
        'takes draw.stream_keys(keys_b, length_b - 1, draw.Stream.DRAFT), and '
        'a number of its own for every token'
      )
  found = drafted[~np.isnan(drafted)]
  if len(found) < 5 * _BINS:
    raise UserError(
      f'{name}: drafted {len(found)} tokens, too few to tell what they are '
      f'draws of; expected at least {5 * _BINS}: give more rows or rounds'
    )
  seen = np.bincount(_bins(found, _BINS), minlength=_BINS)
  p = _p_of(seen, np.full(_BINS, len(found) / _BINS), _BINS - 1)
  if p < _LEAST_P:
    raise UserError(
      f'{name}: its tokens are not drawn from its q: p = {p:.1g} of a '
      f'chi-square test over {len(found)} of them'
    )


def _p_of_independent(one, other) -> tuple[float, int]:
  """Of the places that both have, and how many these are."""
  both = ~(np.isnan(one) | np.isnan(other))
  size = _BINS_OF_PAIRS
  pairs = _bins(one[both], size) * size + _bins(other[both], size)
  seen = np.bincount(pairs, minlength=size**2).reshape(size, size)
  count = max(len(pairs), 1)
  expected = seen.sum(1, keepdims=True) * seen.sum(0, keepdims=True) / count
  return _p_of(seen, expected, (size - 1) ** 2), len(pairs)


def _bins(places: np.ndarray, count: int) -> np.ndarray:
  return np.minimum(places * count, count - 1).astype(int)


def _p_of(seen: np.ndarray, expected: np.ndarray, degrees: int) -> float:
  """Of Pearson's chi-square; 1 where there is too little to tell."""
  if expected.min() < 5:
    return 1.0
  statistic = ((seen - expected) ** 2 / expected).sum()
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
