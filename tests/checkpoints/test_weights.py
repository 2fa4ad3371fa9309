"""Parameters of anything, in files."""

import jax
import numpy as np
import pytest
import safetensors.numpy

from specsamp.checkpoints import weights


@pytest.fixture
def params():
  """An embedding with rows of very different sizes, and a layer."""
  rng = np.random.default_rng(0)
  sizes = np.asarray([[1e-3], [1], [1e3], [10], [0]])
  params = {
    'mask_embedding': rng.normal(size=(5, 8)) * sizes,
    'body': {'down': rng.normal(size=(6, 8)), 'scale': np.ones(8)},
  }
  return jax.tree.map(lambda x: x.astype(np.float32), params)


def test_a_tree_comes_back(params, tmp_path):
  weights.save(params, tmp_path)
  shapes = jax.eval_shape(lambda: params)
  again = weights.load(tmp_path, shapes, 'float32')
  jax.tree.map(np.testing.assert_array_equal, again, params)


def test_embeddings_are_scaled_by_row(params, tmp_path):
  weights.save(params, tmp_path, 'int8')
  stored = safetensors.numpy.load_file(tmp_path / weights.FILE)
  assert stored['mask_embedding:scale'].shape == (5, 1)
  assert stored['body.down:scale'].shape == (1, 6)
  again = weights.load(tmp_path, jax.eval_shape(lambda: params), 'float32')
  wanted = params['mask_embedding']
  rows = np.abs(wanted).max(1, keepdims=True)
  assert (np.abs(again['mask_embedding'] - wanted) <= rows / 250).all()
