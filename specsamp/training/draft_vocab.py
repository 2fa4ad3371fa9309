"""Choice of the tokens that a drafter with a small vocabulary can draft.

The tokens are chosen once from the training text and kept in the workdir,
because the rows of an LM head mean nothing without them.
"""

import json
import pathlib

import numpy as np

from specsamp.utils import distributed, files

FILE = 'draft_vocab.json'


def rows_of(tokens_k, vocab_size: int) -> np.ndarray:
  """Returns the row of each token, or K for other tokens: int32 [V]."""
  rows_v = np.full(vocab_size, len(tokens_k), np.int32)
  rows_v[tokens_k] = np.arange(len(tokens_k), dtype=np.int32)
  return rows_v


def choose_rows(
  folder: pathlib.Path, text: np.ndarray, vocab_size: int, count: int
) -> np.ndarray:
  """Returns `rows_of` the most frequent tokens, or of tokens in the run's file.

  Ties go to the smaller token. All processes must call this.

  Args:
    folder: the run's workdir.
    text: int, the training text; only tokens below V are counted.
    vocab_size: V.
    count: K, number of tokens to draft.
  """
  path = folder / FILE

  def choose():
    if not path.exists():
      folder.mkdir(parents=True, exist_ok=True)
      counts_v = np.bincount(text.ravel(), minlength=vocab_size)[:vocab_size]
      tokens = np.sort(np.argsort(-counts_v, kind='stable')[:count])
      files.replace(path, json.dumps(tokens.tolist()) + '\n')

  distributed.first_does(choose, f'draft vocabulary {path}')
  with files.reading(f'draft vocabulary {path}'):
    tokens = np.asarray(files.read_json(path))
    if tokens.shape != (count,):
      raise ValueError(f'got {len(tokens)} tokens, expected {count}')
  return rows_of(tokens, vocab_size)
