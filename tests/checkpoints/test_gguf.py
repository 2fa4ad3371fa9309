"""GGUF files: weights, configs and refusals."""

import dataclasses
import itertools
import math
import sys

import gguf
import gguf_on_disk as on_disk
import jax
import numpy as np
import pytest
from testing import fake_hub, foreign, launching

import specsamp
from specsamp.checkpoints import convert, drafter_dir, model_dir
from specsamp.checkpoints import weights as stored
from specsamp.checkpoints.gguf import file
from specsamp.checkpoints.gguf import model as gguf_model
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.errors import UserError
from specsamp.models import TransformerConfig
from specsamp.models.config import RopeScaling
from specsamp.sharding import mesh as meshes

_CONFIG = TransformerConfig(
  vocab_size=on_disk.WORDS,
  width=32,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  mlp_width=64,
  max_length=64,
  rope_theta=500.0,
  norm_epsilon=1e-5,
)
_GEMMA = dict(
  head_dim=16,
  windows=(5, 5, 5, 5, 5, 0),
  window_rope_theta=1e4,
  embedding_scale=32**0.5,
  qk_norm=True,
  output_norms=True,
  activation='gelu_tanh',
  tied_embeddings=True,
)
_YARN = {
  'rope.scaling.type': 'yarn',
  'rope.scaling.factor': 4.0,
  'rope.scaling.original_context_length': 32,
}


# Architecture, letters of biases, whether the model is tied, metadata that
# differ, fields of the config that differ.
_CASES = {
  'llama': ('llama', '', False, {}, {}),
  'llama, tied, biases': (
    'llama',
    'qkvo',
    True,
    {'attention.sliding_window': 40},
    dict(biases='attention', tied_embeddings=True, max_length=40),
  ),
  'llama, linear': (
    'llama',
    '',
    False,
    {'rope.scaling.type': 'linear', 'rope.scaling.factor': 2.0},
    dict(rope_scaling=RopeScaling('linear', 2.0)),
  ),
  'qwen2': ('qwen2', 'qkv', False, {}, dict(biases='qkv')),
  'qwen2, yarn': (
    'qwen2',
    'qkv',
    True,
    _YARN,
    dict(
      biases='qkv',
      tied_embeddings=True,
      rope_scaling=RopeScaling(
        'yarn', 4.0, 1.0, 32.0, 32, True, 1 + 0.1 * math.log(4.0)
      ),
    ),
  ),
  'qwen3': ('qwen3', '', True, {}, dict(qk_norm=True, tied_embeddings=True)),
  'gemma3': ('gemma3', '', True, {}, _GEMMA),
  'gemma3, linear, pattern': (
    'gemma3',
    '',
    True,
    {
      'rope.scaling.type': 'linear',
      'rope.scaling.factor': 8.0,
      'attention.sliding_window_pattern': [True, False],
    },
    _GEMMA | dict(windows=(5, 0), rope_scaling=RopeScaling('linear', 8.0)),
  ),
}


def _make(path, name, **changes):
  """Writes the file of a case and returns its weights."""
  architecture, biases, tied, values, _ = _CASES[name]
  values = on_disk.metadata(architecture, **values | changes)
  return on_disk.make(path, values, biases, tied)


