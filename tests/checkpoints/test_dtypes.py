"""The dtype that a loaded model computes in, by device and weights."""

import dataclasses
import types

import jax
import numpy as np
import pytest
import safetensors.numpy
from absl import logging
from testing import tiny

import specsamp
from specsamp.checkpoints import (
  dtypes,
  model_dir,
  tensor_files,
  weights,
)
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.drafting import trained_drafter
from specsamp.errors import UserError
from specsamp.models import Transformer
from specsamp.sharding import mesh as meshes


def _device(capability):
  kinds = {'compute_capability': capability} if capability else {}
  return types.SimpleNamespace(platform='gpu', device_kind='GPU', **kinds)


@pytest.fixture
def turing(monkeypatch):
  """Loads models as on a T4; the lines of the log."""
  monkeypatch.setattr(dtypes, 'device_of', lambda mesh: _device('7.5'))
  lines = []
  monkeypatch.setattr(
    logging, 'warning', lambda line, *args: lines.append(line % args)
  )
  return lines


@pytest.fixture
def save(tmp_path, tokenizer):
  """Returns a function that saves a changed small model in a folder."""

  def written(change=None, dtype='bfloat16', storage='float32'):
    model = tiny.model(tokenizer.vocab_size, 0)
    config = dataclasses.replace(model.config, dtype=dtype)
    if change:
      change(model.params)
    model = dataclasses.replace(
      model, transformer=Transformer(config), tokenizer=tokenizer
    )
    model_dir.save(model, tmp_path / 'model', storage)
    return tmp_path / 'model'

  return written


def _too_large(params):
  layer = params['layers_1']['mlp']
  layer['down'] = layer['down'].at[2, 3].set(-70000.0)


def _too_small(params):
  """Makes weights so small that float16 keeps few of their bits."""
  layer = params['layers_1']['mlp']
  layer['down'] = layer['down'] * 1e-6
  norm = params['layers_1']['mlp_norm']
  norm['scale'] = norm['scale'] * 1e3


def _matrices(model):
  return {
    str(leaf.dtype)
    for name, leaf in weights.flat(model.params).items()
    if weights.is_matrix(name, leaf)
  }


@pytest.mark.parametrize('storage', ['float32', 'orbax'])
def test_float16_where_there_is_no_bfloat16(save, turing, storage):
  folder = save(storage=storage)
  model = specsamp.load(folder)
  assert model.config.dtype == 'float16' and _matrices(model) == {'float16'}
  (line,) = turing
  assert 'computes in float16' in line and 'capability 7.5' in line
  for dtype in ('float32', 'bfloat16'):
    model = specsamp.load(folder, dtype=dtype)
    assert model.config.dtype == dtype and _matrices(model) == {dtype}
  assert specsamp.load(save(dtype='float32')).config.dtype == 'float32'
  assert len(turing) == 1


def test_values_beyond_float16_are_in_float32(save, turing):
  folder = save(_too_large)
  model = specsamp.load(folder)
  assert model.config.dtype == 'float32' and _matrices(model) == {'float32'}
  first, second = turing
  assert 'computes in float16' in first
  assert 'computes in float32' in second
  assert 'layers_1.mlp.down has a value of 7e+04' in second
  assert 'beyond the 65504' in second
  with pytest.raises(UserError, match='expected float32 or bfloat16: .*65504'):
    specsamp.load(folder, dtype='float16')
  assert len(turing) == 2


def test_folders_of_others(save, turing, tmp_path, monkeypatch):
  """Weights of 16 bits, with the default of a GPU."""
  huggingface.save(specsamp.load(save(dtype='float32')), tmp_path / 'theirs')
  monkeypatch.setattr(dtypes, 'default_dtype', dtypes.stored_dtype)
  load = lambda: specsamp.load(tmp_path / 'theirs')
  assert load().config.dtype == 'float32' and not turing
  for change, found in ((None, 'float16'), (_too_large, 'float32')):
    model = specsamp.load(save(change), dtype='bfloat16')
    huggingface.save(model, tmp_path / 'theirs')
    assert load().config.dtype == found and _matrices(load()) == {found}
  with pytest.raises(UserError, match='down has a value of'):
    specsamp.load(tmp_path / 'theirs', dtype='float16')


@pytest.mark.parametrize('shape', [None, (4, 2)], ids=str)
def test_drafters_for_bfloat16_serve_float16(save, turing, shape):
  """Drafters of the weights before they were rounded, and no others."""
  folder = save(_too_small)
  trained = tiny.trained(specsamp.load(folder, dtype='bfloat16'), 'hydra')
  target = specsamp.load(folder, meshes.make(*shape) if shape else None)
  assert target.config.dtype == 'float16'
  trained_drafter(trained, target, 3)
  other = jax.tree.map(lambda x: x * 2, target.params)
  other = dataclasses.replace(target, params=other)
  with pytest.raises(UserError, match='a drafter serves the weights'):
    trained_drafter(trained, other, 3)


def test_a_drafter_is_laid_out_in_its_targets_dtype_once(save):
  """A cast in every pass would be slower."""
  target = specsamp.load(save(), dtype='bfloat16')
  drafter = trained_drafter(tiny.trained(target, 'eagle'), target, 3)
  found = weights.flat(drafter.params)
  wanted = weights.matmul_dtypes(found, 'bfloat16')
  assert {name: str(x.dtype) for name, x in found.items()} == wanted
  assert 'bfloat16' in wanted.values()


@pytest.mark.parametrize('stored', ['float32', 'bfloat16', 'float16'])
def test_one_fingerprint_in_any_dtype(save, tmp_path, stored):
  """Folders of others count too, and copies of the model."""
  ours = save(_too_small, dtype='float32')
  theirs = tmp_path / 'theirs'
  huggingface.save(specsamp.load(ours), theirs)
  tensors = safetensors.numpy.load_file(theirs / tensor_files.SINGLE)
  tensors = {name: x.astype(np.dtype(stored)) for name, x in tensors.items()}
  safetensors.numpy.save_file(tensors, theirs / tensor_files.SINGLE)
  mesh = meshes.make(4, 2)
  for folder in (ours, theirs):
    wanted = specsamp.load(folder, dtype='float32').fingerprint
    assert specsamp.load(folder, dtype='bfloat16').fingerprint == wanted
    half = specsamp.load(folder, dtype='float16')
    for model in (half, half.on(mesh), specsamp.load(folder, mesh, 'float16')):
      assert _matrices(model) == {'float16'} and model.fingerprint == wanted


def test_float16_lies_where_other_dtypes_do(save):
  folder = save()
  for mesh in (None, meshes.make(4, 2)):
    half, whole = (
      weights.flat(specsamp.load(folder, mesh, dtype).params)
      for dtype in ('float16', 'float32')
    )
    for name, value in whole.items():
      assert half[name].format == value.format, name
      assert half[name].committed == value.committed, name
      np.testing.assert_array_equal(
        half[name], np.asarray(value).astype(half[name].dtype), err_msg=name
      )
