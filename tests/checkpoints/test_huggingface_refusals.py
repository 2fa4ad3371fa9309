"""What is wrong with another library's folder is said in one line."""

import json
import os
import shutil

import numpy as np
import pytest
import safetensors.numpy
from testing import deadline, foreign

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


def _refused(folder, message):
  with pytest.raises(UserError, match=message) as error:
    specsamp.load(folder)
  assert '\n' not in str(error.value)


def _edit(folder, name, **changes):
  file = folder / name
  values = json.loads(file.read_text()) | changes
  file.write_text(json.dumps({k: v for k, v in values.items() if v != 'drop'}))


_INDEX = 'model.safetensors.index.json'


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(architectures='drop'), 'config.json: names no architecture'),
    (dict(architectures=[]), 'config.json: names no architecture'),
    (
      dict(architectures=['MixtralForCausalLM']),
      "architecture: got 'MixtralForCausalLM', expected one of .*Llama",
    ),
    (dict(model_type='qwen2'), "model_type: got 'qwen2', expected 'llama'"),
    (dict(hidden_size=None), 'config.json: no hidden_size'),
    (dict(hidden_size='24'), 'config.json: '),
    (dict(num_key_value_heads=3), 'num_kv_heads must divide num_heads=4'),
    (dict(hidden_act='relu6'), "hidden_act: got 'relu6', expected one of"),
    (dict(quantization_config=dict(bits=4)), 'quantization_config: got '),
    (
      dict(rope_parameters=dict(rope_type='yarn', factor=2.0)),
      "rope_type: got 'yarn', expected one of default, linear, llama3",
    ),
    (
      dict(rope_parameters='drop', rope_scaling=dict(type='dynamic', factor=2)),
      "rope_type: got 'dynamic'",
    ),
    (
      dict(rope_parameters=dict(rope_type='llama3', factor=2.0)),
      'no low_freq_factor',
    ),
    (dict(rope_parameters=dict(partial_rotary_factor=0.5)), 'partial_rotary'),
    (dict(num_attention_heads=0), 'config.json: .*zero'),
    (
      dict(rms_norm_eps='1e-5'),
      "norm_epsilon must be a positive number, got '",
    ),
    (
      dict(rope_parameters=dict(rope_theta=0.0, rope_type='default')),
      r'rope_theta must be a positive number, got 0\.0',
    ),
    (
      dict(tie_word_embeddings='false'),
      "tied_embeddings must be true or false, got 'false'",
    ),
    (dict(mlp_bias=True), 'mlp_bias: only supported with attention_bias'),
    (dict(max_position_embeddings=0), 'max_length must be a positive integer'),
  ],
)
def test_configs(llama, tmp_path, changes, message):
  folder = shutil.copytree(llama, tmp_path / 'model')
  _edit(folder, 'config.json', **changes)
  _refused(folder, message)


