"""Folders of transformers: values of config.json, and mistakes in one line."""

import dataclasses
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
from specsamp.models import presets, rotary
from specsamp.models.config import RopeScaling

_LLAMA3 = dict(
  rope_type='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0
)
_LLAMA = dict(architectures=['LlamaForCausalLM'], model_type='llama')
_MISTRAL = dict(architectures=['MistralForCausalLM'], model_type='mistral')
_MINISTRAL = dict(
  architectures=['Ministral3ForCausalLM'], model_type='ministral3'
)
_QWEN_MOE = dict(architectures=['Qwen3MoeForCausalLM'], model_type='qwen3_moe')
_PHI = dict(architectures=['Phi3ForCausalLM'], model_type='phi3')
_GLM = dict(architectures=['Glm4ForCausalLM'], model_type='glm4')
_GEMMA2 = dict(architectures=['Gemma2ForCausalLM'], model_type='gemma2')
_GEMMA3 = dict(architectures=['Gemma3ForCausalLM'], model_type='gemma3_text')
_MULTIMODAL = dict(
  architectures=['Gemma3ForConditionalGeneration'], model_type='gemma3'
)
_QWEN2 = dict(architectures=['Qwen2ForCausalLM'], model_type='qwen2')
_OPT = dict(architectures=['OPTForCausalLM'], model_type='opt')
_GPT2 = dict(architectures=['GPT2LMHeadModel'], model_type='gpt2')


def _read(**values):
  return families.of(_LLAMA | values).read(_LLAMA | values)


def _defaults(name, **values):
  """Returns a config.json with all keys of an architecture's config class."""
  import transformers

  kind = name.removesuffix('ForCausalLM').removesuffix('LMHeadModel')
  kind = kind.replace('Gemma3', 'Gemma3Text') + 'Config'
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
    ('Ministral3ForCausalLM', 'sliding_window'),
    ('MixtralForCausalLM', 'head_dim'),
    ('Qwen3MoeForCausalLM', 'mlp_only_layers'),
    ('Phi3ForCausalLM', 'num_key_value_heads'),
    ('Glm4ForCausalLM', 'rope_parameters'),
    ('Gemma2ForCausalLM', 'attn_logit_softcapping'),
    ('Gemma3ForCausalLM', 'layer_types'),
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
    ('Ministral3ForCausalLM', 'attention_bias', True),
    ('Gemma2ForCausalLM', 'hidden_act', 'silu'),
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


@pytest.mark.parametrize(
  ('about', 'keys'),
  [
    (_QWEN2, dict(use_mrope=False)),  # Qwen2.5, R1-Distill-Qwen
    (_GEMMA2, dict(sliding_window=9, sliding_window_size=4096)),  # 9B
    (_GPT2, dict(n_special=0, predict_special_tokens=True)),  # medium
    (_GPT2, dict(_num_labels=1, id2label={'0': 'LABEL_0'})),  # DistilGPT-2
  ],
)
def test_more_keys_of_published_files(about, keys):
  expected = {key: keys[key] for key in keys if key == 'sliding_window'}
  assert _read(**about, **keys) == _read(**about, **expected)


def _windows(**values):
  """Returns the window of each of two layers."""
  config = _read(num_hidden_layers=2, max_position_embeddings=64, **values)
  assert config.max_length == 64
  return [config.window(i) for i in range(2)]


