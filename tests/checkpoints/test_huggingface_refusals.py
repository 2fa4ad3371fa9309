"""Mistakes in other libraries' folders, reported in one line."""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
from testing import foreign, tiny

import specsamp
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.errors import UserError

pytestmark = pytest.mark.parity


@pytest.fixture(scope='module', params=['llama', 'opt', 'gpt2', 'qwen3'])
def saved(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp('saved')
  foreign.save(foreign.model(request.param), folder)
  return folder


@pytest.fixture(scope='module')
def llama(tmp_path_factory):
  folder = tmp_path_factory.mktemp('saved')
  foreign.save(foreign.model('llama'), folder, max_shard_size='20KB')
  return folder


def _refused(message, call, *args):
  with pytest.raises(UserError, match=message) as error:
    call(*args)
  assert '\n' not in str(error.value)


_ARCHITECTURES = dict(
  llama='LlamaForCausalLM',
  opt='OPTForCausalLM',
  gpt2='GPT2LMHeadModel',
  qwen3='Qwen3ForCausalLM',
)


@pytest.mark.parametrize(
  ('family', 'changes', 'message'),
  [
    ('llama', dict(architectures=None), 'names no architecture'),
    ('llama', dict(architectures=[]), 'names no architecture'),
    (
      'llama',
      dict(architectures=['MixtralForCausalLM']),
      "architecture: got 'MixtralForCausalLM', expected one of .*Llama",
    ),
    ('llama', dict(model_type='qwen2'), "got 'qwen2', expected 'llama'"),
    ('llama', dict(hidden_size=None), 'no hidden_size'),
    ('llama', dict(num_key_value_heads=3), 'num_kv_heads must divide num_hea'),
    ('llama', dict(hidden_act='relu6'), "hidden_act: got 'relu6', expected"),
    ('llama', dict(quantization_config=dict(bits=4)), 'quantization_config: '),
    (
      'llama',
      dict(rope_parameters=dict(rope_type='yarn', factor=2.0)),
      "rope_type: got 'yarn', expected one of default, linear, llama3",
    ),
    (
      'llama',
      dict(rope_parameters=None, rope_scaling=dict(type='dynamic', factor=2)),
      "rope_type: got 'dynamic'",
    ),
    (
      'llama',
      dict(rope_parameters=dict(rope_type='llama3', factor=2.0)),
      'no low_freq_factor',
    ),
    (
      'llama',
      dict(rope_parameters=dict(partial_rotary_factor=0.5)),
      'partial_rotary',
    ),
    ('llama', dict(rms_norm_eps='1e-5'), 'norm_epsilon must be a positive num'),
    (
      'llama',
      dict(rope_parameters=dict(rope_theta=0.0, rope_type='default')),
      r'rope_theta must be a positive number, got 0\.0',
    ),
    (
      'llama',
      dict(tie_word_embeddings='false'),
      "tied_embeddings must be true or false, got 'false'",
    ),
    ('llama', dict(mlp_bias=True), 'mlp_bias: only supported with attention_'),
    ('llama', dict(max_position_embeddings=0), 'max_length must be a positive'),
    (
      'opt',
      dict(do_layer_norm_before=False),
      'do_layer_norm_before: got Fals',
    ),
    ('opt', dict(word_embed_proj_dim=12), 'word_embed_proj_dim: got 12'),
    ('opt', dict(enable_bias=False), 'enable_bias: got False'),
    ('opt', dict(num_attention_heads=5), '5 heads do not divide a width of 24'),
    (
      'gpt2',
      dict(scale_attn_by_inverse_layer_idx=True),
      'scale_attn_by_inverse_layer_idx: got True, only False is supported',
    ),
    ('qwen3', dict(layer_types=['linear_attention'] * 2), 'layer_types: '),
  ],
)
def test_configs(family, changes, message, tmp_path):
  values = foreign.config(family).to_dict()
  values['architectures'] = [_ARCHITECTURES[family]]
  file = tmp_path / 'config.json'
  file.write_text(json.dumps(values))
  huggingface.read_config(tmp_path)
  file.write_text(json.dumps(values | changes))
  _refused(f'config.json: .*{message}', huggingface.read_config, tmp_path)


_INDEX = 'model.safetensors.index.json'


def _cut(folder):
  file = sorted(folder.glob('model-*.safetensors'))[1]
  file.write_bytes(file.read_bytes()[:-100])


def _without_a_file(folder):
  sorted(folder.glob('model-*.safetensors'))[0].unlink()


def _write(name, content):
  return lambda folder: (folder / name).write_text(content)


def _index(**places):
  def damage(folder):
    values = json.loads((folder / _INDEX).read_text())
    values['weight_map'] |= places
    (folder / _INDEX).write_text(json.dumps(values))

  return damage


def _nothing(folder):
  for file in [*folder.glob('*.safetensors'), folder / _INDEX]:
    file.unlink()


def _pickle(folder):
  _nothing(folder)
  (folder / 'pytorch_model.bin').write_bytes(b'cos\nsystem\n')


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (_cut, r'model-0.*\.safetensors: truncated or corrupt'),
    (_without_a_file, r'model-0.*\.safetensors: .*o such file'),
    (_write(_INDEX, '{}'), 'index.json: no weight_map'),
    (
      _index(**{'model.norm.weight': '../elsewhere.safetensors'}),
      "index.json: not an index with a 'weight_map'",
    ),
    (
      _index(**{'model.norm.weight': 'model-00001-of-00002.safetensors'}),
      'o such file|1 tensors are in other files, first model.norm.weight',
    ),
    (_pickle, 'pytorch_model.bin: reading a pickle may run code'),
    (_nothing, 'found no weights, expected model.safetensors'),
    (_write('config.json', '['), 'config.json: not valid JSON'),
    (_write('config.json', '[]'), 'config.json: expected a JSON object'),
    (
      _write('config.json', '{"architectures": ["LlamaForCausalLM"]}'),
      'config.json: model_type: got None',
    ),
  ],
)
def test_files(llama, tmp_path, damage, message):
  folder = shutil.copytree(llama, tmp_path / 'model')
  damage(folder)
  _refused(message, specsamp.load, folder)


def test_tensors(saved, tmp_path):
  """Tensors that are missing, unused, of another shape or not floats."""
  folder = shutil.copytree(saved, tmp_path / 'model')
  file = folder / 'model.safetensors'
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
  _refused(message, specsamp.load, folder)


def test_a_missing_lm_head(tmp_path):
  foreign.save(foreign.model('qwen2'), tmp_path)  # tied
  file = tmp_path / 'config.json'
  values = json.loads(file.read_text()) | {'tie_word_embeddings': False}
  file.write_text(json.dumps(values))
  message = 'tie_word_embeddings is false: .*; 1 missing: lm_head.weight$'
  _refused(message, specsamp.load, tmp_path)


def test_a_model_that_no_architecture_computes(tmp_path):
  relative = tiny.model(11, 0, positions='relative')
  message = 'no architecture .* relative positions'
  _refused(message, huggingface.save, relative, tmp_path / 'out')
  assert not (tmp_path / 'out').exists()
