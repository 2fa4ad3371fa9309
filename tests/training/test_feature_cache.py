"""A target's features are computed once, and kept for it alone."""

import jax
import numpy as np
import pytest
from testing import tiny

from specsamp.errors import UserError
from specsamp.training import feature_cache
from specsamp.training.feature_cache import FeatureCache


@pytest.fixture(scope='module')
def text():
  """Returns a target and rows of its vocabulary."""
  target = tiny.model(512, 0, num_layers=1, num_heads=4, num_kv_heads=2)
  rows = np.random.default_rng(0).integers(512, size=(12, 17), dtype=np.int32)
  return target, rows


def test_features_are_computed_once(text, tmp_path, monkeypatch):
  target, rows = text
  computed = []
  real = jax.jit

  def counting(function):
    compiled = real(function)
    return lambda params, tokens: computed.append(1) or compiled(params, tokens)

  monkeypatch.setattr(feature_cache.jax, 'jit', counting)
  cache = FeatureCache(tmp_path, target, rows)
  order = [[3, 0, 7, 11], [1, 2, 4, 5], [6, 8, 9, 10]]
  first = [cache(np.array(index)) for index in order]
  assert len(computed) == 3
  assert first[0].dtype == np.float16
  again = FeatureCache(tmp_path, target, rows)
  # In other batches too.
  np.testing.assert_array_equal(
    again(np.array([5, 3])), [first[1][3], first[0][0]]
  )
  np.testing.assert_array_equal(cache(np.array([2])), first[1][1:2])
  assert len(computed) == 3
  expected = real(
    lambda tokens: (
      target.transformer.apply({'params': target.params}, tokens).hidden
    )
  )(rows[order[0], :-1])
  np.testing.assert_allclose(first[0], expected, rtol=2.0**-10, atol=1e-4)


def test_features_of_something_else_are_refused(text, tmp_path):
  target, rows = text
  FeatureCache(tmp_path, target, rows)
  swapped = rows.copy()
  swapped[[0, 1]] = rows[[1, 0]]
  other = tiny.model(512, seed=1, num_layers=1)
  for name, args in (
    ('target', (other, rows)),
    ('text', (target, swapped)),
    ('shape, text', (target, rows[:8])),
  ):
    with pytest.raises(UserError, match=f'has another .*{name}') as error:
      FeatureCache(tmp_path, *args)
    assert '\n' not in str(error.value)
