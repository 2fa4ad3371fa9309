"""Prompts to complete: held-out functions, or a user's own text."""

import ast
import hashlib
import io
import itertools
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from specsamp.data import corpora
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError
from specsamp.utils import files


class Prompt(NamedTuple):
  """What a text begins with.

  Attributes:
    name: where it is from.
    text: to go on from.
    head: of a function whose body is to follow, all of it from `def` on; ''
      of other texts.
  """

  name: str
  text: str
  head: str = ''


def functions(
  files: dict[str, str],
  tokenizer: Tokenizer,
  count: int,
  max_tokens: int,
  min_tokens: int = 1,
) -> list[Prompt]:
  """Beginnings of functions: what stands before the body, as far as it fits.

  Each prompt ends after a function's signature and docstring, and begins at
  the earliest line of the file that leaves it within `max_tokens`. Files take
  turns, in an order of their names' hashes.

  Args:
    files: path -> source text.
    tokenizer: counts the tokens, bos included.
    count: prompts wanted.
    max_tokens: in a prompt.
    min_tokens: functions that come sooner in their file are passed over.

  Raises:
    UserError: the files hold fewer functions that fit.
  """
  of_files = [
    _fitting(path, files[path], tokenizer, max_tokens, min_tokens)
    for path in shuffled(files)
  ]
  prompts = list(itertools.islice(in_turn(of_files), count))
  if len(prompts) < count:
    raise UserError(
      f'prompts: {count} asked for, but the files hold '
      f'{len(prompts)} functions that begin within {max_tokens} tokens'
    )
  return prompts


def shuffled(names: Iterable[str]) -> list[str]:
  """In an order of their hashes, the same on every machine."""
  return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


def held_out(tokenizer: Tokenizer, count: int, max_tokens: int) -> list[Prompt]:
  """`functions` of the files that the embedded pair was not trained on.

  They have more than half of `max_tokens`, so that a few programs serve all.
  """
  files = corpora.held_out_library()
  return functions(files, tokenizer, count, max_tokens, max_tokens // 2 + 1)


def training(tokenizer: Tokenizer, count: int, max_tokens: int) -> list[Prompt]:
  """As `held_out`, of the files that the embedded pair was trained on."""
  files, _ = corpora.split(corpora.python_library())
  return functions(files, tokenizer, count, max_tokens, max_tokens // 2 + 1)


def read(path: str) -> list[Prompt]:
  """A user's prompts, one a line of the file; '-' is standard input, whole."""
  if path.endswith(('.json', '.jsonl')):
    raise UserError(
      f'prompts {path}: got a file of JSON, expected lines of text; '
      f'--config.prompts={path} reads it'
    )
  try:
    if path == '-':
      if sys.stdin is None:
        raise UserError('prompts -: standard input is closed')
      texts = [sys.stdin.read()]
    else:
      texts = pathlib.Path(path).read_text(encoding='utf-8').split('\n')
  except OSError as error:
    raise UserError(f'prompts {path}: {error.strerror}') from None
  except UnicodeDecodeError:
    raise UserError(f'prompts {path}: not UTF-8 text') from None
  found = [
    Prompt(f'{path}:{line}', text)
    for line, text in enumerate(texts, start=1)
    if text.strip()
  ]
  if not found:
    raise UserError(f'prompts {path}: empty')
  return found


def read_json(
  path: str, tokenizer: Tokenizer, count: int, max_tokens: int
) -> list[Prompt]:
  """The first `count` prompts of a JSON list of texts that fit, or all.

  Raises:
    UserError: the file cannot be read, is no list of texts, or holds none that
      fits.
  """
  try:
    texts = files.read_json(path)
  except OSError as error:
    raise UserError(f'prompts {path}: {error.strerror}') from None
  except ValueError:  # no UTF-8 or no JSON
    texts = None
  if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
    raise UserError(f'prompts {path}: expected a JSON list of texts')
  found = [
    Prompt(f'{pathlib.Path(path).name}:{i}', text)
    for i, text in enumerate(texts)
    if text.strip() and len(tokenizer.encode(text)) <= max_tokens
  ]
  if not found:
    raise UserError(
      f'prompts {path}: none of its {len(texts)} texts has words and at most '
      f'{max_tokens} tokens'
    )
  return found[:count]


def in_turn(queues: list[Iterator]) -> Iterator:
  """The first of each, the second of each, ..; none before it is asked for."""
  while queues:
    left = []
    for queue in queues:
      for item in itertools.islice(queue, 1):
        yield item
        left.append(queue)
    queues = left


def _fitting(
  path: str, source: str, tokenizer: Tokenizer, most: int, least: int
) -> Iterator[Prompt]:
  """The prompts of a file, of least to most tokens; parsed at the first."""
  for name, before, head in _heads(source):
    if text := last_lines(before + head, tokenizer, most, least):
      yield Prompt(f'{path}:{name}', text, head)


def _heads(source: str):
  """(name, source before `def`, and from there to the body) of functions.

  Of every one with some body to it.
  """
  try:
    tree = ast.parse(source)
  except (SyntaxError, ValueError):  # ValueError: null characters
    return
  # Lines as `ast` counts them: `str.splitlines` also ends one at a form feed.
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
    if node.end_lineno - first >= 5:
      start = node.lineno - 1
      before, head = lines[:start], lines[start : first - 1]
      yield node.name, ''.join(before), ''.join(head)


def last_lines(text: str, tokenizer: Tokenizer, most: int, least: int):
  """The longest run of last lines within the budget, '' if it is too short."""
  lines = text.splitlines(keepends=True)
  best, size = '', 0
  for start in range(len(lines) - 1, -1, -1):
    tail = ''.join(lines[start:])
    tokens = len(tokenizer.encode(tail))
    if tokens > most:
      break
    best, size = tail, tokens
  return best if size >= least else ''
