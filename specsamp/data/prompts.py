"""Prompts to complete: heads of held-out functions, or texts of a user."""

import ast
import hashlib
import io
import itertools
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from specsamp.data import corpora
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError
from specsamp.utils import files

_MIN_BODY = 6  # lines of a function's body


class Prompt(NamedTuple):
  """A text to complete.

  Attributes:
    name: source of the text.
    text: the prompt.
    reference: text that a score needs: the rest of a line, or for the body of
      a function its lines from `def` on.
  """

  name: str
  text: str
  reference: str = ''


def functions(
  files: dict[str, str],
  tokenizer: Tokenizer,
  count: int,
  max_tokens: int,
  min_tokens: int = 1,
) -> list[Prompt]:
  """Returns prompts that end where the body of a function begins.

  A prompt ends after a function's signature and docstring, and begins at the
  earliest line of the file within `max_tokens`. Functions before the first
  `min_tokens` of their file are skipped. Files are interleaved, in the order of
  their names' hashes.

  Raises:
    UserError: the files have fewer functions that fit.
  """

  def of_file(path: str) -> Iterator[Prompt]:
    """Yields the prompts of a file, which is parsed for the first one."""
    for name, before, head in _heads(files[path]):
      if text := last_lines(before + head, tokenizer, max_tokens, min_tokens):
        yield Prompt(f'{path}:{name}', text, head)

  prompts = interleaved(of_file, files, count)
  if len(prompts) < count:
    raise UserError(
      f'prompts: {count} requested, but the files have '
      f'{len(prompts)} functions that begin within {max_tokens} tokens'
    )
  return prompts


def interleaved(
  of_file: Callable[[str], Iterator[Prompt]], paths: Iterable[str], count: int
) -> list[Prompt]:
  """Returns the first prompt of each file, then the second ones, up to a count.

  Files are in the order of their names' hashes, equal on every machine. Only
  the needed files are read.
  """
  by_hash = lambda path: hashlib.sha256(path.encode()).digest()
  queues = [of_file(path) for path in sorted(paths, key=by_hash)]

  def in_turn(queues):
    while queues:
      remaining = []
      for queue in queues:
        for prompt in itertools.islice(queue, 1):
          yield prompt
          remaining.append(queue)
      queues = remaining

  return list(itertools.islice(in_turn(queues), count))


def held_out(tokenizer: Tokenizer, count: int, max_tokens: int) -> list[Prompt]:
  """Returns `functions` of files that the embedded pair was not trained on.

  Prompts have more than half of `max_tokens`, so that few programs serve all.
  """
  files = corpora.held_out_library()
  return functions(files, tokenizer, count, max_tokens, max_tokens // 2 + 1)


def training(tokenizer: Tokenizer, count: int, max_tokens: int) -> list[Prompt]:
  """Returns `functions` of files that the embedded pair was trained on."""
  files, _ = corpora.split(corpora.python_library())
  return functions(files, tokenizer, count, max_tokens, max_tokens // 2 + 1)


def read(path: str) -> list[Prompt]:
  """Reads a prompt from each line of a file, or one from standard input, '-'.

  Raises:
    UserError: the file cannot be read, is JSON, or is empty.
  """
  if path.endswith(('.json', '.jsonl')):
    raise UserError(
      f'prompts {path}: got a file of JSON, expected lines of text; '
      f'launch/decode.py reads it as --config.prompts={path}'
    )
  if path == '-' and sys.stdin is None:
    raise UserError('prompts -: standard input is closed')
  with files.reading(f'prompts {path}'):
    if path == '-':
      texts = [sys.stdin.read()]
    else:
      texts = pathlib.Path(path).read_text(encoding='utf-8').split('\n')
  prompts = [
    Prompt(f'{path}:{line}', text)
    for line, text in enumerate(texts, start=1)
    if text.strip()
  ]
  if not prompts:
    raise UserError(f'prompts {path}: empty')
  return prompts


def read_json(
  path: str, tokenizer: Tokenizer, count: int, max_tokens: int
) -> list[Prompt]:
  """Reads the first `count` prompts that fit from a JSON list, or all of them.

  Raises:
    UserError: the file cannot be read, is not a list of texts, or none fits.
  """
  with files.reading(f'prompts {path}'):
    texts = files.read_json(path)
    if type(texts) is not list or not all(type(t) is str for t in texts):
      raise ValueError('expected a JSON list of texts')
  prompts = [
    Prompt(f'{pathlib.Path(path).name}:{i}', text)
    for i, text in enumerate(texts)
    if text.strip() and len(tokenizer.encode(text)) <= max_tokens
  ]
  if not prompts:
    raise UserError(
      f'prompts {path}: none of its {len(texts)} texts has words and at most '
      f'{max_tokens} tokens'
    )
  return prompts[:count]


def _heads(source: str):
  """Yields (name, source before `def`, source from `def` to the body)."""
  try:
    tree = ast.parse(source)
  except (SyntaxError, ValueError):  # ValueError: null characters
    return
  # `ast` does not count form feeds as ends of lines; `str.splitlines` does.
  lines = io.StringIO(source, newline=None).readlines()
  for node in ast.walk(tree):
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
      continue
    body = node.body
    if ast.get_docstring(node) is not None:
      body = body[1:]
    if not body:
      continue
    # A decorated statement begins at its first decorator.
    decorators = getattr(body[0], 'decorator_list', [])
    first = min(part.lineno for part in [body[0], *decorators])
    if node.end_lineno - first + 1 >= _MIN_BODY:
      start = node.lineno - 1
      before, head = lines[:start], lines[start : first - 1]
      yield node.name, ''.join(before), ''.join(head)


def last_lines(
  text: str, tokenizer: Tokenizer, max_tokens: int, min_tokens: int
) -> str:
  """Returns the longest run of last lines that fits, or '' if too short."""
  lines = text.splitlines(keepends=True)
  longest, size = '', 0
  for start in range(len(lines) - 1, -1, -1):
    tail = ''.join(lines[start:])
    count = len(tokenizer.encode(tail))
    if count > max_tokens:
      break
    longest, size = tail, count
  return longest if size >= min_tokens else ''
