"""Small GGUF files by the rules of llama.cpp's conversion."""

import gguf
import numpy as np

# Parts of tensors' names, in files of Hugging Face and in GGUF files.
_NAMES = {
  'model.embed_tokens': 'token_embd',
  'model.norm': 'output_norm',
  'lm_head': 'output',
  'model.layers.': 'blk.',
  'input_layernorm': 'attn_norm',
  'self_attn.o_proj': 'attn_output',
  'self_attn.': 'attn_',
  '_proj': '',
  'mlp.': 'ffn_',
}
_NORMS = {'post_attention_layernorm': 'ffn_norm'}
_GEMMA_NORMS = {
  'post_attention_layernorm': 'post_attention_norm',
  'pre_feedforward_layernorm': 'ffn_norm',
  'post_feedforward_layernorm': 'post_ffw_norm',
}
WORDS = 64  # rows of the embedding


def write(path, values, tensors=()) -> None:
  """Writes a file.

  Args:
    path: the file.
    values: metadata; integers become uint32, numbers float32.
    tensors: name -> (array, name of its type).
  """
  writer = gguf.GGUFWriter(path, values['general.architecture'])
  writer.data_alignment = values.get('general.alignment', 32)
  kinds = {bool: 'bool', int: 'uint32', float: 'float32', str: 'string'}
  for key, value in values.items():
    if key == 'general.architecture':
      continue
    add = getattr(writer, f'add_{kinds.get(type(value), "array")}')
    add(key, value)
  for name, (array, kind) in dict(tensors).items():
    kind = gguf.GGMLQuantizationType[kind]
    data = gguf.quants.quantize(array, kind)
    writer.add_tensor(name, data, raw_dtype=kind)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


def metadata(name: str, **changes) -> dict:
  """Returns the metadata of a tiny model; changes are without its name."""
  values = {
    'block_count': 2,
    'context_length': 64,
    'embedding_length': 32,
    'feed_forward_length': 64,
    'attention.head_count': 4,
    'attention.head_count_kv': 2,
    'attention.key_length': 16 if name == 'gemma3' else 8,
    'attention.value_length': 16 if name == 'gemma3' else 8,
    'attention.layer_norm_rms_epsilon': 1e-5,
    'rope.freq_base': 500.0,
  }
  if name == 'gemma3':
    values['attention.sliding_window'] = 5
  values |= changes
  return {
    'general.architecture': name,
    'general.alignment': 64,
    **{f'{name}.{key}': value for key, value in values.items()},
    **words(),
  }


def make(path, values, biases='', tied=False) -> dict[str, np.ndarray]:
  """Writes a model with random weights, and returns these; see `weights`."""
  result = weights(values, biases, tied)
  write(path, values, tensors(values, result))
  return result


def words() -> dict:
  """Returns a tokenizer of `WORDS` pieces, the last of which is eos."""
  letters = [chr(ord('!') + i) for i in range(WORDS - 2)] + ['"#']
  return {
    'tokenizer.ggml.model': 'gpt2',
    'tokenizer.ggml.pre': 'gpt-2',
    'tokenizer.ggml.tokens': [*letters, '<end>'],
    'tokenizer.ggml.token_type': [1] * len(letters) + [3],
    'tokenizer.ggml.merges': ['" #'],
    'tokenizer.ggml.eos_token_id': WORDS - 1,
  }


def weights(values, biases='', tied=False, seed=0) -> dict[str, np.ndarray]:
  """Returns random tensors in Hugging Face's names, exact in 8 bits.

  `biases` has the letters of the projections of attention with a bias.
  """
  rng = np.random.default_rng(seed)
  name = values['general.architecture']
  v = {k.removeprefix(f'{name}.'): value for k, value in values.items()}
  width, hidden = v['embedding_length'], v['feed_forward_length']
  z = v['attention.key_length']
  sizes = {
    'q': v['attention.head_count'] * z,
    'k': v['attention.head_count_kv'] * z,
    'v': v['attention.head_count_kv'] * z,
    'o': width,
  }
  shapes = {'model.embed_tokens.weight': (WORDS, width)}
  if not tied:
    shapes['lm_head.weight'] = (WORDS, width)
  for i in range(v['block_count']):
    layer = f'model.layers.{i}.'
    for letter, size in sizes.items():
      inputs = sizes['q'] if letter == 'o' else width
      shapes[f'{layer}self_attn.{letter}_proj.weight'] = (size, inputs)
      if letter in biases:
        shapes[f'{layer}self_attn.{letter}_proj.bias'] = (size,)
    for part in ('gate', 'up'):
      shapes[f'{layer}mlp.{part}_proj.weight'] = (hidden, width)
    shapes[f'{layer}mlp.down_proj.weight'] = (width, hidden)
    norms = ['input_layernorm', 'post_attention_layernorm']
    if name == 'gemma3':
      norms += ['pre_feedforward_layernorm', 'post_feedforward_layernorm']
    for norm in norms:
      shapes[f'{layer}{norm}.weight'] = (width,)
    if name in ('qwen3', 'gemma3'):
      for letter in 'qk':
        shapes[f'{layer}self_attn.{letter}_norm.weight'] = (z,)
  shapes['model.norm.weight'] = (width,)
  result = {}
  for key, shape in shapes.items():
    value = 0.4 * rng.standard_normal(shape, np.float32)
    if len(shape) == 2:  # what Q8_0 makes of it, which has fewer bits than F16
      kind = gguf.GGMLQuantizationType.Q8_0
      value = gguf.quants.dequantize(gguf.quants.quantize(value, kind), kind)
    result[key] = value
  return result


def tensors(values, weights) -> dict[str, tuple[np.ndarray, str]]:
  """Returns the tensors of `write` for weights in Hugging Face's names."""
  name = values['general.architecture']
  names = _NAMES | (_GEMMA_NORMS if name == 'gemma3' else _NORMS)
  result = {}
  for key, value in weights.items():
    if name == 'llama' and ('.q_proj' in key or '.k_proj' in key):
      # The two halves of a head alternate.
      halves = value.reshape(
        -1, 2, values['llama.attention.key_length'] // 2, *value.shape[1:]
      )
      value = halves.swapaxes(1, 2).reshape(value.shape)
    if name == 'gemma3' and 'norm' in key:
      value = 1 + value
    kind = 'F32' if value.ndim == 1 else 'Q8_0'
    if '.v_proj.weight' in key:
      kind = 'F32'
    for old, new in names.items():
      key = key.replace(old, new)
    result[key] = value, kind
  return result
