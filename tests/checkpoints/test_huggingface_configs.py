"""Folders of transformers: values of config.json, and mistakes in one line."""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
from heads_on_disk import refused
from testing import foreign, tiny

import specsamp
from specsamp.checkpoints.huggingface import families
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.models.config import RopeScaling

_LLAMA3 = dict(
  rope_type='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0
)
_LLAMA = dict(architectures=['LlamaForCausalLM'], model_type='llama')
_QWEN2 = dict(architectures=['Qwen2ForCausalLM'], model_type='qwen2')
_OPT = dict(architectures=['OPTForCausalLM'], model_type='opt')
_GPT2 = dict(architectures=['GPT2LMHeadModel'], model_type='gpt2')


def _read(**values):
  return families.of(_LLAMA | values).read(_LLAMA | values)


def _defaults(name, **values):
  """Returns a config.json with all keys of an architecture's config class."""
  import transformers

  kind = name.removesuffix('ForCausalLM').removesuffix('LMHeadModel') + 'Config'
  values = getattr(transformers, kind)(**values).to_dict()
  return values | dict(architectures=[name])


@pytest.mark.parity
@pytest.mark.parametrize(
  ('name', 'key'),
  [
    ('LlamaForCausalLM', 'num_key_value_heads'),
    ('LlamaForCausalLM', 'head_dim'),
    ('MistralForCausalLM', 'sliding_window'),
    ('Qwen2ForCausalLM', 'rope_scaling'),
    ('Qwen3ForCausalLM', 'rope_scaling'),
    ('OPTForCausalLM', 'word_embed_proj_dim'),
    ('GPT2LMHeadModel', 'n_inner'),
  ],
)
def test_absent_keys_and_null_are_the_classes_defaults(name, key):
  whole = _defaults(name)
  about = dict(architectures=[name], model_type=whole['model_type'])
  assert _read(**about) == _read(**whole)
  null = {key: None}
  assert _read(**about, **null) == _read(**_defaults(name, **null))


@pytest.mark.parity
@pytest.mark.parametrize(
  ('name', 'key', 'value'),
  [
    ('MistralForCausalLM', 'attention_bias', True),
    ('MistralForCausalLM', 'layer_types', ['full_attention'] * 2),
    ('Qwen2ForCausalLM', 'mlp_bias', True),
    ('Qwen2ForCausalLM', 'attention_bias', False),
    ('Qwen3ForCausalLM', 'mlp_bias', True),
    ('LlamaForCausalLM', 'sliding_window', 8),
  ],
)
def test_keys_that_transformers_ignores(name, key, value):
  whole = _defaults(name)
  assert _read(**(whole | {key: value})) == _read(**whole)


@pytest.mark.parity
@pytest.mark.parametrize(
  'values',
  [
    dict(max_window_layers=28),
    dict(max_window_layers=2),
    dict(max_window_layers=1),
    dict(),
    dict(sliding_window=None, max_window_layers=0),
    dict(use_sliding_window=False, max_window_layers=0),
  ],
)
def test_windows_without_layer_types(values):
  """Layers from max_window_layers on slide."""
  import transformers

  values = (
    dict(
      num_hidden_layers=2,
      max_position_embeddings=64,
      use_sliding_window=True,
      sliding_window=8,
    )
    | values
  )
  kinds = transformers.Qwen2Config(**values).layer_types
  length = 8 if 'sliding_attention' in kinds else 64
  assert _read(**_QWEN2, **values).max_length == length
  mistral = dict(architectures=['MistralForCausalLM'], model_type='mistral')
  assert _read(**mistral, sliding_window=12).max_length == 12