@pytest.mark.parity
@pytest.mark.parametrize('name', ['qwen2', 'qwen3'])
@pytest.mark.parametrize(
  'values',
  [
    dict(max_window_layers=28),
    dict(max_window_layers=2),
    dict(max_window_layers=1),
    dict(),
    dict(sliding_window=None, max_window_layers=0),
    dict(use_sliding_window=False, max_window_layers=0),
    dict(layer_types=['full_attention', 'sliding_attention']),
    dict(layer_types=['sliding_attention', 'full_attention']),
  ],
)
def test_windows_of_qwen(name, values):
  """Without layer_types, layers from max_window_layers on slide."""
  import transformers

  values = dict(use_sliding_window=True, sliding_window=8) | values
  kind = getattr(transformers, f'{name.capitalize()}Config')
  theirs = kind(num_hidden_layers=2, **values)
  expected = [
    theirs.sliding_window if kind == 'sliding_attention' else 0
    for kind in theirs.layer_types
  ]
  about = dict(
    architectures=[f'{name.capitalize()}ForCausalLM'], model_type=name
  )
  assert _windows(**about, **values) == expected


def test_windows():
  """A window is no limit on the length of a text."""
  kinds = ['sliding_attention', 'full_attention']
  assert _windows(**_MISTRAL, sliding_window=12) == [12, 12]
  assert _windows(**_MISTRAL, sliding_window=None) == [0, 0]
  assert _windows(**_MISTRAL, layer_types=kinds) == [4096, 4096]
  assert _windows(**_PHI, sliding_window=12) == [12, 12]
  assert _windows(**_GEMMA3, sliding_window=12) == [12, 12]
  assert _windows(**_GEMMA3, sliding_window=12, sliding_window_pattern=2) == [
    12,
    0,
  ]
  assert _windows(**_GEMMA3, sliding_window=12, layer_types=kinds) == [12, 0]
  # The published config of Gemma 3 27B, which leaves most to its class.
  text = dict(
    model_type='gemma3_text',
    head_dim=128,
    hidden_size=5376,
    intermediate_size=21_504,
    num_attention_heads=32,
    num_hidden_layers=62,
    num_key_value_heads=16,
    query_pre_attn_scalar=168,
    rope_scaling=dict(factor=8.0, rope_type='linear'),
    sliding_window=1024,
  )
  values = _MULTIMODAL | dict(
    text_config=text,
    vision_config=dict(model_type='siglip_vision_model'),
    mm_tokens_per_image=256,
    boi_token_index=255_999,
    eoi_token_index=256_000,
    image_token_index=262_144,
    initializer_range=0.02,
  )
  text = families.text_config(values)
  config = families.of(text).read(text)
  expected = dataclasses.replace(presets.gemma3_27b(), dtype='float32')
  assert config == expected


# d, theta, factor, original length, further keys; first and last stretched
# pair; factor of cos and sin; share of the frequencies that is kept.
_YARN = [
  (
    (128, 1e6, 4.0, 32_768, {}),
    1.138629,
    {10: 1, 20: 1, 25: 0.9118, 30: 0.6912, 63: 0.25},
  ),
  (
    (64, 1.5e5, 32.0, 4096, dict(truncate=False)),
    1.346574,
    {10: 0.8014, 20: 0.03125, 25: 0.03125, 30: 0.03125, 31: 0.03125},
  ),
  (
    (64, 1e4, 16.0, 4096, {}),
    1.277259,
    {10: 1, 20: 0.2788, 25: 0.0625, 30: 0.0625, 31: 0.0625},
  ),
  (
    (128, 1e6, 16.0, 16_384, dict(mscale=1.0, mscale_all_dim=1.0)),
    1.0,
    {10: 1, 20: 1, 25: 0.7243, 30: 0.4485, 63: 0.0625},
  ),
]


@pytest.mark.parametrize(('values', 'attention', 'kept'), _YARN)
@pytest.mark.parametrize('in_rope', [True, False])
@pytest.mark.parametrize('key', ['type', 'rope_type'])
@pytest.mark.parametrize('name', ['rope_scaling', 'rope_parameters'])
def test_yarn(values, attention, kept, in_rope, key, name):
  """Figures of Qwen, gpt-oss, Kimi's head and Ministral 3.

  The width of a head is head_dim, not hidden_size over the heads.
  """
  size, theta, factor, length, more = values
  original = dict(original_max_position_embeddings=length)
  rope = {key: 'yarn', 'factor': factor} | more | (original if in_rope else {})
  config = _read(
    hidden_size=1024,
    num_attention_heads=32,
    head_dim=size,
    rope_theta=theta,
    **{name: rope},
    **({} if in_rope else original),
  )
  assert config.rope_scaling.attention_factor == pytest.approx(attention)
  ratio = rotary.frequencies(config) / theta ** (-np.arange(0, size, 2) / size)
  assert {i: ratio[i] for i in kept} == pytest.approx(kept, abs=1e-4)


