"""A target's own text, written once."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
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
  """A folder, and the rows in it."""
  folder = tmp_path_factory.mktemp('written') / 'continuations'
  return folder, _continue(target, folder)


@pytest.fixture
def batches(monkeypatch):
  """How many batches were decoded."""
  made = []
  real = continuations.generate

  def generate(*args, **kwargs):
    made.append(1)
    return real(*args, **kwargs)

  monkeypatch.setattr(continuations, 'generate', generate)
  return made


def test_each_begins_with_another_piece_of_the_text(written):
  rows = written[1]
  assert rows.shape == (12, 20) and rows.dtype == np.int32
  pieces = _TEXT[:200].reshape(25, 8).tolist()
  places = [pieces.index(row) for row in rows[:, :8].tolist()]
  assert len(set(places)) == 12
  assert places != sorted(places)


def test_greedy_ones_are_what_the_target_finds_most_probable(target, tmp_path):
  rows = _continue(target, tmp_path / 'new', temperature=0.0)

  @jax.jit
  def greedy(tokens):
    def step(at, tokens):
      variables = {'params': target.params}
      logits = target.transformer.apply(variables, tokens).logits
      best = jnp.argmax(logits, axis=-1).astype(jnp.int32)
      return tokens.at[:, at].set(best[:, at - 1])

    return jax.lax.fori_loop(8, 20, step, tokens)

  prompts = np.where(np.arange(20) < 8, rows, 0)
  np.testing.assert_array_equal(rows, greedy(prompts))


def test_what_is_missing_is_written_anew(target, written, batches):
  folder, rows = written
  again = lambda **changes: _continue(target, folder, **changes)
  np.testing.assert_array_equal(again(), rows)
  assert not batches
  (folder / 'tokens-00001.npy').unlink()
  (folder / 'tokens-00001.partial').write_bytes(b'half')
  np.testing.assert_array_equal(again(), rows)
  assert len(batches) == 1
  # More of them later are the same ones and some more.
  more = again(count=16)
  assert len(more) == 16 and len(batches) == 2
  np.testing.assert_array_equal(more[:12], rows)


@pytest.mark.parametrize(
  'changes',
  [
    dict(target=2),
    dict(tokens=_TEXT[1:]),
    dict(length=21),
    dict(prompt_length=7),
    dict(temperature=0.5),
    dict(batch_size=6),
    dict(seed=1),
  ],
  ids=lambda changes: next(iter(changes)),
)
def test_a_folder_of_others_is_refused(target, written, batches, changes):
  folder, rows = written
  if 'target' in changes:
    double = jax.tree.map(lambda leaf: leaf * 2, target.params)
    changes = {'target': dataclasses.replace(target, params=double)}
  with pytest.raises(UserError, match='another target, text or size') as error:
    _continue(**{'target': target, 'folder': folder} | changes)
  assert '\n' not in str(error.value)
  assert not batches


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(count=28), 'count: got 28, .* has 25 prompts of prompt_length=8'),
    (dict(count=10), 'count: got 10, expected a multiple of batch_size=4'),
    (dict(count=0), 'count: got 0, expected a multiple'),
    (dict(prompt_length=20), 'a prompt of 20 tokens in sequences of 20'),
    (dict(prompt_length=0), 'a prompt of 0 tokens'),
    (dict(length=65), 'sequences of 65 for a target of 64 positions'),
  ],
)
def test_sizes_that_do_not_fit(target, tmp_path, changes, message):
  folder = tmp_path / 'new'
  with pytest.raises(UserError, match=message) as error:
    _continue(target, folder, **changes)
  assert '\n' not in str(error.value)
  assert not folder.exists()


def test_a_batch_that_is_none_is_decoded_again(
  target, written, batches, tmp_path, capsys
):
  rng = np.random.default_rng(0)
  folder, rows = written
  copied = tmp_path / 'copied'
  shutil.copytree(folder, copied)
  path = copied / 'tokens-00001.npy'
  whole = path.read_bytes()
  for i, content in enumerate(
    [b'', rng.bytes(300), b'PK' + rng.bytes(50), whole[:-7], whole[:40],
     whole[:-4] + b'\xff\xff\xff\x7f'],
    start=1,
  ):  # fmt: skip
    path.write_bytes(content)
    np.testing.assert_array_equal(_continue(target, copied), rows)
    assert len(batches) == i
    assert path.read_bytes() == whole
  printed = capsys.readouterr().err
  assert printed.count('holds no sequences of this run') == 6
  assert 'continuing copied, t=1:' in printed  # which of several phases
  for content in (b'\xff', b'[' * 10**5, b'{}'):
    (copied / 'continuations.json').write_bytes(content)
    with pytest.raises(UserError, match='of another target'):
      _continue(target, copied)
