"""Held-out code with an answer that a small model can give: the rest of a line.

Three kinds: the bracket that ends a call, what ends the head of a block, and
lines that have come before.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from specsamp.data import corpora, prompts
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError

# A statement that is a call on one line, none in its arguments; and its end.
_CALL = re.compile(
  r'(\s+(?:return |[\w.]+ = )?[\w.]+\([^()#]*[^\s()\[\]{},])(\))'
)
# The head of a block up to its last word; and what is left of it.
_HEAD = re.compile(
  r'(\s*(?:if|elif|for|while|with|except|def|class) .*'
  r'[^\s():\[\]\'"])(\)?:)'
)
_LEAST = 8  # lines of a file before the first that is asked for
_NEAR = 12  # lines, of which two are what a copied line is
_SHORTEST = 4  # characters of a copied line

# (lines, number) -> what of the line stands in the prompt, and the rest; None
# where it is not asked for.
Cut = Callable[[list[str], int], tuple[str, str] | None]


class Answered(NamedTuple):
  """A prompt and what follows it.

  Attributes:
    name: of the file and the line.
    text: the prompt.
    rest: what the file goes on with, to the end of a line.
  """

  name: str
  text: str
  rest: str


def ends_of_calls(
  tokenizer: Tokenizer, count: int, max_tokens: int
) -> list[Answered]:
  """Calls without the bracket that ends them and the line.

  At most `count`, as of the others: there may be fewer.
  """
  return _cut_lines(_of_pattern(_CALL), tokenizer, count, max_tokens)


def heads_of_blocks(
  tokenizer: Tokenizer, count: int, max_tokens: int
) -> list[Answered]:
  """Heads of statements without their colon, and the bracket before it."""
  return _cut_lines(_of_pattern(_HEAD), tokenizer, count, max_tokens)


def copied_lines(
  tokenizer: Tokenizer, count: int, max_tokens: int
) -> list[Answered]:
  """Whole lines that stand in the prompt, and twice in the dozen before."""
  return _cut_lines(_of_copies, tokenizer, count, max_tokens)


def _of_pattern(pattern: re.Pattern) -> Cut:
  def cut(lines, number):
    match = pattern.fullmatch(lines[number])
    return match and (match[1], match[2])

  return cut


def _of_copies(lines: list[str], number: int) -> tuple[str, str] | None:
  line = lines[number].strip()
  before = [each.strip() for each in lines[max(number - _NEAR, 0) : number]]
  is_copy = len(line) >= _SHORTEST and before.count(line) >= 2
  # Nothing of comments and texts.
  return ('', line) if is_copy and line[0].isalpha() and before[-1] else None


def _cut_lines(
  cut: Cut, tokenizer: Tokenizer, count: int, max_tokens: int
) -> list[Answered]:
  """Lines of held-out files, files taking turns, as `prompts.functions`."""
  files = corpora.held_out_library()
  of_files = [
    _cuts(path, files[path], cut, tokenizer, max_tokens)
    for path in prompts.shuffled(files)
  ]
  found = list(itertools.islice(prompts.in_turn(of_files), count))
  if not found:
    raise UserError(
      'prompts: the held-out files hold no such line, the prompt within '
      f'{max_tokens} tokens'
    )
  return found


def _cuts(
  path: str, source: str, cut: Cut, tokenizer: Tokenizer, max_tokens: int
) -> Iterator[Answered]:
  """Of a file what is cut, the prompt as long as it may be."""
  lines = source.split('\n')
  for number in range(_LEAST, len(lines)):
    found = cut(lines, number)
    if found:
      begun, rest = found
      head = '\n'.join([*lines[:number], begun])
      text = prompts.last_lines(head, tokenizer, max_tokens, max_tokens // 2)
      if text and (begun or rest in map(str.strip, text.split('\n'))):
        yield Answered(f'{path}:{number + 1}', text, rest)


KINDS: dict[str, Callable[[Tokenizer, int, int], list[Answered]]] = {
  'ends of calls': ends_of_calls,
  'heads of blocks': heads_of_blocks,
  'copied lines': copied_lines,
}
