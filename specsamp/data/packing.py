"""Token streams cut into batches, each a pure function of (seed, step)."""

import dataclasses
from collections.abc import Iterable

import numpy as np

from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError


def tokenize(texts: Iterable[str], tokenizer: Tokenizer) -> np.ndarray:
  """All documents in a row, each between its bos and eos; int32 [tokens]."""
  ids = [tokenizer.encode(text, eos=True) for text in texts]
  return np.concatenate([np.asarray(i, np.int32) for i in ids])


@dataclasses.dataclass(frozen=True)
class Packed:
  """Packed training sequences.

  Every epoch cuts the stream at another phase into windows and shuffles them;
  `batch(step)` depends on nothing but the fields and the step, so a resumed
  run sees what it would have seen.

  Attributes:
    tokens: int32 [tokens].
    batch_size: B.
    length: T, inputs in a sequence.
    seed: of the phases and the shuffles.
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
  def batches_per_epoch(self) -> int:
    # One window is given up to the phase, one token to the last label.
    return ((len(self.tokens) - 1) // self.length - 1) // self.batch_size

  def batch(self, step: int) -> dict[str, np.ndarray]:
    """`tokens`, int32 [B, T + 1]: inputs are [:, :-1], labels [:, 1:]."""
    epoch, index = divmod(step, self.batches_per_epoch)
    rng = np.random.default_rng((self.seed, epoch))
    phase = rng.integers(self.length)
    windows = rng.permutation((len(self.tokens) - 1) // self.length - 1)
    chosen = windows[index * self.batch_size :][: self.batch_size]
    return self._cut(phase + chosen * self.length)

  def in_order(self, num_batches: int) -> Iterable[dict[str, np.ndarray]]:
    """The first batches unshuffled, for validation."""
    for index in range(min(num_batches, self.batches_per_epoch)):
      starts = np.arange(self.batch_size) + index * self.batch_size
      yield self._cut(starts * self.length)

  def _cut(self, starts_b: np.ndarray) -> dict[str, np.ndarray]:
    places_bt = starts_b[:, None] + np.arange(self.length + 1)[None, :]
    return {'tokens': self.tokens[places_bt]}


def windows(tokens: np.ndarray, length: int) -> np.ndarray:
  """The stream cut into rows of T + 1: int32 [N, T + 1], the rest left out.

  Each row begins with the last token of the one before, its label there.
  """
  count = (len(tokens) - 1) // length
  starts = np.arange(count) * length
  return tokens[starts[:, None] + np.arange(length + 1)[None, :]]


@dataclasses.dataclass(frozen=True)
class Rows:
  """Sequences that stay as they are, shuffled anew in each epoch.

  What `batch` and `in_order` return are the rows' numbers, int [B], for
  whatever belongs to a row; they depend on the fields and the step alone.

  Attributes:
    tokens: int32 [N, T + 1].
    batch_size: B.
    seed: of the shuffles.
  """

  tokens: np.ndarray
  batch_size: int
  seed: int = 0

  def __post_init__(self):
    if self.batches_per_epoch < 1:
      raise UserError(
        f'corpus: {len(self.tokens)} sequences, but a batch takes '
        f'{self.batch_size}'
      )

  @property
  def batches_per_epoch(self) -> int:
    return len(self.tokens) // self.batch_size

  def batch(self, step: int) -> np.ndarray:
    """Numbers of the rows of a step of training."""
    epoch, index = divmod(step, self.batches_per_epoch)
    rng = np.random.default_rng((self.seed, epoch))
    chosen = rng.permutation(len(self.tokens))
    return chosen[index * self.batch_size :][: self.batch_size]

  def in_order(self, num_batches: int) -> Iterable[np.ndarray]:
    """The first batches unshuffled, for validation."""
    for index in range(min(num_batches, self.batches_per_epoch)):
      yield np.arange(self.batch_size) + index * self.batch_size
