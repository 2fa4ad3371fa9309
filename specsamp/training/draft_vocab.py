"""Choice of the tokens that a drafter with a small vocabulary can draft.

They are chosen once from the training text and kept in the workdir, because
rows of an LM head mean nothing without them.
"""

import json
import pathlib

import numpy as np

from specsamp.errors import UserError
from specsamp.utils import distributed, files

FILE = 'draft_vocab.json'


def most_frequent(tokens: np.ndarray, vocab_size: int, count: int):
  """Returns the most frequent tokens of a text in rising order: int [count].

  Ties go to the smaller token.

  Args:
    tokens: int, any shape.
    vocab_size: V; only tokens from 0 to below it are counted.
    count: number of tokens to return.
  """
  counts_v = np.bincount(tokens.ravel(), minlength=vocab_size)[:vocab_size]
  return np.sort(np.argsort(-counts_v, kind='stable')[:count])


def rows_of(tokens_k, vocab_size: int) -> np.ndarray:
  """Returns the row of each token, or K for other tokens: int32 [V]."""
  rows_v = np.full(vocab_size, len(tokens_k), np.int32)
  rows_v[tokens_k] = np.arange(len(tokens_k), dtype=np.int32)
  return rows_v


def choose_rows(
  folder: pathlib.Path, text: np.ndarray, vocab_size: int, count: int
) -> np.ndarray:
  """Returns the `rows_of` a run: from the file in its folder, or chosen now.

  All processes must call this.

  Args:
    folder: of the run.
    text: int, the training text.
    vocab_size: V.
    count: K, number of tokens to draft.

  Raises:
    UserError: the file cannot be read or has other tokens.
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
  except (OSError, ValueError) as error:
    raise UserError(f'draft vocabulary {path}: {error}') from None
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