def _params(config, tensors, added: float):
  """Returns the parameters of tensors in Hugging Face's names."""
  names = {
    'embedding': 'model.embed_tokens.weight',
    'final_norm.scale': 'model.norm.weight',
  }
  if not config.tied_embeddings:
    names['head'] = 'lm_head.weight'
  params = {name: tensors[key] for name, key in names.items()}
  norms = ['attention_norm', 'mlp_norm']
  keys = ['input_layernorm', 'post_attention_layernorm']
  if config.output_norms:
    norms = ['attention_norm', 'attention_output_norm', 'mlp_norm']
    norms += ['mlp_output_norm']
    keys += ['pre_feedforward_layernorm', 'post_feedforward_layernorm']
  z, width = config.head_dim, config.width
  for i in range(config.num_layers):
    get = lambda key, i=i: tensors.get(f'model.layers.{i}.{key}')
    q, k, v, o = (get(f'self_attn.{x}_proj.weight') for x in 'qkvo')
    biases = [get(f'self_attn.{x}_proj.bias') for x in 'qkvo']
    layer = {
      'attention.q': q.reshape(-1, z, width),
      'attention.kv': np.stack([x.reshape(-1, z, width) for x in (k, v)]),
      'attention.o': o.reshape(width, -1, z),
      'mlp.up': np.stack([get(f'mlp.{x}_proj.weight') for x in ('gate', 'up')]),
      'mlp.down': get('mlp.down_proj.weight'),
    }
    if biases[0] is not None:
      q, k, v = (bias.reshape(-1, z) for bias in biases[:3])
      layer |= {'attention.q_bias': q, 'attention.kv_bias': np.stack([k, v])}
    if biases[3] is not None:
      layer['attention.o_bias'] = biases[3]
    for norm, key in zip(norms, keys, strict=True):
      layer[f'{norm}.scale'] = get(f'{key}.weight')
    if config.qk_norm:
      for x in 'qk':
        layer[f'attention.{x}_norm'] = get(f'self_attn.{x}_norm.weight')
    params |= {f'layers_{i}.{name}': value for name, value in layer.items()}
  return {
    name: value + np.float32(added) if 'norm' in name else value
    for name, value in params.items()
  }


def _same(a, b):
  assert a.keys() == b.keys()
  for name, value in a.items():
    np.testing.assert_array_equal(value, b[name], err_msg=name)


@pytest.mark.parametrize('name', _CASES)
def test_config_and_parameters(name, tmp_path):
  tensors = _make(tmp_path / 'm.gguf', name)
  model = specsamp.load(tmp_path / 'm.gguf')
  assert model.config == dataclasses.replace(_CONFIG, **_CASES[name][-1])
  added = name.startswith('gemma3')
  _same(stored.flat(model.params), _params(model.config, tensors, added))
  assert model.tokenizer.stop_ids == (on_disk.WORDS - 1,)
  assert model.tokenizer.encode('#"#!') == [2, 62, 0]
  assert (
    specsamp.checkpoints.model_dir.stored_dtype(tmp_path / 'm.gguf')
    == 'bfloat16'
  )


def test_queries_of_gemma_3_27b():
  """They have the scale of the width of a head in the residual stream."""
  for layers, scale in ((48, None), (62, 8**-0.5)):
    values = on_disk.metadata('gemma3', block_count=layers)
    embedding = file.Stored('', 0, (64, 32), 'F32', 1, 4)
    config = gguf_model._read_config(
      'gemma3', values, {'token_embd.weight': embedding}
    )
    assert config.query_scale == scale


# Class of the config in transformers, and values that differ from the defaults.
_TEXT = dict(
  hidden_size=32,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  intermediate_size=64,
  max_position_embeddings=64,
  rms_norm_eps=1e-5,
  vocab_size=on_disk.WORDS,
  head_dim=8,
  bos_token_id=0,
  eos_token_id=None,
  pad_token_id=None,
)
_ROPE = dict(rope_type='default', rope_theta=500.0)
_THEIRS = {
  'llama': ('LlamaConfig', dict(rope_parameters=_ROPE)),
  'qwen2, yarn': (
    'Qwen2Config',
    dict(
      rope_parameters=dict(
        rope_type='yarn',
        rope_theta=500.0,
        factor=4.0,
        original_max_position_embeddings=32,
      ),
      tie_word_embeddings=True,
    ),
  ),
  'qwen3': (
    'Qwen3Config',
    dict(rope_parameters=_ROPE, tie_word_embeddings=True),
  ),
  'gemma3, linear, pattern': (
    'Gemma3TextConfig',
    dict(
      head_dim=16,
      query_pre_attn_scalar=16,
      sliding_window=5,
      layer_types=['sliding_attention', 'full_attention'],
      rope_parameters={
        'sliding_attention': dict(rope_type='default', rope_theta=10_000.0),
        'full_attention': dict(
          rope_type='linear', factor=8.0, rope_theta=500.0
        ),
      },
    ),
  ),
}


