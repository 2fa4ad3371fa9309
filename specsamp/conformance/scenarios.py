"""Table models with a known distribution of completions, and scenarios of them.

A scenario is a batch of requests to a decoder. The tables are functions of all
tokens before, so that a decoder that reads a wrong prefix is found.
"""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from specsamp.conformance import paths

VOCAB = 4
TOLERANCE = 1e-6  # total variation due to float32
_IMPOSSIBLE = 64.0  # logits below the others: a probability of 1e-28
_OFFSET = 80.0  # bfloat16 numbers near it are 0.5 apart; exp fits in float32


class Request(NamedTuple):
  """Completion that a decoder is asked for.

  Attributes:
    prompt: tokens.
    temperature: 0 is greedy.
    top_k: number of most probable tokens that are kept; 0 keeps all.
    top_p: smallest mass of most probable tokens that is kept, after temperature
      and top-k.
    max_tokens: upper bound on new tokens.
    eos: token that ends the completion and is part of it, or None.
    draft_len: draft tokens per step. With another length all errors are still
      found, but some may get no name.
  """

  prompt: tuple[int, ...]
  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  max_tokens: int = 3
  eos: int | None = None
  draft_len: int = 2


# Table models. The first two tokens of a prompt choose the kind of tables.

_KINDS = (
  'rejected', 'accepted', 'point', 'equal', 'alternating', 'dense', 'random',
  'dtype', 'zero', 'skewed',
)  # fmt: skip
_SKEWED = (0.45, 0.35, 0.15, 0.05)
_TWO = (0.5, 0.5, 0.0, 0.0)
_ONE = (1.0, 0.0, 0.0, 0.0)


