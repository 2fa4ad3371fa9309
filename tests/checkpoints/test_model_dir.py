"""Models as folders: written, read again, refused if damaged."""

import json
import re

import jax
import numpy as np
import pytest
import safetensors.numpy
from flax import traverse_util

from specsamp import file_order
from specsamp.checkpoints import model_dir
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.data import tokenizers
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import (
  Transformer,
  TransformerConfig,
  param_shapes,
  quantized,
)

_CONFIG = TransformerConfig(
  vocab_size=512,
  width=32,
  num_layers=1,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  mlp_width=48,
  max_length=64,
  norm='layer',
  biases='all',
)


@pytest.fixture(scope='module')
def model(tokenizer):
  """Columns of very different sizes, and one of zeros."""
  transformer = Transformer(_CONFIG)
  shapes = file_order.shapes(param_shapes(transformer))
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda s: (
      rng.normal(size=s.shape) * 10.0 ** rng.integers(-3, 3, s.shape[-1:])
    ).astype(np.float32),
    shapes,
  )
  params = file_order.from_files(params)
  params['head'][7] = 0
  return LanguageModel(transformer, params, tokenizer)


def _flat(model):
  return traverse_util.flatten_dict(model.params, sep='.')


def test_float32_comes_back_bit_for_bit(model, tmp_path):
  model_dir.save(model, tmp_path / 'new' / 'm')
  again = model_dir.load(tmp_path / 'new' / 'm')
  assert again.config == model.config
  assert again.tokenizer == model.tokenizer
  assert _flat(again).keys() == _flat(model).keys()
  for name, value in _flat(model).items():
    assert _flat(again)[name].dtype == np.float32
    np.testing.assert_array_equal(_flat(again)[name], value)
  assert [p.name for p in (tmp_path / 'new').iterdir()] == ['m']


def test_int8_is_right_to_half_a_step_and_small(model, tmp_path):
  model_dir.save(model, tmp_path / 'whole')
  model_dir.save(model, tmp_path / 'small', storage='int8')
  again = _flat(model_dir.load(tmp_path / 'small'))
  # Axes that a product sums over share a step.
  summed = dict(embedding=1, head=1, q=2, kv=3, o=(1, 2), up=2, down=1)
  for name, value in _flat(model).items():
    assert again[name].dtype == np.float32
    error = np.abs(again[name] - value)
    axes = summed.get(name.split('.')[-1])
    if value.ndim == 1:
      np.testing.assert_array_equal(again[name], value)
    elif axes is not None:
      step = np.abs(value).max(axis=axes, keepdims=True) / 127
      assert (error <= step * 0.50001).all(), name
    else:
      assert (error <= np.abs(value).max() / 254 * 1.00001).all(), name
  assert not again['head'][7].any()
  # One scale for an output channel: only then is a matmul of ints exact.
  stored = safetensors.numpy.load_file(tmp_path / 'small' / model_dir.WEIGHTS)
  assert stored['layers_0.attention.o:scale'].shape == (1, 1, 32)
  assert stored['embedding:scale'].shape == (512, 1)
  sizes = [
    (tmp_path / name / model_dir.WEIGHTS).stat().st_size
    for name in ('whole', 'small')
  ]
  assert 3 < sizes[0] / sizes[1] < 4


def test_weights_in_8_bits_are_those_of_an_int8_folder(model, tmp_path):
  model_dir.save(model, tmp_path / 'whole')
  model_dir.save(model, tmp_path / 'small', storage='int8')
  rounded = model_dir.load(tmp_path / 'whole', weights='int8')
  model_dir.save(rounded, tmp_path / 'again')  # stays int8
  wanted = model.quantized('int8')
  stored = safetensors.numpy.load_file(tmp_path / 'small' / model_dir.WEIGHTS)
  for folder in ('whole', 'small', 'again'):
    got = model_dir.load(tmp_path / folder, weights='int8')
    for name, value in _flat(got).items():
      if quantized.is_quantized(value):
        jax.tree.map(np.testing.assert_array_equal, value, _flat(wanted)[name])
    kv = got.params['layers_0']['attention']['kv']
    name = 'layers_0.attention.kv'
    np.testing.assert_array_equal(np.moveaxis(stored[name], 0, -1), kv.values)
    np.testing.assert_array_equal(stored[f'{name}:scale'][0], kv.scale)
  assert rounded.source_fingerprint == model.fingerprint
  assert rounded.fingerprint != model.fingerprint


