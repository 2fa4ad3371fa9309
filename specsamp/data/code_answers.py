"""Held-out code with an answer that a small model can give: the rest of a line.

Three kinds: the brackets that close a line, the arguments of a call, and the
next line of a function that is written once more with a variable renamed.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from specsamp.data import code_edits, corpora, prompts
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError

# A line up to the last of its closing brackets, of two at least; and these.
_BRACKETS = re.compile(r'(\s*\w.*?[^\s()\[\]{}])([)\]}]{2,}:?)')
# A statement that calls something without a call in its arguments.
_CALL = re.compile(r'(\s+(?:return |[\w.]+ = )?[\w.]+\()([^()#]+\))')
_LEAST = 8  # lines of a prompt


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


def closing_brackets(
  tokenizer: Tokenizer, count: int, max_tokens: int
) -> list[Answered]:
  """Lines without the two or more brackets, maybe a colon, that end them.

  At most `count`, as of the others: there may be fewer.
  """
  return _cut_lines(_BRACKETS, tokenizer, count, max_tokens)


def calls(tokenizer: Tokenizer, count: int, max_tokens: int) -> list[Answered]:
  """Calls without their arguments, all on a line."""
  return _cut_lines(_CALL, tokenizer, count, max_tokens)


def copied_lines(
  tokenizer: Tokenizer, count: int, max_tokens: int
) -> list[Answered]:
  """Functions, each followed by half of itself with an argument renamed; the
  rest is the next line."""
  files = corpora.held_out_library()
  found = [
    Answered(edit.name, edit.text, edit.rest.strip().split('\n')[0].strip())
    for edit in code_edits.edits(files, tokenizer, max_tokens)
    if edit.rest.strip()
  ]
  return _checked(found[:count], max_tokens)


def _cut_lines(
  pattern: re.Pattern, tokenizer: Tokenizer, count: int, max_tokens: int
) -> list[Answered]:
  """Lines of held-out files, files taking turns, as `prompts.functions`."""
  files = corpora.held_out_library()
  of_files = [
    _cuts(path, files[path], pattern, tokenizer, max_tokens)
    for path in prompts.shuffled(files)
  ]
  found = list(itertools.islice(prompts.in_turn(of_files), count))
  return _checked(found, max_tokens)


def _cuts(
  path: str,
  source: str,
  pattern: re.Pattern,
  tokenizer: Tokenizer,
  max_tokens: int,
) -> Iterator[Answered]:
  """Of a file the lines of the pattern, the prompt as long as it may be."""
  lines = source.split('\n')
  for i in range(_LEAST, len(lines)):
    match = pattern.fullmatch(lines[i])
    if match:
      head = '\n'.join([*lines[:i], match[1]])
      text = prompts.last_lines(head, tokenizer, max_tokens, max_tokens // 2)
      if text:
        yield Answered(f'{path}:{i + 1}', text, match[2])


def _checked(found: list[Answered], max_tokens: int) -> list[Answered]:
  if not found:
    raise UserError(
      'prompts: the held-out files hold no such line, the prompt within '
      f'{max_tokens} tokens'
    )
  return found


KINDS: dict[str, Callable[[Tokenizer, int, int], list[Answered]]] = {
  'closing brackets': closing_brackets,
  'calls': calls,
  'copied lines': copied_lines,
}