@pytest.mark.parity
@pytest.mark.parametrize('name', _THEIRS)
def test_logits_of_transformers(name, tmp_path):
  import torch
  import transformers

  kind, values = _THEIRS[name]
  tensors = _make(tmp_path / 'm.gguf', name)
  model = specsamp.load(tmp_path / 'm.gguf')
  config = getattr(transformers, kind)(**_TEXT | values)
  theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
  loaded = theirs.load_state_dict(
    {key: torch.tensor(value) for key, value in tensors.items()}, strict=False
  )
  assert not loaded.unexpected_keys
  assert (
    loaded.missing_keys == ['lm_head.weight'] * model.config.tied_embeddings
  )
  tokens = np.random.default_rng(0).integers(0, on_disk.WORDS, (2, 40))
  got = model.transformer.apply(
    {'params': model.params}, tokens.astype(np.int32)
  ).logits
  expected = foreign.logits(theirs, tokens)
  np.testing.assert_allclose(
    got, expected, atol=1e-5 * np.abs(expected).max(), rtol=0
  )


@pytest.mark.integration
def test_launchers(tmp_path):
  values = on_disk.metadata('qwen2')
  on_disk.make(tmp_path / 'm.gguf', values, 'qkv')
  ended = launching.run_here(
    'decode',
    '--config=configs/quickstart.py:smoke',
    f'--config.target={tmp_path}/m.gguf',
    '--config.drafter=ngram',
    '--config.max_new_tokens=8',
    '--prompt=#"#!',
    f'--workdir={tmp_path}/run',
  )
  assert ended.code == 0, ended.err
  (tmp_path / 'bad.gguf').write_bytes(b'GGUF')
  ended = launching.run_here(
    'import_weights', f'--source={tmp_path}/bad.gguf', f'--to={tmp_path}/out'
  )
  assert ended.code == 2 and ended.err.count('\n') == 1, ended
  assert 'bad.gguf: truncated or corrupt' in ended.err
  assert not (tmp_path / 'out').exists()


def test_the_tensor_of_llama_3(tmp_path):
  """It holds the ratio of each wavelength to the old one."""
  values = on_disk.metadata('llama')
  tensors = on_disk.tensors(values, on_disk.weights(values))
  values['llama.rope.scaling.original_context_length'] = 32
  fits = 32 * 500.0 ** (-np.arange(4) / 4) / (2 * np.pi)
  kept = np.clip((fits - 1) / (4 - 1), 0, 1)
  assert ((kept > 0) & (kept < 1)).any()
  ratios = (1 / (kept + (1 - kept) / 8)).astype(np.float32)
  tensors['rope_freqs.weight'] = ratios, 'F32'
  on_disk.write(tmp_path / 'm.gguf', values, tensors)
  scaling = specsamp.load(tmp_path / 'm.gguf').config.rope_scaling
  assert scaling == RopeScaling('llama3', 8.0, 1.0, 4.0, 32)
  tensors['rope_freqs.weight'] = 1.01 * ratios, 'F32'
  _refused(tmp_path, values, tensors, 'rope_freqs.weight: not the scaling')


