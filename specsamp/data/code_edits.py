"""Prompts whose completion repeats them: edits of code.

Held-out files give two kinds: a function followed by the beginning of the same
function with a variable renamed, and the most repetitive part of a module.
"""

import ast
import io
import itertools
import tokenize

from specsamp.data import corpora
from specsamp.data.prompts import Prompt
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError

_REPEATED = 5  # tokens that count as a repetition
_STEP = 10  # lines from one window of a module to the next
_MAX_LINES = 63  # of a window


def code_edits(
  tokenizer: Tokenizer, count: int, max_tokens: int
) -> list[Prompt]:
  """Returns `count` prompts of both kinds, interleaved, from held-out files.

  A prompt has more than half of `max_tokens` tokens, and at most `max_tokens`.

  Raises:
    UserError: the held-out files have fewer prompts.
  """
  files = corpora.held_out_library()
  kinds = [
    repetitive(files, tokenizer, max_tokens),
    renames(files, tokenizer, max_tokens),
  ]
  if len(kinds[0]) < (count + 1) // 2 or len(kinds[1]) < count // 2:
    raise UserError(
      f'prompts: {count} code edits requested, but the held-out files have '
      f'{" and ".join(map(str, map(len, kinds)))} within {max_tokens} tokens'
    )
  return [kinds[i % 2][i // 2] for i in range(count)]


def repetitive(
  files: dict[str, str], tokenizer: Tokenizer, max_tokens: int
) -> list[Prompt]:
  """Returns the window of lines of each file that repeats itself the most.

  The most repetitive file comes first.
  """
  best = []
  for path, text in files.items():
    lines = _lines(text)
    windows = []
    for first in range(0, len(lines), _STEP):
      ahead = lines[first : first + _MAX_LINES]
      window = ''.join(ahead[: _num_fitting(ahead, tokenizer, max_tokens)])
      ids = tokenizer.encode(window)
      if len(ids) > max_tokens // 2:
        windows.append((_repeated_share(ids), window))
    if windows:
      share, window = max(windows)
      best.append((-share, path, window))
  return [Prompt(f'{path}: go on', text) for _, path, text in sorted(best)]


def _num_fitting(lines, tokenizer: Tokenizer, max_tokens: int) -> int:
  """Returns the number of first lines with at most `max_tokens` tokens."""
  fits = lambda n: len(tokenizer.encode(''.join(lines[:n]))) <= max_tokens
  # The sum of the lines' token counts is close to the count of their text, and
  # a bisection without it takes twice as long.
  sums = itertools.accumulate(
    len(tokenizer.encode(line, bos=False)) for line in lines
  )
  count = sum(1 for _ in itertools.takewhile(lambda n: n <= max_tokens, sums))
  while count and not fits(count):
    count -= 1
  while count < len(lines) and fits(count + 1):
    count += 1
  return count


def _repeated_share(ids: list[int]) -> float:
  """Returns the share of n-grams that occurred before."""
  grams = list(zip(*(ids[i:] for i in range(_REPEATED)), strict=False))
  return 1 - len(set(grams)) / max(len(grams), 1)


def renames(
  files: dict[str, str], tokenizer: Tokenizer, max_tokens: int
) -> list[Prompt]:
  """Returns prompts: functions, then their first half with new names."""
  edits = []
  for path in sorted(files):
    for node, source in _functions(files[path]):
      names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
      arguments = [argument.arg for argument in node.args.args]
      old = max(arguments, key=names.count, default=None)
      if old is None or names.count(old) < 2:
        continue
      edited = _lines(_renamed(source, old, f'new_{old}'))
      begin = ''.join(edited[: len(edited) // 2])
      text = f'{source}\n\n# The same, {old} renamed to new_{old}.\n{begin}'
      if max_tokens // 2 < len(tokenizer.encode(text)) <= max_tokens:
        edits.append(Prompt(f'{path}: rename {old} of {node.name}', text))
        break  # one for each file
  return edits


def _lines(text: str) -> list[str]:
  """Splits lines as `tokenize` does; `str.splitlines` splits at form feeds."""
  return io.StringIO(text).readlines()


def _functions(source: str):
  """Yields (node, source) of a module's functions at top level."""
  try:
    body = ast.parse(source).body
  except (SyntaxError, ValueError):  # ValueError: null characters
    return
  # `ast.get_source_segment` would split the whole module every time.
  lines = _lines(source)
  for node in body:
    if isinstance(node, ast.FunctionDef):
      *above, last = lines[node.lineno - 1 : node.end_lineno]
      last = last.encode()[: node.end_col_offset].decode()
      yield node, f'{"".join(above)}{last}\n'


def _renamed(source: str, old: str, new: str) -> str:
  """Returns source with a name replaced, but not in strings and comments."""
  tokens = tokenize.generate_tokens(io.StringIO(source).readline)
  lines = _lines(source)
  # From the end, so that the positions of the other tokens stay valid.
  for token in reversed(list(tokens)):
    if token.type == tokenize.NAME and token.string == old:
      (row, begin), (_, end) = token.start, token.end
      line = lines[row - 1]
      lines[row - 1] = line[:begin] + new + line[end:]
  return ''.join(lines)
