"""Loading a model's folder on a mesh: each device reads its shards only."""

import dataclasses
import json
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import traverse_util

from specsamp.checkpoints import model_dir, weights
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, TransformerConfig, param_shapes
from specsamp.sharding import mesh as meshes

_CONFIG = TransformerConfig(
  vocab_size=512,
  width=16,
  num_layers=2,
  num_heads=8,
  num_kv_heads=2,
  head_dim=4,
  mlp_width=32,
  max_length=64,
  positions='relative',
  norm='layer',
  biases='all',
)
_storages = pytest.mark.parametrize('storage', ['float32', 'int8'])


@pytest.fixture(scope='module')
def folder(tokenizer, tmp_path_factory):
  """Returns a folder with the model as float32 and as int8."""
  transformer = Transformer(_CONFIG)
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda s: rng.standard_normal(s.shape, np.float32),
    param_shapes(transformer),
  )
  model = LanguageModel(transformer, params, tokenizer)
  root = tmp_path_factory.mktemp('models')
  for storage in ('float32', 'int8'):
    model_dir.save(model, root / storage, storage)
  return root


def _flat(model):
  return traverse_util.flatten_dict(model.params, sep='.')


def _assert_same(got, expected):
  assert got.config == expected.config
  assert got.mesh == expected.mesh

  def check(a, b):
    assert (a.dtype, a.sharding) == (b.dtype, b.sharding)
    np.testing.assert_array_equal(a, b)

  jax.tree.map(check, got.params, expected.params)


@pytest.mark.parametrize('shape', [(1, 8), (2, 4)], ids=str)
@_storages
def test_each_device_reads_its_shards(folder, monkeypatch, storage, shape):
  mesh = meshes.make(*shape)
  shapes = {}
  real = weights._read

  def read(tensors, name, index):
    value = real(tensors, name, index)
    shapes.setdefault(name, set()).add(value.shape)
    return value

  expected = model_dir.load(folder / storage).on(mesh)
  monkeypatch.setattr(weights, '_read', read)
  got = model_dir.load(folder / storage, mesh)
  _assert_same(got, expected)
  assert shapes == {
    name: {value.sharding.shard_shape(value.shape)}
    for name, value in _flat(got).items()
  }
  heads = 8 // shape[1]
  assert shapes['layers_0.attention.q'] == {(heads, 4, 16)}
  assert shapes['layers_0.attention.o'] == {(16, heads, 4)}


@pytest.mark.parametrize('shape', [(1, 8), (2, 4)], ids=str)
@_storages
def test_weights_in_8_bits(folder, storage, shape):
  mesh = meshes.make(*shape)
  whole = model_dir.load(folder / storage, weights='int8')
  got = model_dir.load(folder / storage, mesh, weights='int8')
  _assert_same(got, whole.on(mesh))
  assert got.fingerprint == whole.fingerprint
  assert got.source_fingerprint == whole.source_fingerprint
  assert got.params['layers_0']['mlp']['down'].values.dtype == np.int8


def test_several_files(folder, tmp_path, monkeypatch):
  whole = model_dir.load(folder / 'int8')
  monkeypatch.setattr(weights, '_FILE_BYTES', 5_000)
  model_dir.save(whole, tmp_path / 'm', 'int8')
  names = sorted(path.name for path in (tmp_path / 'm').glob('*.safetensors'))
  assert len(names) > 2
  assert names == [f'model-{i:05}.safetensors' for i in range(len(names))]
  _assert_same(model_dir.load(tmp_path / 'm'), whole)
  mesh = meshes.make(2, 4)
  _assert_same(model_dir.load(tmp_path / 'm', mesh), whole.on(mesh))
  # A missing file is reported.
  (tmp_path / 'm' / names[1]).unlink()
  with pytest.raises(UserError, match=r'do not fit the config; \d+ missing'):
    model_dir.load(tmp_path / 'm', mesh)


def test_other_files_in_the_folder(folder, tmp_path):
  model = model_dir.load(folder / 'float32')
  model_dir.save(model, tmp_path)
  (tmp_path / 'model_old.safetensors').write_text('not weights')
  _assert_same(model_dir.load(tmp_path), model)
  (tmp_path / 'model-00000.safetensors').write_text('')
  with pytest.raises(UserError, match='got both model.safetensors and model-'):
    model_dir.load(tmp_path)


@_storages
def test_a_mesh_writes_the_same_file(folder, tmp_path, storage):
  whole = model_dir.load(folder / 'float32')
  model_dir.save(whole.on(meshes.make(2, 4)), tmp_path / 'm', storage)
  written = (tmp_path / 'm' / model_dir.WEIGHTS).read_bytes()
  assert written == (folder / storage / model_dir.WEIGHTS).read_bytes()


@_storages
def test_matrices_have_the_dtype_of_the_config(folder, tmp_path, storage):
  whole = model_dir.load(folder / storage)
  config = dataclasses.replace(_CONFIG, dtype='bfloat16')
  half = tmp_path / 'half'
  shutil.copytree(folder / storage, half)
  text = json.dumps({'model': dataclasses.asdict(config)})
  (half / model_dir.CONFIG).write_text(text)
  for mesh in (None, meshes.make(2, 4)):
    got = _flat(model_dir.load(half, mesh))
    for name, value in _flat(whole).items():
      matrix = value.ndim > 1 and not name.endswith('bias')
      kind = ml_dtypes.bfloat16 if matrix else np.float32
      assert got[name].dtype == kind, name
      np.testing.assert_array_equal(got[name], np.asarray(value).astype(kind))
