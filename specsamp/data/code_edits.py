"""Prompts whose completion repeats them: edits of code.

Two kinds, of held-out files: a function followed by the beginning of itself
with a variable renamed, and the most repetitive stretch of a module.
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
_STEP = 10  # lines from one stretch of a module to the next
_LONGEST = 63  # lines of a stretch


def code_edits(
  tokenizer: Tokenizer, count: int, max_tokens: int
) -> list[Prompt]:
  """Prompts of both kinds by turns, of files not trained on.

  They are chosen by what they are, not by what a model makes of them.

  Args:
    tokenizer: counts the tokens.
    count: prompts wanted.
    max_tokens: in each of them.

  Raises:
    UserError: the held-out files hold fewer.
  """
  files = corpora.held_out_library()
  kinds = [
    repetitive(files, tokenizer, max_tokens),
    renames(files, tokenizer, max_tokens),
  ]
  found = [kinds[i % 2][i // 2 : i // 2 + 1] for i in range(count)]
  if not all(found):
    raise UserError(
      f'prompts: {count} code edits asked for, but the held-out files hold '
      f'{" and ".join(map(str, map(len, kinds)))} within {max_tokens} tokens'
    )
  return sum(found, [])


def repetitive(
  files: dict[str, str], tokenizer: Tokenizer, max_tokens: int
) -> list[Prompt]:
  """Of each file the stretch of lines that repeats itself the most.

  The most repetitive file comes first.

  Args:
    files: path -> source text.
    tokenizer: counts the tokens.
    max_tokens: in a stretch, which has more than half of them.
  """
  found = []
  for path, text in files.items():
    lines = _lines(text)
    stretches = []
    for first in range(0, len(lines), _STEP):
      ahead = lines[first : first + _LONGEST]
      stretch = ''.join(ahead[: _that_fit(ahead, tokenizer, max_tokens)])
      ids = tokenizer.encode(stretch)
      if len(ids) > max_tokens // 2:
        stretches.append((_said_before(ids), stretch))
    if stretches:
      share, stretch = max(stretches)
      found.append((-share, path, stretch))
  return [Prompt(f'{path}: go on', text) for _, path, text in sorted(found)]


def _that_fit(lines: list[str], tokenizer: Tokenizer, max_tokens: int) -> int:
  """How many lines from the first on are at most so many tokens."""
  fits = lambda n: len(tokenizer.encode(''.join(lines[:n]))) <= max_tokens
  # What a line alone takes is near what it takes among others.
  alone = itertools.accumulate(
    len(tokenizer.encode(line, bos=False)) for line in lines
  )
  count = sum(1 for _ in itertools.takewhile(lambda n: n <= max_tokens, alone))
  while count and not fits(count):
    count -= 1
  while count < len(lines) and fits(count + 1):
    count += 1
  return count


def _said_before(ids: list[int]) -> float:
  """The share of n-grams that have come before."""
  grams = list(zip(*(ids[i:] for i in range(_REPEATED)), strict=False))
  return 1 - len(set(grams)) / max(len(grams), 1)


def renames(
  files: dict[str, str], tokenizer: Tokenizer, max_tokens: int
) -> list[Prompt]:
  """Functions, each followed by its first lines with an argument renamed.

  Args:
    files: path -> source text.
    tokenizer: counts the tokens.
    max_tokens: in a prompt, which has more than half of them.
  """
  found = []
  for path in sorted(files):
    for node, source in _functions(files[path]):
      names = [arg.arg for arg in node.args.args]
      uses = lambda name, node=node: sum(
        isinstance(part, ast.Name) and part.id == name
        for part in ast.walk(node)
      )
      old = max(names, key=uses, default=None)
      if old is None or uses(old) < 2:
        continue
      edited = _lines(_renamed(source, old, f'new_{old}'))
      begun = ''.join(edited[: len(edited) // 2])
      text = f'{source}\n\n# The same, {old} renamed to new_{old}.\n{begun}'
      if max_tokens // 2 < len(tokenizer.encode(text)) <= max_tokens:
        found.append(Prompt(f'{path}: rename {old} of {node.name}', text))
        break  # one of a file
  return found


def _lines(text: str) -> list[str]:
  """Lines as `tokenize` counts them; `str.splitlines` ends one at a form feed
  too."""
  return io.StringIO(text).readlines()


def _functions(source: str):
  """Functions of a module, not those inside of classes or functions."""
  try:
    body = ast.parse(source).body
  except (SyntaxError, ValueError):  # ValueError: null characters
    return
  # `ast.get_source_segment` would go through the whole module every time.
  lines = _lines(source)
  for node in body:
    if isinstance(node, ast.FunctionDef):
      *above, last = lines[node.lineno - 1 : node.end_lineno]
      last = last.encode()[: node.end_col_offset].decode()
      yield node, f'{"".join(above)}{last}\n'


def _renamed(source: str, old: str, new: str) -> str:
  """Source with one name in place of another; texts and comments stay."""
  tokens = tokenize.generate_tokens(io.StringIO(source).readline)
  lines = _lines(source)
  # From the end, so that places further on stay right.
  for token in reversed(list(tokens)):
    if token.type == tokenize.NAME and token.string == old:
      (row, begin), (_, end) = token.start, token.end
      line = lines[row - 1]
      lines[row - 1] = line[:begin] + new + line[end:]
  return ''.join(lines)