@pytest.mark.parametrize('kind', ['F32', 'F16', 'BF16', 'Q8_0', 'Q4_1', 'Q6_K'])
def test_parts_of_tensors(kind, tmp_path):
  """Any slice equals that of the whole tensor, and floats keep their dtype."""
  rng = np.random.default_rng(0)
  value = rng.standard_normal((12, 512), np.float32)
  enum = gguf.GGMLQuantizationType[kind]
  if kind == 'Q6_K':  # any bytes, since the library does not quantize to it
    data = rng.integers(0, 60, (12, 420)).astype(np.uint8)
    expected = gguf.quants.dequantize(data, enum)
  else:
    data = gguf.quants.quantize(value, enum)
    expected = gguf.quants.dequantize(data, enum)
  writer = gguf.GGUFWriter(tmp_path / 'm.gguf', 'llama')
  writer.add_tensor('first', np.ones(3, np.float32))
  writer.add_tensor('x', data, raw_dtype=enum)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  _, tensors = file.read(tmp_path / 'm.gguf')
  np.testing.assert_array_equal(tensors['first'].read((slice(1, 3),)), [1, 1])
  x = tensors['x']
  assert x.shape == (12, 512)
  dtypes = {'F16': 'float16', 'BF16': 'bfloat16'}
  assert x.read().dtype == dtypes.get(kind, 'float32')
  bounds = [(0, 12, 0, 512), (3, 7, 0, 512), (0, 12, 30, 290), (5, 6, 256, 257)]
  for top, bottom, left, right in [*bounds, (0, 0, 0, 0)]:
    index = slice(top, bottom), slice(left, right)
    got = x.read(index).astype(np.float32)
    np.testing.assert_array_equal(got, expected[index])


@pytest.mark.parametrize('name', ['llama, tied, biases', 'gemma3'])
def test_shards(name, tmp_path):
  _make(tmp_path / 'm.gguf', name)
  whole = stored.flat(specsamp.load(tmp_path / 'm.gguf').params)
  sharded = specsamp.load(tmp_path / 'm.gguf', meshes.make(4, 2))
  assert sharded.mesh is not None
  _same(whole, stored.flat(meshes.fetch(sharded.params)))


def test_weights_in_8_bits(tmp_path):
  _make(tmp_path / 'm.gguf', 'gemma3')
  whole = specsamp.load(tmp_path / 'm.gguf')
  got = specsamp.load(tmp_path / 'm.gguf', weights='int8')
  jax.tree.map(
    np.testing.assert_array_equal,
    got.params,
    whole.quantized('int8').params,
  )
  assert got.source_fingerprint == whole.fingerprint


def test_rows_without_a_token_are_padding(tmp_path):
  values = on_disk.metadata('qwen2')
  tensors = on_disk.tensors(values, on_disk.weights(values, 'qkv'))
  values['tokenizer.ggml.tokens'] += ['[PAD64]', '[PAD65]']
  values['tokenizer.ggml.token_type'] += [5, 5]
  for key in ('token_embd.weight', 'output.weight'):
    value, kind = tensors[key]
    tensors[key] = np.concatenate([value, value[:2]]), kind
  on_disk.write(tmp_path / 'm.gguf', values, tensors)
  config = specsamp.load(tmp_path / 'm.gguf').config
  assert (config.vocab_size, config.num_tokens) == (66, 64)


def test_folders_of_a_file(tmp_path):
  """Weights and tokenizer survive in both formats; the file is not replaced."""
  path = tmp_path / 'in' / 'm.gguf'
  path.parent.mkdir()
  _make(path, 'llama', **{'rope.freq_base': 1e4})
  model = specsamp.load(path)
  model_dir.save(model, tmp_path / 'ours')
  again = specsamp.load(tmp_path / 'ours')
  assert again.config == model.config and again.tokenizer == model.tokenizer
  _same(stored.flat(again.params), stored.flat(model.params))
  convert.convert(path, tmp_path / 'theirs', 'huggingface', dtype='float32')
  again = specsamp.load(tmp_path / 'theirs')
  assert again.config == model.config
  assert again.tokenizer.pieces() == model.tokenizer.pieces()
  assert again.tokenizer.stop_ids == model.tokenizer.stop_ids
  _same(stored.flat(again.params), stored.flat(model.params))
  content = path.read_bytes()
  with pytest.raises(UserError, match='is in use'):
    convert.convert(path, path.parent)
  with pytest.raises(UserError, match='got a file'):
    huggingface.save(model, path)
  assert path.read_bytes() == content