@pytest.mark.parity
@pytest.mark.parametrize(
  'rope',
  [
    dict(beta_fast=None, beta_slow=None),
    dict(beta_fast=8.0, beta_slow=2.0, attention_factor=1.5),
    dict(mscale=0.707, mscale_all_dim=0.5, truncate=False),
    dict(mscale=0.707),
    dict(factor=1.0),
  ],
)
def test_yarn_in_transformers(rope):
  from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

  rope = dict(rope_type='yarn', factor=4.0, rope_theta=1e4) | rope
  values = dict(head_dim=64, max_position_embeddings=2048, rope_parameters=rope)
  import transformers

  theirs = transformers.LlamaConfig(**json.loads(json.dumps(values)))
  expected, attention = ROPE_INIT_FUNCTIONS['yarn'](theirs)
  config = _read(**values)
  np.testing.assert_allclose(rotary.frequencies(config), expected, rtol=1e-5)
  assert config.rope_scaling.attention_factor == pytest.approx(attention)


def test_the_width_of_a_head():
  """Heads of Mistral Nemo are narrower than the model. Null is as absent."""
  nemo = _MISTRAL | dict(hidden_size=5120, num_attention_heads=32)
  for values, expected in (
    (dict(head_dim=128), 128),
    (dict(head_dim=None), 160),
    (dict(), 160),
  ):
    assert _read(**nemo, **values).head_dim == expected


def test_a_rotated_part_is_written_in_each_place():
  """Older programs read no rope_parameters and would rotate whole heads."""
  key = 'partial_rotary_factor'
  for about in (_PHI, _GLM):
    written = families.write(_read(**about, **{key: 0.5}))
    assert written['architectures'] == about['architectures']
    assert written[key] == written['rope_parameters'][key] == 0.5


