"""A target's continuations of a text, written once."""

import dataclasses

import jax
import numpy as np
import pytest
from testing import tiny

from specsamp.errors import UserError
from specsamp.training import continuations

_TEXT = np.random.default_rng(0).integers(29, size=203, dtype=np.int32)


@pytest.fixture(scope='module')
def target():
  return tiny.model(29, 0)


def _continue(target, folder, tokens=_TEXT, **changes):
  sizes = dict(
    count=12,
    prompt_length=8,
    length=20,
    temperature=1.0,
    batch_size=4,
    seed=0,
  )
  return continuations.continuations(target, tokens, folder, **sizes | changes)


@pytest.fixture(scope='module')
def written(target, tmp_path_factory):
  """Returns a folder and its rows."""
  folder = tmp_path_factory.mktemp('written') / 'continuations'
  return folder, _continue(target, folder)


@pytest.fixture
def batches(monkeypatch):
  """Returns a list with an entry for every batch that is decoded."""
  decoded = []
  real = continuations.generate

  def generate(*args, **kwargs):
    decoded.append(1)
    return real(*args, **kwargs)

  monkeypatch.setattr(continuations, 'generate', generate)
  return decoded


def test_each_prompt_is_another_piece_of_the_text(written):
  rows = written[1]
  assert rows.shape == (12, 20) and rows.dtype == np.int32
  pieces = _TEXT[:200].reshape(25, 8).tolist()
  positions = [pieces.index(row) for row in rows[:, :8].tolist()]
  assert len(set(positions)) == 12
  assert positions != sorted(positions)


def test_only_missing_batches_are_decoded(target, written, batches):
  folder, rows = written
  again = lambda **changes: _continue(target, folder, **changes)
  np.testing.assert_array_equal(again(), rows)
  assert not batches
  (folder / 'tokens-00001.npy').unlink()
  np.testing.assert_array_equal(again(), rows)
  assert len(batches) == 1
  # A larger count adds rows to the same ones.
  more = again(count=16)
  assert len(more) == 16 and len(batches) == 2
  np.testing.assert_array_equal(more[:12], rows)


@pytest.mark.parametrize(
  'name', ['target', 'text', 'length', 'temperature', 'batch_size', 'seed']
)
def test_a_folder_of_others_is_refused(target, written, batches, name):
  double = jax.tree.map(lambda leaf: leaf * 2, target.params)
  changes = {
    'target': dict(target=dataclasses.replace(target, params=double)),
    'text': dict(tokens=_TEXT[1:]),
    'length': dict(length=21),
    'temperature': dict(temperature=0.5),
    'batch_size': dict(batch_size=6),
    'seed': dict(seed=1),
  }[name]
  with pytest.raises(UserError, match=f'has another {name} than') as error:
    _continue(**{'target': target, 'folder': written[0]} | changes)
  assert '\n' not in str(error.value)
  assert not batches


def test_a_text_with_too_few_prompts(target, tmp_path):
  message = 'count: got 28, .* has 25 prompts of prompt_length=8'
  with pytest.raises(UserError, match=message):
    _continue(target, tmp_path / 'new', count=28)
