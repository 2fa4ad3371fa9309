"""Held-out code whose next characters a small model can often get right."""

import functools
import re
from collections.abc import Callable, Iterator

from specsamp.data import corpora, prompts
from specsamp.data.prompts import Prompt
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError

# A statement that is one call on one line, without calls in its arguments, and
# the bracket that ends it.
_CALL = re.compile(
  r'(\s+(?:return |[\w.]+ = )?[\w.]+\([^()#]*[^\s()\[\]{},])(\))'
)
# The head of a block up to its last word, and the characters after it.
_HEAD = re.compile(
  r'(\s*(?:if|elif|for|while|with|except|def|class) .*'
  r'[^\s():\[\]\'"])(\)?:)'
)
_MIN_LINES = 8  # of a file before its first question
_NEAR = 12  # lines before a copied line that contain it twice
_MIN_CHARACTERS = 4  # of a copied line

# (lines, number) -> the part of the line in the prompt and the rest, or None.
Cut = Callable[[list[str], int], tuple[str, str] | None]


def _cut_by(pattern: re.Pattern) -> Cut:
  def cut(lines, number):
    match = pattern.fullmatch(lines[number])
    return match and (match[1], match[2])

  return cut


def _cut_copy(lines: list[str], number: int) -> tuple[str, str] | None:
  line = lines[number].strip()
  before = [near.strip() for near in lines[max(number - _NEAR, 0) : number]]
  is_copy = len(line) >= _MIN_CHARACTERS and before.count(line) >= 2
  # Lines of comments and texts do not begin with a letter.
  return ('', line) if is_copy and line[0].isalpha() and before[-1] else None


def questions(
  cut: Cut, tokenizer: Tokenizer, count: int, max_tokens: int
) -> list[Prompt]:
  """Returns at most `count` questions of held-out files, interleaved by file.

  The reference is the rest of the line in the file.

  Raises:
    UserError: every question has a prompt of more than `max_tokens`.
  """
  files = corpora.held_out_library()

  def of_file(path: str) -> Iterator[Prompt]:
    """Yields the questions of a file, each with the longest possible prompt."""
    lines = files[path].split('\n')
    for number in range(_MIN_LINES, len(lines)):
      if parts := cut(lines, number):
        begin, rest = parts
        head = '\n'.join([*lines[:number], begin])
        text = prompts.last_lines(head, tokenizer, max_tokens, max_tokens // 2)
        if text and (begin or rest in map(str.strip, text.split('\n'))):
          yield Prompt(f'{path}:{number + 1}', text, rest)

  questions = prompts.interleaved(of_file, files, count)
  if not questions:
    raise UserError(
      'prompts: the held-out files have no such line with a prompt of at most '
      f'{max_tokens} tokens'
    )
  return questions


# Each maps (tokenizer, count, max_tokens) to questions; see `questions`. A head
# loses its colon and the bracket before it; a copied line occurs twice in the
# dozen lines before.
KINDS: dict[str, Callable[[Tokenizer, int, int], list[Prompt]]] = {
  'ends of calls': functools.partial(questions, _cut_by(_CALL)),
  'heads of blocks': functools.partial(questions, _cut_by(_HEAD)),
  'copied lines': functools.partial(questions, _cut_copy),
}
