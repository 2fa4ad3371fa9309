"""Texts whose caches the slots of an engine hold, to continue from there."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_NO_TOKENS = np.zeros((0,), np.int32)


class Prefix(NamedTuple):
  """Beginning of a prompt that needs no prefill.

  Attributes:
    slot: slot whose text begins with it.
    length: number of its tokens.
  """

  slot: int
  length: int


class HeldTexts:
  """Text of each slot, unfinished or not, until another one replaces it.

  The last token of a text is a root, and has no cache entry yet. Everything is
  a function of earlier calls, so processes that share a mesh choose alike.
  """

  def __init__(self, slots: int):
    self._texts = [_NO_TOKENS] * slots
    self._last_use = [0] * slots
    self._num_uses = 0

  def hold(self, slot: int, tokens: Sequence[int]) -> None:
    """Sets the text of a slot; no tokens if its caches must not be used."""
    self._texts[slot] = np.asarray(tokens, np.int32)
    self._num_uses += 1
    self._last_use[slot] = self._num_uses

  def longest(self, prompt: np.ndarray) -> Prefix:
    """Returns the longest beginning of a prompt that has cache entries."""
    lengths = [
      min(_num_common(text, prompt), len(text) - 1) for text in self._texts
    ]
    slot = int(np.argmax(lengths))
    return Prefix(slot, max(lengths[slot], 0))

  def replaceable(
    self, idle: Sequence[int], prompt: np.ndarray, num_lost: int
  ) -> int:
    """Returns the idle slot that a prompt takes.

    It is a slot whose text the prompt repeats, except for at most `num_lost`
    tokens at its end, or else the least recently used one.
    """

    def cost(slot):
      text = self._texts[slot]
      is_repeated = len(text) - _num_common(text, prompt) <= num_lost
      # Among repeated texts the longest: the others may be other prefixes.
      order = -len(text) if is_repeated else self._last_use[slot]
      return not is_repeated, order

    return min(idle, key=cost)


def _num_common(one: np.ndarray, other: np.ndarray) -> int:
  """Returns the number of tokens with which both texts begin."""
  size = min(len(one), len(other))
  different = one[:size] != other[:size]
  return int(np.argmax(different)) if different.any() else size
