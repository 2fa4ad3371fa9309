"""Text of a completion while it grows, cut at stop strings.

The text does not depend on the number of tokens in a burst: tokens are added
one by one.
"""

import functools
import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from specsamp.decoding.state import Logprobs

_INCOMPLETE = '\N{REPLACEMENT CHARACTER}'  # decoded from part of a character
_WINDOW = 16  # tokens of a prompt that give context to the first new one
_MAX_INCOMPLETE = 8  # tokens; the longest character has 4 bytes


class TokenLogprob(NamedTuple):
  """Log-probability of a token under the target at temperature 1.

  Attributes:
    text: text that the token adds.
    bytes: bytes of the text; None for a part of a character, if the vocabulary
      does not have its bytes.
    logprob: natural logarithm.
    offset: number of characters of the completion before the token.
    top: the most probable tokens at its position, without `top`.
  """

  text: str
  bytes: list[int] | None
  logprob: float
  offset: int
  top: list['TokenLogprob']


class Delta(NamedTuple):
  """New part of a completion's text, which no stop string can take back.

  Attributes:
    accepted: [start, end] of the drafted characters.
    logprobs: log-probabilities of the new tokens, if they are requested.
  """

  text: str
  accepted: list[list[int]]
  logprobs: list[TokenLogprob]


@functools.lru_cache(maxsize=1)
def _pieces(tokenizer: Any) -> list[str | None]:
  return tokenizer.pieces()


class Detokenizer:
  """Converter of tokens to characters, which holds back incomplete ones."""

  def __init__(self, tokenizer: Any, prompt: Sequence[int]):
    self._tokenizer = tokenizer
    # A window, because decoding the whole prompt for each token would take
    # longer and longer. It needs some text: the first token of a text may lose
    # its space.
    context = list(prompt[-_WINDOW:])
    if not tokenizer.decode(context):
      context = list(prompt)
    self._pieces = _pieces(tokenizer)
    self._tokens, self._end = context, len(context)  # tokens from `end` wait

  def add(self, token: int) -> str:
    """Returns the new characters after one more token."""
    self._tokens.append(token)
    new = self.flush()
    if not new:
      return ''
    num_waiting = len(self._tokens) - self._end
    if new.endswith(_INCOMPLETE) and num_waiting < _MAX_INCOMPLETE:
      return ''
    del self._tokens[: self._end]
    self._end = len(self._tokens)
    return new

  def flush(self) -> str:
    """Returns the characters of the waiting tokens, even if incomplete."""
    return self._tokenizer.decode(
      self._tokens[self._end :], self._tokens[: self._end]
    )

  def named(self, token: int) -> tuple[str, list[int] | None]:
    """Returns the text and the bytes of a token, if it came next."""
    piece = self._pieces[token] if token < len(self._pieces) else None
    byte = re.fullmatch('<0x([89A-F][0-9A-F])>', piece or '')
    if byte:  # part of a character
      return f'bytes:\\x{byte[1].lower()}', [int(byte[1], 16)]
    text = self._tokenizer.decode([token], self._tokens)
    if _INCOMPLETE in text or self.flush():
      return text, None
    return text, list(text.encode(errors='replace'))


class CompletionText:
  """Text of one completion.

  Attributes:
    num_tokens: tokens so far, up to the one that completes a stop string.
    num_accepted: accepted draft tokens among them.
    is_stopped: True if a stop string was found.
  """

  def __init__(
    self,
    tokenizer: Any,
    prompt: Sequence[int],
    stop_tokens: Collection[int],
    stops: Sequence[str],
    num_alternatives: int | None,
  ):
    """Starts an empty text, which stop tokens or the strings `stops` end.

    Tokens have log-probabilities unless `num_alternatives` is None.
    """
    self._detokenizer = Detokenizer(tokenizer, prompt)
    self._stop_tokens = stop_tokens
    self._stops = stops
    self._num_alternatives = num_alternatives
    # Characters that are not taken yet.
    self._held, self._marks = '', ''  # '1' for a drafted character
    self._num_taken = 0  # characters
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
    """Adds the tokens of a burst, accepted draft tokens first."""
    for i, token in enumerate(tokens):
      if self.is_stopped:
        return
      is_accepted = i < num_accepted
      self.num_tokens += 1
      self.num_accepted += is_accepted
      if self._num_alternatives is not None:
        self._add_logprob(token, i, logprobs)
      if token not in self._stop_tokens:
        self._write(self._detokenizer.add(token), is_accepted)

  def take(self, is_last: bool = False) -> Delta:
    """Returns the new final characters, or all new ones at the end."""
    if is_last and not self.is_stopped:
      self._write(self._detokenizer.flush(), False)
    count = len(self._held)
    if not (is_last or self.is_stopped):
      count -= self._num_unsure()
    text, marks = self._held[:count], self._marks[:count]
    self._held, self._marks = self._held[count:], self._marks[count:]
    self._num_taken += count
    logprobs = []
    if text or is_last or self.is_stopped:
      logprobs, self._logprobs = self._logprobs, []
    accepted = [list(run.span()) for run in re.finditer('1+', marks)]
    return Delta(text, accepted, logprobs)

  def _write(self, new: str, is_accepted: bool) -> None:
    self._held += new
    self._marks += '01'[is_accepted] * len(new)
    starts = [at for s in self._stops if (at := self._held.find(s)) >= 0]
    if starts:
      self.is_stopped = True
      self._held = self._held[: min(starts)]
      self._marks = self._marks[: min(starts)]

  def _num_unsure(self) -> int:
    """Returns the number of last characters that may begin a stop string."""
    longest = max(map(len, self._stops), default=1) - 1
    for count in range(min(longest, len(self._held)), 0, -1):
      if any(s.startswith(self._held[-count:]) for s in self._stops):
        return count
    return 0

  def _add_logprob(self, token: int, i: int, logprobs: Logprobs) -> None:
    offset = self._num_taken + len(self._held)

    def token_logprob(token, logprob, top):
      text, octets = self._detokenizer.named(token)
      return TokenLogprob(text, octets, float(logprob), offset, top)

    top = [
      token_logprob(int(logprobs.top_tokens[i, k]), logprobs.top_raw[i, k], [])
      for k in range(self._num_alternatives)
    ]
    self._logprobs.append(token_logprob(token, logprobs.raw[i], top))
