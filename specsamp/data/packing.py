"""Training batches cut from token streams, as pure functions of the step."""

import dataclasses
from collections.abc import Iterable

import numpy as np

from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError


def tokenize(texts: Iterable[str], tokenizer: Tokenizer) -> np.ndarray:
  """Concatenates the documents, each with bos and eos: int32 [tokens]."""
  ids = [tokenizer.encode(text, eos=True) for text in texts]
  return np.concatenate([np.asarray(i, np.int32) for i in ids])


@dataclasses.dataclass(frozen=True)
class Packed:
  """Training sequences, cut at a new offset and shuffled in every epoch.

  A batch depends only on the fields and the step, so a resumed run repeats it.

  Attributes:
    tokens: int32 [tokens].
    batch_size: B.
    length: T, inputs of a sequence.
    seed: seed of the offsets and the shuffles.
  """

  tokens: np.ndarray
  batch_size: int
  length: int
  seed: int = 0

  def __post_init__(self):
    if self.batches_per_epoch < 1:
      raise UserError(
        f'corpus: {len(self.tokens)} tokens, but a batch takes '
        f'{self.batch_size} x {self.length}'
      )

  @property
  def _num_windows(self) -> int:
    # The phase takes one window, the last label one token.
    return (len(self.tokens) - 1) // self.length - 1

  @property
  def batches_per_epoch(self) -> int:
    return self._num_windows // self.batch_size

  def batch(self, step: int) -> dict[str, np.ndarray]:
    """Returns `tokens`, int32 [B, T + 1]: inputs [:, :-1], labels [:, 1:]."""
    epoch, index = divmod(step, self.batches_per_epoch)
    rng = np.random.default_rng((self.seed, epoch))
    phase = rng.integers(self.length)
    windows = rng.permutation(self._num_windows)
    chosen = windows[index * self.batch_size :][: self.batch_size]
    starts = phase + chosen * self.length
    return {'tokens': _rows(self.tokens, starts, self.length)}

  def in_order(self, num_batches: int) -> Iterable[dict[str, np.ndarray]]:
    """Yields the first batches without a shuffle, for validation."""
    for index in range(min(num_batches, self.batches_per_epoch)):
      rows = np.arange(self.batch_size) + index * self.batch_size
      yield {'tokens': _rows(self.tokens, rows * self.length, self.length)}


def windows(tokens: np.ndarray, length: int) -> np.ndarray:
  """Cuts a stream into rows, int32 [N, T + 1], and drops the remainder.

  The last token of a row is the first one of the next.
  """
  count = (len(tokens) - 1) // length
  return _rows(tokens, np.arange(count) * length, length)


def _rows(tokens: np.ndarray, starts_n: np.ndarray, length: int) -> np.ndarray:
  return tokens[starts_n[:, None] + np.arange(length + 1)[None, :]]


@dataclasses.dataclass(frozen=True)
class Rows:
  """Sequences with fixed borders, shuffled again in each epoch.

  `batch` and `in_order` return row numbers, int [B], which index anything that
  is stored per row.

  Attributes:
    tokens: int32 [N, T + 1].
    batch_size: B.
    seed: seed of the shuffles.
  """

  tokens: np.ndarray
  batch_size: int
  seed: int = 0

  def __post_init__(self):
    if self.batches_per_epoch < 1:
      raise UserError(
        f'data: {len(self.tokens)} sequences, but a batch takes '
        f'{self.batch_size}'
      )

  @property
  def batches_per_epoch(self) -> int:
    return len(self.tokens) // self.batch_size

  def batch(self, step: int) -> np.ndarray:
    """Returns the row numbers of a training step."""
    epoch, index = divmod(step, self.batches_per_epoch)
    rng = np.random.default_rng((self.seed, epoch))
    chosen = rng.permutation(len(self.tokens))
    return chosen[index * self.batch_size :][: self.batch_size]

  def in_order(self, num_batches: int) -> Iterable[np.ndarray]:
    """Yields the first batches without a shuffle, for validation."""
    for index in range(min(num_batches, self.batches_per_epoch)):
      yield np.arange(self.batch_size) + index * self.batch_size
