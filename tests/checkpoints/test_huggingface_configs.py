"""Values of config.json, with the defaults and spellings of transformers."""

import pytest
import safetensors.numpy
from testing import foreign

import specsamp
from specsamp.checkpoints.huggingface import families
from specsamp.errors import UserError
from specsamp.models.config import RopeScaling

_LLAMA3 = dict(
  rope_type='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0
)
_BASE = dict(architectures=['LlamaForCausalLM'], model_type='llama')
# Architecture -> config class in transformers.
_CLASSES = {
  'LlamaForCausalLM': 'LlamaConfig',
  'MistralForCausalLM': 'MistralConfig',
  'Qwen2ForCausalLM': 'Qwen2Config',
  'Qwen3ForCausalLM': 'Qwen3Config',
  'OPTForCausalLM': 'OPTConfig',
  'GPT2LMHeadModel': 'GPT2Config',
}


def _read(**values):
  return families.of(_BASE | values).read(_BASE | values)


def _refused(message, **values):
  with pytest.raises(UserError, match=message) as error:
    _read(**values)
  assert '\n' not in str(error.value)


@pytest.mark.parity
@pytest.mark.parametrize('name', _CLASSES)
def test_absent_keys_are_the_classes_defaults(name):
  import transformers

  whole = getattr(transformers, _CLASSES[name])().to_dict()
  about = dict(architectures=[name], model_type=whole['model_type'])
  assert _read(**about) == _read(**(whole | about))


@pytest.mark.parity
@pytest.mark.parametrize(
  ('name', 'key'),
  [
    ('LlamaForCausalLM', 'num_key_value_heads'),
    ('LlamaForCausalLM', 'head_dim'),
    ('MistralForCausalLM', 'sliding_window'),
    ('Qwen3ForCausalLM', 'rope_scaling'),
    ('OPTForCausalLM', 'word_embed_proj_dim'),
    ('GPT2LMHeadModel', 'n_inner'),
  ],
)
def test_null_is_the_classes_default(name, key):
  import transformers

  null = {key: None}
  whole = getattr(transformers, _CLASSES[name])(**null).to_dict()
  about = dict(architectures=[name], model_type=whole['model_type'])
  assert _read(**(about | null)) == _read(**(whole | about))


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
  import transformers

  whole = getattr(transformers, _CLASSES[name])().to_dict()
  about = dict(architectures=[name], model_type=whole['model_type'])
  assert _read(**(whole | about | {key: value})) == _read(**(whole | about))


@pytest.mark.parity
@pytest.mark.parametrize('model_type', ['qwen2', 'qwen3'])
@pytest.mark.parametrize(
  'values',
  [
    dict(max_window_layers=28),
    dict(max_window_layers=2),
    dict(max_window_layers=1),
    dict(max_window_layers=0),
    dict(),
    dict(sliding_window=None, max_window_layers=0),
    dict(use_sliding_window=False, max_window_layers=0),
  ],
)
def test_windows_without_layer_types(model_type, values):
  """Layers from max_window_layers on slide."""
  import transformers

  values = values | {
    'num_hidden_layers': 2,
    'max_position_embeddings': 64,
    'use_sliding_window': values.get('use_sliding_window', True),
    'sliding_window': values.get('sliding_window', 8),
  }
  kind = getattr(transformers, f'{model_type.title()}Config')
  slides = 'sliding_attention' in kind(**values).layer_types
  architecture = f'{model_type.title()}ForCausalLM'
  got = _read(architectures=[architecture], model_type=model_type, **values)
  assert got.max_length == (8 if slides else 64)


def test_sliding_layers_without_a_window():
  """transformers cannot compute them either."""
  _refused(
    'layer_types: got sliding_attention, expected a sliding_window',
    architectures=['Qwen2ForCausalLM'],
    model_type='qwen2',
    num_hidden_layers=2,
    layer_types=['sliding_attention', 'full_attention'],
  )


@pytest.mark.parity
@pytest.mark.parametrize('name', ['llama, tied, biases', 'opt', 'gpt2'])
def test_a_tied_folder_that_keeps_only_the_head(tmp_path, name):
  foreign.save(foreign.model(name), tmp_path)
  whole = specsamp.load(tmp_path)
  file = tmp_path / 'model.safetensors'
  tensors = safetensors.numpy.load_file(file)
  (embedding,) = [
    key
    for key in tensors
    if key.endswith(('embed_tokens.weight', 'wte.weight'))
  ]
  tensors['lm_head.weight'] = tensors.pop(embedding)
  safetensors.numpy.save_file(tensors, file, {'format': 'pt'})
  got = specsamp.load(tmp_path)
  assert got.config.tied_embeddings
  assert got.fingerprint == whole.fingerprint


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


@pytest.mark.parametrize(
  ('values', 'length'),
  [
    (dict(rope_scaling=_LLAMA3, original_max_position_embeddings=64), 64),
    (
      dict(
        rope_scaling=_LLAMA3 | dict(original_max_position_embeddings=64),
        original_max_position_embeddings=64,
      ),
      64,
    ),
    (dict(rope_scaling=_LLAMA3, max_position_embeddings=512), 512),
  ],
)
def test_the_original_length(values, length):
  assert _read(**values).rope_scaling.original_length == length


@pytest.mark.parametrize(
  ('values', 'message'),
  [
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
      dict(
        rope_scaling=_LLAMA3 | dict(original_max_position_embeddings=64),
        original_max_position_embeddings=128,
      ),
      'original_max_position_embeddings: got 64 and 128, expected one',
    ),
    (
      dict(
        rope_parameters=dict(
          full_attention=dict(rope_theta=1e6),
          sliding_attention=dict(rope_theta=1e4),
        )
      ),
      'rope_parameters: got full_attention, sliding_attention, expected one',
    ),
  ],
)
def test_contradictions(values, message):
  _refused(message, **values)