@pytest.mark.parametrize(
  ('family', 'changes', 'message'),
  [
    (
      'opt',
      dict(do_layer_norm_before=False),
      'do_layer_norm_before: got False',
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
def test_configs_of_other_families(family, changes, message, tmp_path):
  foreign.save_tokenizer(tmp_path, 53)
  values = foreign.config(family).to_dict()
  values['architectures'] = [
    dict(
      opt='OPTForCausalLM', gpt2='GPT2LMHeadModel', qwen3='Qwen3ForCausalLM'
    )[family]
  ]
  (tmp_path / 'config.json').write_text(json.dumps(values))
  _edit(tmp_path, 'config.json', **changes)
  _refused(tmp_path, message)


def _cut(folder):
  file = sorted(folder.glob('model-*.safetensors'))[1]
  file.write_bytes(file.read_bytes()[:-100])


def _garbage(folder):
  file = sorted(folder.glob('model-*.safetensors'))[0]
  file.write_bytes(b'\xff' * 100)


def _without_a_file(folder):
  sorted(folder.glob('model-*.safetensors'))[0].unlink()


def _empty_index(folder):
  (folder / _INDEX).write_text('{}')


def _index(**places):
  def damage(folder):
    values = json.loads((folder / _INDEX).read_text())
    values['weight_map'] |= places
    (folder / _INDEX).write_text(json.dumps(values))

  return damage


def _pickle(folder):
  for file in [*folder.glob('*.safetensors'), folder / _INDEX]:
    file.unlink()
  (folder / 'pytorch_model.bin').write_bytes(b'cos\nsystem\n')


def _nothing(folder):
  _pickle(folder)
  (folder / 'pytorch_model.bin').unlink()


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (_cut, r'model-0.*\.safetensors: truncated or corrupt'),
    (_garbage, r'model-0.*\.safetensors: truncated or corrupt'),
    (_without_a_file, r'model-0.*\.safetensors: no such file'),
    (_empty_index, "index.json: not an index, expected a 'weight_map'"),
    (
      _index(**{'model.norm.weight': '../elsewhere.safetensors'}),
      'index.json: not an index',
    ),
    (
      _index(**{'model.norm.weight': 'model-00001-of-00002.safetensors'}),
      'no such file|1 tensors are elsewhere, first model.norm.weight',
    ),
    (
      _index(**{'model.of_nothing': 'drop'}),
      'drop.*: no such file',
    ),
    (_index(**{'model.of_nothing': 'lone \ud800'}), r'lone \\ud800'),
    (_pickle, 'pytorch_model.bin: pickles run code when they are read'),
    (_nothing, 'found none, expected model.safetensors'),
    (lambda folder: (folder / 'config.json').unlink(), 'No such file'),
    (lambda folder: (folder / 'config.json').write_text('['), 'not a model'),
    (lambda folder: (folder / 'config.json').write_text('[]'), 'not a model'),
  ],
)
def test_files(llama, tmp_path, damage, message):
  folder = shutil.copytree(llama, tmp_path / 'model')
  damage(folder)
  _refused(folder, message)


def _pipe(path):
  path.unlink()
  os.mkfifo(path)


def _device(path):
  path.unlink()
  path.symlink_to('/dev/null')


@pytest.mark.parametrize(
  ('make', 'name'),
  [
    (_pipe, 'config.json'),
    (_pipe, _INDEX),
    (_device, 'config.json'),
    (_device, 'model-00001-*'),
  ],
)
def test_pipes_and_devices(llama, tmp_path, make, name):
  folder = shutil.copytree(llama, tmp_path / 'model')
  path = next(folder.glob(name))
  make(path)
  message = f'{path.name}.*: .*not a regular file'
  with pytest.raises(UserError, match=message) as e:
    deadline.call(specsamp.load, folder)
  assert '\n' not in str(e.value)


def test_tensors(saved, tmp_path):
  """Missing, left over, of another shape or of no floats: all are listed."""
  folder = shutil.copytree(saved, tmp_path / 'model')
  file = folder / 'model.safetensors'
  tensors = safetensors.numpy.load_file(file)
  first, second, third, *_ = sorted(tensors)
  del tensors[first]
  tensors[second] = np.zeros((3, 3), np.float32)
  tensors[third] = tensors[third].astype(np.int8)
  tensors['of.nobody'] = np.zeros(1, np.float32)
  safetensors.numpy.save_file(tensors, file)
  _refused(
    folder,
    rf'tensors do not fit the config; 1 missing: {first}; 1 not used: '
    rf'of\.nobody; 1 of another shape: {second} \[3, 3\] instead of .*; '
    rf'1 that are no floats of 16 or 32 bits: {third} I8',
  )


def test_a_free_head_that_is_not_there(tmp_path):
  foreign.save(foreign.model('qwen2'), tmp_path)  # tied
  _edit(tmp_path, 'config.json', tie_word_embeddings=False)
  _refused(
    tmp_path, 'tie_word_embeddings is false: .*; 1 missing: lm_head.weight$'
  )


def test_what_no_architecture_computes(tmp_path):
  from testing import tiny

  relative = tiny.model(11, 0, positions='relative')
  with pytest.raises(UserError, match='no architecture .* relative positions'):
    huggingface.save(relative, tmp_path / 'out')
  assert not (tmp_path / 'out').exists()
