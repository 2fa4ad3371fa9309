"""Which dtype a model that was read computes in, by device, weights and log."""

import dataclasses
import types

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from absl import logging
from testing import tiny

import specsamp
from specsamp.checkpoints import (
  convert,
  dtypes,
  layouts,
  model_dir,
  tensor_files,
  weights,
)
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.drafting import trained_drafter
from specsamp.errors import UserError
from specsamp.models import Transformer
from specsamp.sharding import devices
from specsamp.sharding import mesh as meshes


def _device(capability, platform='gpu'):
  """Such as a Tesla T4, of compute capability 7.5."""
  kinds = {'compute_capability': capability} if capability else {}
  return types.SimpleNamespace(platform=platform, device_kind='GPU', **kinds)


@pytest.mark.parametrize(
  ('capability', 'has'),
  [
    ('7.5', False),
    ('7.0', False),
    ('8.0', True),
    ('8.9', True),
    ('10.0', True),
    ('gfx90a', True),
    (None, True),  # TPUs and CPUs have no such thing
  ],
)
def test_who_has_bfloat16(capability, has):
  assert devices.has_bfloat16(_device(capability)) == has


@pytest.fixture
def turing(monkeypatch):
  """Models are read as on a T4; the log's lines."""
  monkeypatch.setattr(dtypes, 'device_of', lambda mesh: _device('7.5'))
  lines = []
  monkeypatch.setattr(
    logging, 'warning', lambda line, *args: lines.append(line % args)
  )
  return lines


@pytest.fixture(params=['float32', 'orbax'])
def save(request, tmp_path, tokenizer):
  """Writes a small model after a change to its parameters: its folder."""

  def written(change=None, dtype='bfloat16'):
    model = tiny.model(tokenizer.vocab_size, 0)
    config = dataclasses.replace(model.config, dtype=dtype)
    params = model.params
    if change:
      change(params)
    model = dataclasses.replace(
      model,
      transformer=Transformer(config),
      params=params,
      tokenizer=tokenizer,
    )
    model_dir.save(model, tmp_path / 'model', request.param)
    return tmp_path / 'model'

  return written


def _too_large(params):
  layer = params['layers_1']['mlp']
  layer['down'] = layer['down'].at[2, 3].set(-70000.0)


def _too_small(params):
  """Numbers of which float16 keeps few bits; not so small in what is made."""
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


def test_float16_where_there_is_no_bfloat16(save, turing):
  model = specsamp.load(save())
  assert model.config.dtype == 'float16' and _matrices(model) == {'float16'}
  (line,) = turing
  assert 'computes in float16' in line and 'capability 7.5' in line
  assert np.isfinite(
    model.transformer.apply(
      {'params': model.params}, np.ones((1, 2), np.int32)
    ).logits
  ).all()


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_a_dtype_that_was_asked_for_stays(save, turing, dtype):
  model = specsamp.load(save(), dtype=dtype)
  assert model.config.dtype == dtype and _matrices(model) == {dtype}
  assert not turing


def test_float32_stays_and_nothing_is_logged(save, turing):
  assert specsamp.load(save(dtype='float32')).config.dtype == 'float32'
  assert not turing


def test_what_float16_does_not_hold_is_in_float32(save, turing):
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


def test_conversion_keeps_the_stored_dtype(save, turing, tmp_path):
  convert.convert(save(), tmp_path / 'other')
  assert not turing
  assert model_dir.stored_dtype(tmp_path / 'other') == 'bfloat16'


def test_folders_of_others(save, turing, tmp_path, monkeypatch):
  """Whose weights have 16 bits; on a CPU they are computed in 32."""
  huggingface.save(specsamp.load(save(dtype='float32')), tmp_path / 'theirs')
  monkeypatch.setattr(dtypes, 'default_dtype', dtypes.stored_dtype)
  load = lambda: specsamp.load(tmp_path / 'theirs')
  assert load().config.dtype == 'float32' and not turing
  large = specsamp.load(save(_too_large), dtype='bfloat16')
  for model, found in [
    (specsamp.load(save(), dtype='bfloat16'), 'float16'),
    (large, 'float32'),
  ]:
    huggingface.save(model, tmp_path / 'theirs')
    assert load().config.dtype == found and _matrices(load()) == {found}
  with pytest.raises(UserError, match='down has a value of'):
    specsamp.load(tmp_path / 'theirs', dtype='float16')


@pytest.mark.integration
@pytest.mark.parametrize('shape', [None, (4, 2)], ids=str)
def test_drafters_for_bfloat16_serve_float16(save, turing, shape):
  """Those trained for the weights that were rounded, and no others."""
  folder = save(_too_small)
  trained = tiny.trained(specsamp.load(folder, dtype='bfloat16'), 'hydra')
  target = specsamp.load(folder, meshes.make(*shape) if shape else None)
  assert target.config.dtype == 'float16'
  generate = lambda drafter: specsamp.generate(
    target,
    ['def f', 'x'],
    drafter=drafter,
    sampling=specsamp.SamplingParams(temperature=0.0),
    max_new_tokens=8,
  )
  drafted = generate(trained_drafter(trained, target, 3))
  assert drafted.tokens == generate(None).tokens
  other = jax.tree.map(lambda x: x * 2, target.params)
  other = dataclasses.replace(target, params=other)
  with pytest.raises(UserError, match='a drafter serves the weights'):
    trained_drafter(trained, other, 3)


@pytest.mark.parametrize('kind', ['hydra', 'eagle'])
def test_a_drafter_is_laid_out_in_its_targets_dtype_once(save, kind):
  """And not in every pass."""
  target = specsamp.load(save(), dtype='bfloat16')
  drafter = trained_drafter(tiny.trained(target, kind), target, 3)
  found = weights.flat(drafter.params)
  wanted = weights.matmul_dtypes(found, 'bfloat16')
  assert {name: str(x.dtype) for name, x in found.items()} == wanted
  assert 'bfloat16' in wanted.values()


@pytest.mark.parametrize('stored', ['float32', 'bfloat16', 'float16'])
def test_one_fingerprint_in_any_dtype(save, tmp_path, stored):
  """Of folders of others as well, and of all that is made of the model."""
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
    for model in (
      half,
      half.on(mesh),
      specsamp.load(folder, mesh, 'float16'),
      dataclasses.replace(half, tokenizer=tiny.Letters(5)),
    ):
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


@pytest.mark.parametrize('part', [slice(1, 4), slice(3, 5)])
def test_rows_past_a_tensor_have_its_dtype(tmp_path, part):
  """No shard has another dtype, one of such rows alone neither."""
  tensor = np.arange(6).reshape(3, 2).astype(ml_dtypes.bfloat16)
  safetensors.numpy.save_file({'x': tensor}, tmp_path / 'x.safetensors')
  tensors = tensor_files.of_files([tmp_path / 'x.safetensors'])
  source = layouts.one('vd', 'x', 'v d')
  found = layouts.read(tensors, source, (5, 2), (part, slice(0, 2)))
  assert found.dtype == tensor.dtype
  np.testing.assert_array_equal(found, np.pad(tensor, ((0, 2), (0, 0)))[part])


def test_without_such_a_device_nothing_changes(save):
  assert jax.devices()[0].platform == 'cpu'
  assert specsamp.load(save()).config.dtype == 'bfloat16'
