"""Tokens that a draft with another tokenizer reads and predicts.

Both models keep their vocabularies; tables lead from the tokens of the target
to those of the draft (token-level intersection, Timor et al. 2502.05202).
"""

from typing import NamedTuple

import numpy as np

from specsamp.data.tokenizers import Meaning, Tokenizer
from specsamp.errors import UserError

# A draft that shares less is taken for a mistake. Pairs of published models
# share 0.6 to 0.9.
MIN_SHARE = 0.25


class Translation(NamedTuple):
  """Tokens of a draft for each token of a target.

  Attributes:
    shared: int32 [V], the draft's token with the same meaning, or -1.
    read: int32 [V], the draft's token to read in place of each token.
    share: number of shared tokens over the size of the smaller vocabulary.
  """

  shared: np.ndarray
  read: np.ndarray
  share: float


def translate(
  target: Tokenizer, draft: Tokenizer, num_target: int, num_draft: int
) -> Translation:
  """Returns the tokens of a draft for those of a target.

  A token is shared if both vocabularies have it: the same bytes, or the same
  special token that ends a completion in both or in neither. No token of the
  draft is shared twice. In place of any other token the draft reads one token:
  the special one of the same name, or the longest one that ends the bytes.

  Args:
    target: the target's tokenizer.
    draft: the draft's tokenizer.
    num_target: V, number of tokens that the target can emit.
    num_draft: number of tokens of the draft.

  Raises:
    UserError: the vocabularies share less than `MIN_SHARE`.
  """
  meanings = target.meanings()[:num_target]
  meanings += [None] * (num_target - len(meanings))
  drafted = _first(draft.meanings()[:num_draft])
  firsts = _first(meanings)
  shared = {m: i for m, i in firsts.items() if m in drafted}
  share = len(shared) / max(min(len(drafted), len(firsts)), 1)
  if share < MIN_SHARE:
    raise UserError(
      'draft and target have different tokenizers, which share '
      f'{share:.1%} of the smaller vocabulary, expected at least '
      f'{MIN_SHARE:.0%}'
    )
  shared_v = np.full(num_target, -1, np.int32)
  for meaning, i in shared.items():
    shared_v[i] = drafted[meaning]
  # Special tokens are read by their names, whether they end a text or not.
  texts, names = {}, {}
  for meaning, i in drafted.items():
    (texts if meaning.role == 'text' else names)[meaning.text] = i

  def replacement(meaning: Meaning | None) -> int:
    if meaning is None:
      return 0
    if meaning.text in names:
      return names[meaning.text]
    ends = (meaning.text[start:] for start in range(len(meaning.text)))
    return next((texts[end] for end in ends if end in texts), 0)

  read_v = np.asarray([replacement(m) for m in meanings], np.int32)
  return Translation(shared_v, read_v, share)


def _first(meanings: list[Meaning | None]) -> dict[Meaning, int]:
  """Returns the first token of each meaning."""
  result = {}
  for i, meaning in enumerate(meanings):
    if meaning is not None:
      result.setdefault(meaning, i)
  return result