@pytest.mark.parametrize(
  ('outer', 'inner', 'expected'),
  [(True, False, True), (False, True, False), (None, True, True)],
)
def test_the_outer_config_ties_embeddings(outer, inner, expected):
  values = dict(
    architectures=['Mistral3ForConditionalGeneration'],
    text_config=dict(model_type='mistral', tie_word_embeddings=inner),
    tie_word_embeddings=outer,
  )
  text = families.text_config(values)
  assert families.of(text).read(text).tied_embeddings == expected


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
    (dict(architectures=['GptOssForCausalLM']), "got 'GptOssForCausalLM', ex"),
    (dict(model_type='qwen2'), "got 'qwen2', expected 'llama'"),
    (dict(num_key_value_heads=3), 'num_kv_heads must divide num_hea'),
    (dict(hidden_act='relu6'), "hidden_act: got 'relu6', expected"),
    (dict(quantization_config=dict(bits=4)), 'quantization_config: '),
    (dict(rope_parameters=dict(rope_type='yarn')), 'no factor'),
    (dict(rope_scaling=dict(type='dynamic')), "rope_type: got 'dynamic'"),
    (dict(rope_scaling=dict(type='longrope')), "rope_type: got 'longrope'"),
    (_PHI | dict(rope_scaling=dict(type='su')), "rope_type: got 'su'"),
    (_PHI | dict(rope_scaling=dict(type='yarn')), "rope_type: got 'yarn'"),
    (
      dict(rope_scaling=dict(rope_type='default', type='yarn', factor=2.0)),
      "rope_type: got 'default' and 'yarn', expected one",
    ),
    (
      dict(rope_scaling=dict(type='linear', factor=2.0, alpha=3)),
      "got 'alpha': 3, an unknown key",
    ),
    (dict(residual_multiplier=0.2), "got 'residual_multiplier': 0.2, an unk"),
    (_GPT2 | dict(rotary=True), "got 'rotary': True, an unknown key"),
    (dict(quantization=dict(bits=4)), "'quantization': {'bits': 4}, an unkn"),
    (
      _MISTRAL | dict(sliding_window=0),
      'sliding_window: got 0, expected at least 1',
    ),
    (
      _MINISTRAL | dict(rope_scaling=dict(type='yarn', factor=2.0)),
      'no llama_4_scaling_beta',
    ),
    (
      _MINISTRAL | dict(rope_parameters=dict(type='default')),
      "rope_type: got 'default', expected one of yarn",
    ),
    (_QWEN_MOE | dict(mlp_only_layers=[0.5]), r'mlp_only_layers: got \[0.5\]'),
    (_QWEN_MOE | dict(decoder_sparse_step=0), 'decoder_sparse_step: got 0'),
    (
      _QWEN_MOE | dict(num_experts=8, num_local_experts=4),
      'num_experts: got 8 and 4, expected one',
    ),
    (_QWEN_MOE | dict(num_experts=4), 'experts_per_token must be 1 to .*=4'),
    (_GLM | dict(partial_rotary_factor=0.25), 'partial_rotary_factor: got 0.2'),
    (
      _GEMMA3 | dict(use_bidirectional_attention=True),
      'use_bidirectional_attention: got True',
    ),
    (
      _GEMMA3 | dict(attn_logit_softcapping=50.0),
      'softcapping: got 50.0, only',
    ),
    (
      _GEMMA3 | dict(rope_parameters=dict(rope_theta=1e6)),
      "got 'rope_theta': 1000000.0, an unknown key",
    ),
    (
      _GEMMA3 | dict(layer_types=['sliding_attention']),
      'layer_types: got 1 kinds of 26 layers',
    ),
    (_MULTIMODAL, 'no text_config'),
    (
      _MULTIMODAL | dict(text_config=dict(model_type='llama')),
      "model_type of text_config: got 'llama'",
    ),
    (
      _MULTIMODAL | dict(quantization_config=dict(bits=4), text_config={}),
      "'quantization_config': {'bits': 4}, an unkn",
    ),
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


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(positions='relative'), "no positions 'relative'"),
    (dict(score_cap=5.0), 'a LlamaForCausalLM has no score_cap 5.0'),
    (
      dict(logit_cap=5.0, windows=(3,)),
      'MistralForCausalLM has no logit_cap 5',
    ),
    (
      dict(output_norms=True, qk_norm=True),
      'has no .*output_norms|qk_norm True',
    ),
    (dict(windows=(3, 0), biases='attention'), 'has no .*windows'),
    (
      dict(num_experts=4, experts_per_token=2, expert_width=8),
      'a MixtralForCausalLM has no expert_width 8',
    ),
    (dict(embedding_scale=2.0), 'no embedding_scale 2.0'),
    (dict(query_scale=2.0), 'no query_scale 2.0'),
    (dict(window_rope_theta=10.0, windows=(3,)), 'no window_rope_theta 10.0'),
    (dict(rotary_fraction=0.5, qk_norm=True), 'no rotary_fraction 0.5'),
    (
      dict(query_growth=0.1, rope_scaling=RopeScaling('llama3', 2.0)),
      'no query_growth 0.1',
    ),
  ],
)
def test_a_model_that_no_architecture_computes(tmp_path, changes, message):
  """Each field that a family lacks keeps it from being written."""
  model = tiny.model(11, 0, **changes)
  message = f'no architecture of transformers .*{message}'
  refused(message, huggingface.save, model, tmp_path / 'out')
  assert not (tmp_path / 'out').exists()