def _refused(folder, values, tensors, *words):
  """Writes a file and checks that `specsamp.load` refuses it in one line."""
  on_disk.write(folder / 'bad.gguf', values, tensors)
  _refused_name(folder / 'bad.gguf', *words)


def _refused_name(name, *words, load=specsamp.load):
  with pytest.raises(UserError) as error:
    load(name)
  assert '\n' not in str(error.value)
  for word in words:
    assert word in str(error.value)


# Metadata that differ, and words of the error.
@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'general.architecture': 'mamba'}, 'one of llama, qwen2, qwen3, gemma3'),
    ({'general.type': 'adapter'}, "general.type: got 'adapter'"),
    ({'general.quantization_version': 1}, 'general.quantization_version'),
    ({'split.count': 3}, 'one of 3 files'),
    ({'llama.attention.clamp_kqv': 3.0}, 'attention.clamp_kqv is not support'),
    ({'llama.expert_count': 8}, 'expert_count: got 8'),
    ({'llama.rope.dimension_count': 4}, 'rope.dimension_count: got 4'),
    ({'llama.attention.value_length': 16}, 'attention.value_length: got 16'),
    ({'llama.attention.head_count_kv': [2, 1]}, 'a value per layer'),
    ({'llama.attention.head_count': 0}, 'head_count: got 0, expected an'),
    ({'llama.attention.head_count': 'x'}, "head_count: got 'x', expected"),
    ({'llama.block_count': 3}, '9 missing: blk.2.attn_k.weight'),
    ({'llama.block_count': None}, 'no block_count'),
    ({'llama.context_length': -1.0}, 'max_length must be an integer'),
    ({'llama.rope.scaling.type': 'longrope'}, 'none, linear, yarn'),
    (
      {'llama.rope.scaling.attn_factor': 2.0},
      'attn_factor is only supported with yarn',
    ),
    ({'tokenizer.ggml.model': 'bert'}, 'one of gpt2, llama'),
    ({'tokenizer.ggml.model': None}, 'no tokenizer.ggml.model'),
    ({'tokenizer.ggml.model': 'llama'}, 'no tokenizer.ggml.scores'),
    ({'tokenizer.ggml.pre': 'qwen'}, 'did you mean qwen2?'),
    ({'tokenizer.ggml.merges': ['a b c']}, 'tokenizer: '),
    ({'tokenizer.ggml.merges': ['! é']}, 'out of vocabulary'),
    ({'tokenizer.ggml.token_type': [1]}, '64 tokens, but 1 token types'),
    ({'tokenizer.ggml.eos_token_id': 64}, 'eos_token_id: got 64'),
    ({'tokenizer.ggml.add_bos_token': True}, 'without bos_token_id'),
    ({'tokenizer.ggml.precompiled_charsmap': [1]}, 'precompiled_charsmap is'),
  ],
  ids=lambda value: next(iter(value)) if isinstance(value, dict) else '',
)
def test_refused_metadata(changes, words, tmp_path):
  values = on_disk.metadata('llama')
  tensors = on_disk.tensors(values, on_disk.weights(values))
  values = {k: v for k, v in (values | changes).items() if v is not None}
  _refused(tmp_path, values, tensors, words)


def test_refused_tensors(tmp_path):
  values = on_disk.metadata('llama')
  tensors = on_disk.tensors(values, on_disk.weights(values))
  bias = np.zeros(32, np.float32), 'F32'
  embedding = tensors.pop('token_embd.weight')
  _refused(tmp_path, values, tensors, 'no tensor token_embd.weight')
  tensors['token_embd.weight'] = embedding
  extra = {'blk.1.ffn_norm_exps.bias': bias}
  _refused(tmp_path, values, tensors | extra, '1 not used: blk.1.ffn_norm_exps')
  other = {'output_norm.weight': (np.zeros(64, np.float32), 'F32')}
  _refused(tmp_path, values, tensors | other, '[64] instead of [32]')
  values['llama.rope.scaling.type'] = 'yarn'
  stretch = {'rope_freqs.weight': (np.ones(4, np.float32), 'F32')}
  _refused(tmp_path, values, tensors | stretch, 'yarn and a tensor rope_freqs')