@pytest.mark.parametrize(
  ('act', 'message'),
  [
    (
      lambda model, folder: model_dir.load(folder, weights='int4'),
      "weights: got 'int4', expected one of",
    ),
    (
      lambda model, folder: model_dir.save(model, folder / 'm', 'orbax'),
      "storage: got 'orbax' for int8 weights, expected 'int8'",
    ),
    (
      lambda model, folder: huggingface.save(model, folder / 'm'),
      'its weights are int8; transformers reads floats',
    ),
  ],
)
def test_refused_for_weights_in_8_bits(model, tmp_path, act, message):
  with pytest.raises(UserError, match=re.escape(message)) as caught:
    act(model.quantized('int8'), tmp_path)
  assert '\n' not in str(caught.value)


def _without(name):
  return lambda folder: (folder / name).unlink()


def _tensors(change):
  def damage(folder):
    path = folder / model_dir.WEIGHTS
    tensors = safetensors.numpy.load_file(path)
    change(tensors)
    safetensors.numpy.save_file(tensors, path)

  return damage


def _head(change):
  return _tensors(lambda t: t.update(head=change(t['head'])))


def _config(**changes):
  def damage(folder):
    path = folder / model_dir.CONFIG
    config = json.loads(path.read_text())
    config['model'] |= changes
    path.write_text(json.dumps(config))

  return damage


def _write(name, content):
  return lambda folder: (folder / name).write_bytes(content)


# How a file is read is tested for drafters' folders too.
@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (_write(model_dir.WEIGHTS, b''), 'model.safetensors: truncated or corrupt'),
    (_without(tokenizers.FILE), 'no tokenizer.json and no tokenizer.model'),
    (_write(tokenizers.FILE, b''), 'not a SentencePiece model'),
    (_write(model_dir.CONFIG, b'{}'), 'config.json: architecture: got None'),
    (_config(heads=2), "unexpected keyword argument 'heads'"),
    (_config(norm='no'), "norm: got 'no', expected one of"),
    (_config(vocab_size=9), r'embedding \[512, 32\] instead of \[9, 32\]'),
    (
      _head(lambda h: h.astype(np.float16)),
      'scale: head F16 instead',
    ),
    (
      _tensors(lambda t: t.update({'head:scale': np.ones((3, 3))})),
      r'head:scale \[3, 3\] instead of \[1, 512\]',
    ),
    (_tensors(lambda t: t.pop('head')), '1 missing: head$'),
    (_tensors(lambda t: t.update(extra=t['head'])), '1 not used: extra$'),
  ],
)
def test_damage_is_named_in_one_line(model, tmp_path, damage, message):
  model_dir.save(model, tmp_path / 'm')
  damage(tmp_path / 'm')
  with pytest.raises(UserError, match=message) as error:
    model_dir.load(tmp_path / 'm')
  assert str(tmp_path) in str(error.value)
  assert '\n' not in str(error.value)


def test_a_tokenizer_with_fewer_pieces_than_the_model(model, tmp_path):
  with pytest.raises(UserError, match='^model .*m: no such folder$'):
    model_dir.load(tmp_path / 'm')
  model_dir.save(model, tmp_path / 'm')
  _config(vocab_size=600)(tmp_path / 'm')
  _tensors(
    lambda t: t.update(
      embedding=np.pad(t['embedding'], [(0, 88), (0, 0)]),
      head=np.pad(t['head'], [(0, 0), (0, 88)]),
    )
  )(tmp_path / 'm')
  with pytest.raises(UserError, match='has 512 pieces, the model 600'):
    model_dir.load(tmp_path / 'm')
  _config(padding=88)(tmp_path / 'm')
  assert model_dir.load(tmp_path / 'm').config.num_tokens == 512