def test_rope_in_each_place():
  linear = dict(rope_type='linear', factor=2.0)
  scaling = RopeScaling('linear', 2.0)
  for values in (
    dict(rope_parameters=linear | dict(rope_theta=5e5)),
    dict(rope_theta=5e5, rope_scaling=dict(type='linear', factor=2)),
    dict(rope_parameters=linear, rope_theta=5e5, rope_scaling=linear),
  ):
    got = _read(**values)
    assert (got.rope_theta, got.rope_scaling) == (5e5, scaling)
  none = _read(rope_theta=None, rope_parameters=dict(rope_type=None))
  assert (none.rope_theta, none.rope_scaling) == (10_000, None)
  original = dict(original_max_position_embeddings=64)
  for values, length in (
    (dict(rope_scaling=_LLAMA3) | original, 64),
    (dict(rope_scaling=_LLAMA3 | original) | original, 64),
    (dict(rope_scaling=_LLAMA3, max_position_embeddings=512), 512),
  ):
    assert _read(**values).rope_scaling.original_length == length


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    (dict(architectures=None), 'architecture: got None, expected'),
    (dict(architectures=['Mixtral']), "got 'Mixtral', expected one of .*Llama"),
    (dict(model_type='qwen2'), "got 'qwen2', expected 'llama'"),
    (dict(num_key_value_heads=3), 'num_kv_heads must divide num_hea'),
    (dict(hidden_act='relu6'), "hidden_act: got 'relu6', expected"),
    (dict(quantization_config=dict(bits=4)), 'quantization_config: '),
    (
      dict(rope_parameters=dict(rope_type='yarn')),
      "rope_type: got 'yarn', ",
    ),
    (dict(rope_scaling=dict(type='dynamic')), "rope_type: got 'dynamic'"),
    (
      dict(rope_parameters=dict(rope_type='llama3', factor=2.0)),
      'no low_freq_factor',
    ),
    (dict(rope_scaling=dict(partial_rotary_factor=0.5)), 'partial_rotary'),
    (dict(rms_norm_eps='1e-5'), 'norm_epsilon must be a positive num'),
    (dict(mlp_bias=True), 'mlp_bias: only supported with attention_'),
    (
      dict(
        rope_parameters=dict(rope_theta=1e6),
        rope_scaling=dict(type='linear', factor=2.0),
      ),
      'rope_parameters and rope_scaling differ: got .*1000000.*linear',
    ),
    (
      dict(rope_parameters=dict(rope_theta=1e6), rope_theta=5e5),
      'rope_theta: got 1000000.0 and 500000.0, expected one',
    ),
    (
      _QWEN2 | dict(layer_types=['sliding_attention', 'full_attention']),
      'layer_types: got sliding_attention, expected a sliding_window',
    ),
    (_QWEN2 | dict(layer_types=['linear_attention']), 'layer_types: '),
    (_OPT | dict(do_layer_norm_before=False), 'norm_before: got False, only'),
    (_GPT2 | dict(n_head=5, n_embd=24), '5 heads do not divide a width of 24'),
  ],
)
def test_configs_that_are_refused(values, message, tmp_path):
  (tmp_path / 'config.json').write_text(json.dumps(_LLAMA | values))
  refused(f'config.json: .*{message}', huggingface.read_config, tmp_path)


@pytest.fixture(scope='module')
def llama(tmp_path_factory):
  folder = tmp_path_factory.mktemp('saved')
  foreign.save(foreign.model('llama'), folder, max_shard_size='20KB')
  return folder


_INDEX = 'model.safetensors.index.json'


def _write(content):
  return lambda folder: (folder / _INDEX).write_text(content)


def _without_a_file(folder):
  sorted(folder.glob('model-*.safetensors'))[0].unlink()


def _nothing(folder):
  for file in [*folder.glob('*.safetensors'), folder / _INDEX]:
    file.unlink()


def _pickle(folder):
  _nothing(folder)
  (folder / 'pytorch_model.bin').write_bytes(b'cos\nsystem\n')


@pytest.mark.parity
@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (_without_a_file, r'model-0.*\.safetensors: .*o such file'),
    (_write('{}'), 'index.json: no weight_map'),
    (
      _write('{"weight_map": {"a": "../b"}}'),
      "not an index with a 'wei",
    ),
    (_pickle, 'pytorch_model.bin: reading a pickle may run code'),
    (_nothing, 'found no weights, expected model.safetensors'),
  ],
)
def test_files_that_are_refused(llama, tmp_path, damage, message):
  folder = shutil.copytree(llama, tmp_path / 'model')
  damage(folder)
  refused(message, specsamp.load, folder)


@pytest.mark.parity
def test_tensors_that_are_refused(tmp_path):
  """Tensors that are missing, unused, of another shape or not floats."""
  foreign.save(foreign.model('gpt2'), tmp_path)
  file = tmp_path / 'model.safetensors'
  tensors = safetensors.numpy.load_file(file)
  first, second, third, *_ = sorted(tensors)
  del tensors[first]
  tensors[second] = np.zeros((3, 3), np.float32)
  tensors[third] = tensors[third].astype(np.int8)
  tensors['of.nobody'] = np.zeros(1, np.float32)
  safetensors.numpy.save_file(tensors, file)
  message = (
    rf'tensors do not fit the config; 1 missing: {first}; 1 not used: '
    rf'of\.nobody; 1 of another shape: {second} \[3, 3\] instead of .*; '
    rf'1 not floats of 16 or 32 bits: {third} I8'
  )
  refused(message, specsamp.load, tmp_path)


@pytest.mark.parity
def test_tied_embeddings(tmp_path):
  """A folder may keep the LM head alone; a missing one is reported."""
  foreign.save(foreign.model('opt'), tmp_path)
  whole = specsamp.load(tmp_path)
  file = tmp_path / 'model.safetensors'
  tensors = safetensors.numpy.load_file(file)
  embedding = tensors.pop('model.decoder.embed_tokens.weight')
  tensors['lm_head.weight'] = embedding
  safetensors.numpy.save_file(tensors, file, {'format': 'pt'})
  got = specsamp.load(tmp_path)
  assert got.config.tied_embeddings
  assert got.fingerprint == whole.fingerprint
  foreign.save(foreign.model('qwen2'), tmp_path)
  file = tmp_path / 'config.json'
  values = json.loads(file.read_text()) | {'tie_word_embeddings': False}
  file.write_text(json.dumps(values))
  message = 'tie_word_embeddings is false: .*; 1 missing: lm_head.weight$'
  refused(message, specsamp.load, tmp_path)


def test_a_model_that_no_architecture_computes(tmp_path):
  relative = tiny.model(11, 0, positions='relative')
  message = 'no architecture .* relative positions'
  refused(message, huggingface.save, relative, tmp_path / 'out')
  assert not (tmp_path / 'out').exists()
