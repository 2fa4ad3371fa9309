"""Which dtype a model that was read computes in, by device, weights and log."""

import dataclasses
import types

import jax
import numpy as np
import pytest
import tiny
from absl import logging

import specsamp
from specsamp.checkpoints import convert, model_dir, weights
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.errors import UserError
from specsamp.models import Transformer
from specsamp.sharding import devices


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
  monkeypatch.setattr(weights, 'device_of', lambda mesh: _device('7.5'))
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


def _too_far(params):
  norm = params['layers_0']['attention_norm']
  norm['scale'] = norm['scale'] * 1e5


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


@pytest.mark.parametrize(
  ('change', 'fault'),
  [
    (_too_large, 'layers_1.mlp.down has a value of 7e+04'),
    (_too_far, 'what layers_0.attention'),
  ],
)
def test_what_float16_does_not_hold_is_in_float32(save, turing, change, fault):
  folder = save(change)
  model = specsamp.load(folder)
  assert model.config.dtype == 'float32' and _matrices(model) == {'float32'}
  first, second = turing
  assert 'computes in float16' in first
  assert 'computes in float32' in second and fault in second
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
  monkeypatch.setattr(weights, 'default_dtype', weights.stored_dtype)
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


def test_without_such_a_device_nothing_changes(save):
  assert jax.devices()[0].platform == 'cpu'
  assert specsamp.load(save()).config.dtype == 'bfloat16'
