"""Batches are pure functions of the seed and the step."""

import numpy as np
import pytest

from specsamp.data import packing
from specsamp.data.packing import Packed, Rows
from specsamp.errors import UserError

# Tokens that are their own positions: a batch shows where it was cut.
_STREAM = np.arange(1003, dtype=np.int32)


def test_documents_have_bos_and_eos(tokenizer):
  got = packing.tokenize(['x = 1', '', 'y'], tokenizer)
  assert got.dtype == np.int32
  expected = []
  for text in ('x = 1', '', 'y'):
    ids = tokenizer.encode(text, bos=False)
    expected += [tokenizer.bos_id, *ids, tokenizer.eos_id]
  assert got.tolist() == expected


def test_a_batch_depends_on_the_step_alone():
  data, again = Packed(_STREAM, 4, 10, seed=3), Packed(_STREAM, 4, 10, seed=3)
  expected = {step: data.batch(step)['tokens'] for step in (0, 3, 24, 70)}
  for step in (70, 3, 24, 0, 3):
    batch = again.batch(step)['tokens']
    np.testing.assert_array_equal(batch, expected[step])
    assert batch.shape == (4, 11) and batch.dtype == np.int32
    np.testing.assert_array_equal(batch[:, 1:], batch[:, :-1] + 1)


@pytest.mark.parametrize('size', [1003, 1000, 1001, 101])
def test_an_epoch_covers_every_window_once(size):
  seen, phases = [], set()
  for seed in (0, 1):
    data = Packed(_STREAM[:size], 4, 10, seed)
    per_epoch = data.batches_per_epoch
    for epoch in range(30):
      steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
      starts = np.stack([data.batch(i)['tokens'][:, 0] for i in steps]).ravel()
      phases.add(int(starts[0] % 10))
      assert set(starts % 10) == {starts[0] % 10}  # windows do not overlap
      assert len(set(starts)) == len(starts)
      assert starts.max() + 10 < size
      # All windows but those that do not fill a batch.
      assert len(starts) > (size - 1) // 10 - 1 - 4
      seen.append(tuple(starts))
  assert len(set(seen)) == len(seen)  # epochs and seeds differ
  assert len(phases) > 5  # no fixed borders


def test_validation_is_in_order():
  data = Packed(_STREAM, 4, 10, seed=5)
  batches = list(data.in_order(2))
  starts = np.concatenate([batch['tokens'] for batch in batches])[:, 0]
  np.testing.assert_array_equal(starts, np.arange(8) * 10)
  assert len(list(data.in_order(10**6))) == data.batches_per_epoch


def test_corpora_too_small_for_a_batch():
  assert Packed(_STREAM[:51], 4, 10).batch(7)['tokens'].shape == (4, 11)
  with pytest.raises(UserError, match='50 tokens, but a batch takes 4 x 10'):
    Packed(_STREAM[:50], 4, 10)
  with pytest.raises(UserError, match='2 sequences, but a batch takes 3'):
    Rows(np.zeros((2, 5), np.int32), 3)


@pytest.mark.parametrize(('size', 'count'), [(101, 10), (100, 9), (110, 10)])
def test_windows_share_a_token_with_the_next(size, count):
  rows = packing.windows(_STREAM[:size], 10)
  assert rows.dtype == np.int32
  np.testing.assert_array_equal(
    rows, np.arange(count)[:, None] * 10 + np.arange(11)
  )


def test_an_epoch_covers_every_row_once():
  rows = Rows(np.zeros((11, 5), np.int32), 3)
  assert rows.batches_per_epoch == 3
  epochs = [
    np.concatenate([rows.batch(3 * epoch + i) for i in range(3)]).tolist()
    for epoch in range(8)
  ]
  for epoch in epochs:
    assert len(set(epoch)) == 9 and set(epoch) <= set(range(11))
  assert set().union(*epochs) == set(range(11))  # the left-out rows differ
  assert len(set(map(tuple, epochs))) == 8
  other = Rows(np.zeros((11, 5), np.int32), 3, seed=1)
  assert other.batch(0).tolist() != rows.batch(0).tolist()
  in_order = np.concatenate(list(rows.in_order(100)))
  assert in_order.tolist() == list(range(9))
