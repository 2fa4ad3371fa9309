"""Which tokens a drafter can draft that has fewer than its target.

They are chosen once, of the text that it is trained on, and kept beside the
run: rows of an LM head mean nothing without them.
"""

import json
import pathlib

import numpy as np

from specsamp.errors import UserError
from specsamp.utils import distributed, files

FILE = 'draft_vocab.json'


def most_frequent(tokens: np.ndarray, vocab_size: int, count: int):
  """The most frequent tokens of a text, in order: int [count].

  Of equally frequent ones, and of those that it has not, the first.

  Args:
    tokens: int, any shape.
    vocab_size: V; tokens from 0 to below it are counted.
    count: how many are wanted.
  """
  counts_v = np.bincount(tokens.ravel(), minlength=vocab_size)[:vocab_size]
  return np.sort(np.argsort(-counts_v, kind='stable')[:count])


def rows_of(tokens_k, vocab_size: int) -> np.ndarray:
  """Each token's row, or one past the last: int32 [V]."""
  rows_v = np.full(vocab_size, len(tokens_k), np.int32)
  rows_v[tokens_k] = np.arange(len(tokens_k), dtype=np.int32)
  return rows_v


def chosen(
  folder: pathlib.Path, text: np.ndarray, vocab_size: int, count: int
) -> np.ndarray:
  """The `rows_of` a run: those in its folder, or it is given some.

  Of several processes all must call this.

  Args:
    folder: of the run.
    text: int, what it is trained on.
    vocab_size: V.
    count: tokens that are to be drafted.

  Raises:
    UserError: the folder has others, or no tokens in that file.
  """
  path = folder / FILE

  def choose():
    if not path.exists():
      folder.mkdir(parents=True, exist_ok=True)
      tokens = most_frequent(text, vocab_size, count)
      files.replace(path, json.dumps(tokens.tolist()) + '\n')

  distributed.first_does(choose, f'draft vocabulary {path}')
  try:
    tokens = np.asarray(files.read_json(path))
  except OSError as error:
    raise UserError(f'draft vocabulary {path}: {error.strerror}') from None
  except ValueError as error:
    raise UserError(f'draft vocabulary {path}: corrupt: {error}') from None
  if (
    tokens.shape != (count,)
    or tokens.dtype != np.int64
    or not (np.diff(tokens, prepend=-1, append=vocab_size) > 0).all()
  ):
    raise UserError(
      f'draft vocabulary {path}: got {tokens.shape} values, expected {count} '
      f'tokens from 0 to {vocab_size - 1} in order; name another workdir'
    )
  return rows_of(tokens, vocab_size)
