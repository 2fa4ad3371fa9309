"""Features of a target are computed once, and kept for it alone."""

import jax
import numpy as np
import pytest
from testing import tiny

from specsamp.errors import UserError
from specsamp.training import feature_cache
from specsamp.training.feature_cache import FeatureCache


def _target(seed):
  return tiny.model(512, seed, num_layers=1, num_heads=4, num_kv_heads=2)


@pytest.fixture(scope='module')
def text():
  """(target, rows of its vocabulary)."""
  target = _target(seed=0)
  rows = np.random.default_rng(0).integers(512, size=(12, 17), dtype=np.int32)
  return target, rows


def test_features_are_computed_once(text, tmp_path, monkeypatch):
  target, rows = text
  computed = []
  real = jax.jit

  def counting(function):
    made = real(function)
    return lambda params, tokens: computed.append(1) or made(params, tokens)

  monkeypatch.setattr(feature_cache.jax, 'jit', counting)
  kept = FeatureCache(tmp_path, target, rows)
  order = [[3, 0, 7, 11], [1, 2, 4, 5], [6, 8, 9, 10]]
  first = [kept(np.array(index)) for index in order]
  assert len(computed) == 3
  assert first[0].dtype == np.float16
  again = FeatureCache(tmp_path, target, rows)
  # In other batches too.
  np.testing.assert_array_equal(
    again(np.array([5, 3])), [first[1][3], first[0][0]]
  )
  np.testing.assert_array_equal(kept(np.array([2])), first[1][1:2])
  assert len(computed) == 3
  wanted = real(
    lambda tokens: (
      target.transformer.apply({'params': target.params}, tokens).hidden
    )
  )(rows[order[0], :-1])
  np.testing.assert_allclose(first[0], wanted, rtol=2.0**-10, atol=1e-4)


def test_features_of_something_else_are_refused(text, tmp_path):
  target, rows = text
  FeatureCache(tmp_path, target, rows)
  swapped = rows.copy()
  swapped[[0, 1]] = rows[[1, 0]]
  for args in (
    (tiny.model(512, seed=1, num_layers=1), rows),
    (target, swapped),
    (target, rows[:8]),
  ):
    with pytest.raises(UserError, match='of another target or text') as error:
      FeatureCache(tmp_path, *args)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('name', ['features.npy', 'done.npy', 'features.json'])
def test_features_that_are_damaged(text, tmp_path, name):
  """What vouches for what is gone vouches for nothing."""
  rng = np.random.default_rng(0)
  target, rows = text
  index = np.arange(4)
  wanted = FeatureCache(tmp_path, target, rows)(index)
  whole = (tmp_path / name).read_bytes()
  spoilt = [b'', rng.bytes(200), whole[:9], whole[: len(whole) // 2]]
  if name == 'done.npy':
    spoilt.append(whole[:-12] + rng.bytes(12))
  for content in spoilt:
    (tmp_path / name).write_bytes(content)
    if name == 'features.json':
      with pytest.raises(UserError, match='of another target or text'):
        FeatureCache(tmp_path, target, rows)
      continue
    cache = FeatureCache(tmp_path, target, rows)
    assert not cache._done.any()
    np.testing.assert_array_equal(cache(index), wanted)
  if name != 'features.json':
    (tmp_path / name).unlink()
    assert not FeatureCache(tmp_path, target, rows)._done.any()