@functools.cache
def _tables(prefix: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
  """Returns draft and target logits after a prefix.

  Logits and probabilities of the draft are exact in 16 bits, except those of
  'random', 'skewed' and 'dtype'.
  """
  kind = _KINDS[prefix[0] * VOCAB + prefix[1]]
  # Another token anywhere in the prefix, or another length, changes the place.
  place = sum((2 * i + 1) * t for i, t in enumerate(prefix)) + 3 * len(prefix)
  other = sum((2 * i + 3) * t for i, t in enumerate(prefix[::-1]))
  at = lambda probs, shift=place: np.roll(probs, shift % VOCAB)
  match kind:
    case 'rejected':
      q, p = at(_ONE, place + 1), at(_ONE)
    case 'accepted':
      q, p = at(_ONE), at(_ONE)
    case 'point':
      q, p = at(_ONE), at((0.5, 0.3, 0.2, 0))
    case 'equal':
      q, p = at(_TWO), at(_TWO)
    case 'alternating':
      q, p = (_TWO, _ONE) if len(prefix) % 2 else (_ONE, _TWO)
      q, p = at(q), at(p)
    case 'dense':
      q, p = at(_TWO, other), at(_SKEWED)
    case 'random':
      q, p = np.random.default_rng(prefix).dirichlet(np.ones(VOCAB), 2)
    case 'dtype':
      logits = at((0.22, 0.28, 0.22, 0.28))  # 0 and 0.5 in bfloat16
      return logits + _OFFSET, logits
    case 'zero':
      q, p = np.full(VOCAB, 0.25), np.array((0, 0.5, 0.5, 0))
    case 'skewed':
      q, p = at(_SKEWED, other), at(_SKEWED)
  with np.errstate(divide='ignore'):
    q, p = np.log(q), np.log(p)
  lowest = -np.inf if kind == 'zero' else -_IMPOSSIBLE
  return np.maximum(q, lowest), np.maximum(p, lowest)


def draft_logits(prefix: Sequence[int]) -> np.ndarray:
  """Returns the draft's logits after a prefix, float64 [V]."""
  return _tables(tuple(map(int, prefix)))[0].copy()


def target_logits(prefix: Sequence[int]) -> np.ndarray:
  """Returns the target's logits after a prefix, float64 [V]."""
  return _tables(tuple(map(int, prefix)))[1].copy()


def softmax(logits: np.ndarray) -> np.ndarray:
  weights = np.exp(logits - logits.max())
  return weights / weights.sum()


def _nucleus(probs: np.ndarray, top_p: float) -> np.ndarray:
  order = np.argsort(-probs, kind='stable')
  is_kept = np.cumsum(probs[order]) - probs[order] < top_p
  probs = np.where(is_kept[np.argsort(order)], probs, 0)
  return probs / probs.sum()


def target_probs(
  prefix: Sequence[int], request: Request, top_p_first: bool = False
) -> np.ndarray:
  """Returns the target's distribution, [V], after the sampling transforms.

  With `top_p_first` the order of transforms is wrong.
  """
  logits = target_logits(prefix)
  if not request.temperature:
    return np.eye(VOCAB)[logits.argmax()]
  if top_p_first:
    is_kept = _nucleus(softmax(logits), request.top_p) > 0
    logits = np.where(is_kept, logits, -np.inf)
  logits = logits / request.temperature
  if request.top_k:
    logits[logits < np.sort(logits)[-request.top_k]] = -np.inf
  probs = softmax(logits)
  return probs if top_p_first else _nucleus(probs, request.top_p)


def expected_law(
  requests: Sequence[Request], **options: bool
) -> dict[tuple, float]:
  """Returns the probability of the completions, one tuple for each request."""
  laws = []
  for request in requests:
    law, ended = {(): 1.0}, {}
    for _ in range(request.max_tokens):
      longer = {}
      for tokens, prob in law.items():
        p = target_probs((*request.prompt, *tokens), request, **options)
        for token in np.flatnonzero(prob * p > 1e-12):
          into = ended if token == request.eos else longer
          into[*tokens, int(token)] = float(prob * p[token])
      law = longer
    laws.append(law | ended)
  joint = {}
  for rows in itertools.product(*(law.items() for law in laws)):
    completions, probs = zip(*rows, strict=True)
    joint[completions] = float(np.prod(probs))
  return joint


def _requests(*kinds: str, **sampling: Any) -> tuple[Request, ...]:
  """Returns a request per kind, with prompts of different lengths."""
  indices = [_KINDS.index(kind) for kind in kinds]
  return tuple(
    Request((*divmod(index, VOCAB), *(1,) * (1 + i)), **sampling)
    for i, index in enumerate(indices)
  )


_short = functools.partial(_requests, draft_len=1, max_tokens=2)

# Requests of each scenario, in the order of reports and of `traps`.
SCENARIOS = {
  'rejected': _requests('rejected', max_tokens=5),
  'accepted': _requests('accepted', max_tokens=6),
  'point': _requests('point', max_tokens=4),
  'equal': _requests('equal'),
  'alternating': _requests('alternating'),
  'dense': _short('dense'),
  'random': _requests('random', max_tokens=2),
  'dtype': _requests('dtype', draft_len=1, max_tokens=1),
  'greedy': _requests('random', temperature=0.0, max_tokens=4),
  'zero': _short('zero'),
  'temperature': _short('skewed', temperature=0.5),
  'top-k': _short('skewed', top_k=2),
  'top-p': _short('skewed', temperature=0.5, top_p=0.85),
  'eos': _requests('equal', eos=0, max_tokens=4),
  'batch': _requests('dense', 'rejected', max_tokens=2),
  'two rows': _requests('dense', 'dense', draft_len=1, max_tokens=1),
  'greedy row': (*_short('random', temperature=0.0), *_short('dense')),
}


@dataclasses.dataclass(frozen=True)
class Finding:
  """Outcome of a scenario.

  Attributes:
    scenario: name in `SCENARIOS`.
    observed: probability, or number of samples, of each tuple of completions.
    expected: their correct probabilities.
    num_paths: number of enumerated paths; 0 if the code was sampled.
    is_right: False if the outcome is not that of a correct sampler.
    detail: one line for reports.
  """

  scenario: str
  observed: dict[tuple, float]
  expected: dict[tuple, float]
  num_paths: int
  is_right: bool
  detail: str

  @property
  def example(self) -> str:
    """The completions whose probability is most wrong, with both values."""
    total = sum(self.observed.values())
    shares = {rows: n / total for rows, n in self.observed.items()}
    error = lambda rows: abs(shares.get(rows, 0) - self.expected.get(rows, 0))
    worst = max(sorted({*shares, *self.expected}), key=error)
    tokens = ' and '.join(map(str, map(list, worst)))
    return (
      f'{tokens} with probability {shares.get(worst, 0):.4f}, expected '
      f'{self.expected.get(worst, 0):.4f}'
    )

  def fits(self, law: dict, part: Callable = lambda rows: rows) -> bool:
    """Returns True if `part` of the completions is distributed as in a law."""
    observed, expected = Counter(), Counter()
    for counts, other in ((observed, self.observed), (expected, law)):
      for rows, value in other.items():
        counts[part(rows)] += value
    if self.num_paths:
      return paths.distance(observed, expected) < TOLERANCE
    return paths.p_value(observed, expected) > 1e-3
