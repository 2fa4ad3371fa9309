"""One text as it grows: tokens to characters, cut at stop strings.

What comes out does not depend on how many tokens a burst brings: each is looked
at by itself.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from specsamp.decoding.state import Logprobs

_CUT = '\N{REPLACEMENT CHARACTER}'  # of bytes that are no character yet
_WINDOW = 16  # tokens of a prompt that the first new one is decoded behind
_PATIENCE = 8  # tokens; the longest character has 4 bytes


class TokenLogprob(NamedTuple):
  """A token with its log-probability under the target at temperature 1.

  Attributes:
    text: what it adds to the text.
    bytes: of the text; None where it is but a part of a character, and the
      vocabulary does not tell which.
    logprob: natural logarithm.
    offset: characters of the completion before it.
    top: the most probable tokens at its place, as these, without a top.
  """

  text: str
  bytes: list[int] | None
  logprob: float
  offset: int
  top: list['TokenLogprob']


class Piece(NamedTuple):
  """What is new of a text.

  Attributes:
    text: characters, none of which a stop string can take back.
    accepted: [start, end] of the characters in it that were drafted.
    logprobs: of the tokens since the last piece, if they are asked for.
  """

  text: str
  accepted: list[list[int]]
  logprobs: list[TokenLogprob]


class Detokenizer:
  """Characters of tokens that come one by one; half a character waits."""

  def __init__(self, tokenizer: Any, prompt: Sequence[int]):
    self._tokenizer = tokenizer
    # Not the whole: decoding it for each token would take longer and longer.
    # But some text, for the first token of one may lose its space.
    seen = list(prompt[-_WINDOW:])
    if not tokenizer.decode(seen):
      seen = list(prompt)
    self._tokens, self._end = seen, len(seen)  # the rest waits

  def add(self, token: int) -> str:
    """What is to be seen with one more token."""
    self._tokens.append(token)
    new = self.flush()
    if not new:
      return ''
    pending = len(self._tokens) - self._end
    if new.endswith(_CUT) and pending < _PATIENCE:
      return ''
    del self._tokens[: self._end]
    self._end = len(self._tokens)
    return new

  @property
  def is_waiting(self) -> bool:
    """Whether half a character does."""
    return bool(self.flush())

  def flush(self) -> str:
    """What waits, as it is."""
    return self._tokenizer.decode(
      self._tokens[self._end :], self._tokens[: self._end]
    )

  def next(self, token: int) -> str:
    """What a token would add, half a character as its sign."""
    return self._tokenizer.decode([token], self._tokens)


class Text:
  """A text of a request.

  Attributes:
    num_tokens: of it so far: up to the one that completes a stop string.
    num_accepted: of them were drafted.
    is_stopped: whether a stop string was found.
  """

  def __init__(
    self,
    vocabulary: 'Vocabulary',
    prompt: Sequence[int],
    stop_tokens: Collection[int],
    stops: Sequence[str],
    top_logprobs: int | None,
  ):
    """Begins it.

    Args:
      vocabulary: the target's.
      prompt: its tokens.
      stop_tokens: those that end it, which add no characters.
      stops: strings that end it.
      top_logprobs: see `Asked`.
    """
    self._vocabulary = vocabulary
    self._characters = Detokenizer(vocabulary.tokenizer, prompt)
    self._stop_tokens = stop_tokens
    self._stops = stops
    self._top = top_logprobs
    self._held, self._marks = '', []  # not handed out; which were drafted
    self._length = 0  # characters that were handed out
    self._logprobs: list[TokenLogprob] = []
    self.num_tokens = 0
    self.num_accepted = 0
    self.is_stopped = False

  def add(
    self,
    tokens: Sequence[int],
    num_accepted: int,
    logprobs: Logprobs | None = None,
  ) -> None:
    """Goes on by the tokens of a burst.

    Args:
      tokens: new ones.
      num_accepted: of them, at their beginning, were drafted.
      logprobs: theirs.
    """
    for i, token in enumerate(tokens):
      if self.is_stopped:
        return
      is_accepted = i < num_accepted
      self.num_tokens += 1
      self.num_accepted += is_accepted
      if self._top is not None:
        self._logprobs.append(self._logprob(token, i, logprobs))
      if token not in self._stop_tokens:
        self._write(self._characters.add(token), is_accepted)

  def take(self, is_last: bool = False) -> Piece:
    """What is new and sure.

    Args:
      is_last: whether the text has ended.
    """
    if is_last and not self.is_stopped:
      self._write(self._characters.flush(), False)
    count = len(self._held)
    if not (is_last or self.is_stopped):
      count -= self._num_unsure()
    text, marks = self._held[:count], self._marks[:count]
    self._held, self._marks = self._held[count:], self._marks[count:]
    self._length += count
    logprobs = []
    if text or is_last or self.is_stopped:
      logprobs, self._logprobs = self._logprobs, []
    return Piece(text, _runs(marks), logprobs)

  def _write(self, new: str, is_accepted: bool) -> None:
    self._held += new
    self._marks += [is_accepted] * len(new)
    found = [at for s in self._stops if (at := self._held.find(s)) >= 0]
    if found:
      self.is_stopped = True
      self._held = self._held[: min(found)]
      self._marks = self._marks[: min(found)]

  def _num_unsure(self) -> int:
    """Characters at the end that may begin a stop string."""
    most = max(map(len, self._stops), default=1) - 1
    for count in range(min(most, len(self._held)), 0, -1):
      if any(s.startswith(self._held[-count:]) for s in self._stops):
        return count
    return 0

  def _logprob(self, token: int, i: int, logprobs: Logprobs) -> TokenLogprob:
    offset = self._length + len(self._held)

    def of(token, value, top):
      text, octets = self._vocabulary.named(token, self._characters)
      return TokenLogprob(text, octets, float(value), offset, top)

    places = range(self._top)
    top = [
      of(int(logprobs.top_tokens[i, k]), logprobs.top_raw[i, k], [])
      for k in places
    ]
    return of(token, logprobs.raw[i], top)


class Vocabulary:
  """A tokenizer, and what its tokens are called in answers."""

  def __init__(self, tokenizer: Any):
    self.tokenizer = tokenizer
    self._pieces = tokenizer.pieces()

  def named(
    self, token: int, before: Detokenizer
  ) -> tuple[str, list[int] | None]:
    """The text of a token, and its bytes."""
    piece = self._pieces[token] if token < len(self._pieces) else None
    octet = re.fullmatch('<0x([89A-F][0-9A-F])>', piece or '')
    if octet:  # a part of a character
      return f'bytes:\\x{octet[1].lower()}', [int(octet[1], 16)]
    text = before.next(token)
    if _CUT in text or before.is_waiting:
      return text, None
    return text, list(text.encode(errors='replace'))


def _runs(marks: Sequence[bool]) -> list[list[int]]:
  """[start, end] of each run of marks."""
  runs = []
  for i, is_marked in enumerate(marks):
    if is_marked and runs and runs[-1][1] == i:
      runs[-1][1] = i + 1
    elif is_marked:
      runs.append([i, i + 1])
  return runs