def test_damaged_files(tmp_path):
  path, bad = tmp_path / 'm.gguf', tmp_path / 'bad.gguf'
  _make(path, 'llama')
  content = path.read_bytes()
  for size in itertools.chain(range(4, 2000, 31), range(2000, 9000, 501)):
    bad.write_bytes(content[:size])
    _refused_name(bad, f'model {bad}: truncated')
  bad.write_bytes(content[:-1])
  _refused_name(bad, 'ends after the file')
  # Counts and lengths that no file could have.
  for at in (8, 16, 24):
    bad.write_bytes(content[:at] + b'\xff' * 8 + content[at + 8 :])
    _refused_name(bad, f'model {bad}: ')
  for start, words in (
    (b'', 'not a GGUF file'),
    (b'PK\3\4' + content[4:], 'not a GGUF file'),
    (b'GGUF\1' + content[5:], 'version 1'),
    (b'GGUF\0\0\0\3' + content[8:], 'version 50331648'),
  ):
    bad.write_bytes(start)
    _refused_name(bad, words)
  # A type that the library has no code for.
  _, tensors = file.read(path)
  number = int(gguf.GGMLQuantizationType.Q8_0).to_bytes(4, 'little')
  name = b'token_embd.weight'
  at = content.index(name) + len(name) + 4 + 16
  assert content[at : at + 4] == number and 'token_embd.weight' in tensors
  for kind, words in ((9, 'does not dequantize Q8_1'), (99, '99 is not')):
    bad.write_bytes(content[:at] + bytes([kind, 0, 0, 0]) + content[at + 4 :])
    _refused_name(bad, words)


def test_refused_names(tmp_path, monkeypatch):
  _make(tmp_path / 'm.gguf', 'llama')
  _refused_name(tmp_path, 'no config.json', f'such as {tmp_path}/m.gguf')
  _refused_name(tmp_path / 'n.gguf', 'no such file; did you mean', 'm.gguf?')
  _refused_name('nowhere/m.gguf', 'model nowhere/m.gguf: no such file')
  load = drafter_dir.load
  _refused_name(tmp_path / 'm.gguf', 'got a GGUF file', load=load)
  monkeypatch.setitem(sys.modules, 'gguf', None)
  _refused_name(tmp_path / 'm.gguf', "pip install 'specsamp[gguf]'")


def test_names_of_the_hub(tmp_path, monkeypatch):
  constants = pytest.importorskip('huggingface_hub.constants')
  _make(tmp_path / 'm.gguf', 'llama')
  files = {'q8/m.gguf': (tmp_path / 'm.gguf').read_bytes()}
  monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path / 'cache'))
  monkeypatch.chdir(tmp_path)
  with fake_hub.serving(fake_hub.Hub(files)) as hub:
    monkeypatch.setenv('HF_ENDPOINT', hub.url)
    for revision in ('', '@v1'):
      name = f'{fake_hub.NAME}{revision}:q8/m.gguf'
      assert specsamp.load(name).config == _CONFIG
      assert model_dir.stored_dtype(name) == 'bfloat16'
      paths = {path.removeprefix(f'/{fake_hub.NAME}') for path in hub.asked}
      assert f'/resolve/{revision[1:] or "main"}/q8/m.gguf' in paths
      assert set(hub.downloads()) == {'q8/m.gguf'}
    name = f'{fake_hub.NAME}:q8/m.gguf'
    _refused_name(fake_hub.NAME, 'but GGUF files; name one', name)
    _refused_name(f'{fake_hub.NAME}:x.gguf', 'no such file, and', 'has no such')
