"""Models in GGUF files: configs, layouts and `load`.

A metadata key of the architecture that is not read here might change the
computed function, so its name is refused.
"""

import dataclasses
import math
import pathlib
from typing import Any

import numpy as np
from jax.sharding import Mesh

from specsamp.checkpoints import dtypes, layouts, weights
from specsamp.checkpoints.gguf import file, tokenizer
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.checkpoints.huggingface.families import family
from specsamp.checkpoints.layouts import Layout, Source, TensorSlice
from specsamp.errors import UserError, check_name
from specsamp.language_model import LanguageModel
from specsamp.models import (
  Transformer,
  TransformerConfig,
  param_shapes,
  rotary,
)
from specsamp.models.config import Dtype, RopeScaling
from specsamp.utils import files

_ARCHITECTURES = ('llama', 'qwen2', 'qwen3', 'gemma3')
_EMBEDDING, _HEAD, _STRETCH = (
  'token_embd.weight',
  'output.weight',
  'rope_freqs.weight',
)
# Keys that may only have one value.
_FIXED = {
  'attention.causal': True,
  'expert_count': 0,
  'expert_used_count': 0,
  'rope.scale_linear': 1,
  'rope.scaling.yarn_attn_factor': 1,
  'rope.scaling.yarn_ext_factor': 1,
  'tensor_data_layout': 'Meta AI original pth',
}
# Keys that say nothing, or what the tensors say.
_IGNORED = ('rope.scaling.finetuned', 'vocab_size')
# Of gemma3: windows are repeated in this period, the last layer has none.
_PERIOD, _WINDOW_THETA = 6, 10_000.0
_LAYERS_27B = 62  # its queries are scaled in another way


def load(
  path: pathlib.Path,
  mesh: Mesh | None = None,
  dtype: Dtype | None = None,
  kind: str = '',
) -> LanguageModel:
  """Reads a GGUF file; see `model_dir.load`.

  Each process dequantizes only the blocks that hold its shards.
  """
  what = f'model {path}'
  values, tensors = file.read(path)
  with files.reading(what):
    name = values['general.architecture']
    check_name('general.architecture', name, _ARCHITECTURES)
    for key in ('general.type', 'general.quantization_version'):
      expected = 'model' if key == 'general.type' else 2
      if values.get(key, expected) != expected:
        raise UserError(
          f'{key}: got {values[key]!r}, only {expected!r} is supported'
        )
    if _EMBEDDING not in tensors:
      raise UserError(f'no tensor {_EMBEDDING}')
    config = _read_config(name, values, tensors)
    pieces = tokenizer.read(values)
  tensors.pop(_STRETCH, None)  # is in the config
  layout = _layout(config, interleaves=name == 'llama')
  sizes = weights.sizes(param_shapes(Transformer(config)))
  layouts.check(what, layout, sizes, tensors)
  return huggingface.from_tensors(
    what, config, layout, tensors, pieces, mesh, dtype, kind
  )


def stored_dtype(path: pathlib.Path) -> str:
  """Returns the dtype of the largest tensor; bfloat16 if it is quantized."""
  _, tensors = file.read(path)
  if not tensors:
    raise UserError(f'model {path}: no tensors')
  return dtypes.stored_dtype(tensors.values())


class _Values:
  """Metadata of an architecture that checks that all of its keys are read."""

  def __init__(self, name: str, values: dict[str, Any]):
    self._values = {
      key.removeprefix(f'{name}.'): value
      for key, value in values.items()
      if key.startswith(f'{name}.')
    }
    self._read = {*_IGNORED, *_FIXED}
    for key, expected in _FIXED.items():
      if (got := self.get(key, expected)) != expected:
        raise UserError(f'{key}: got {got!r}, only {expected!r} is supported')

  def get(self, key: str, default: Any = None, per_layer: bool = False) -> Any:
    self._read.add(key)
    value = self._values.get(key, default)
    if isinstance(value, np.ndarray | list) and not per_layer:
      raise UserError(f'{key}: got a value per layer, expected one')
    return value

  def need(self, key: str) -> Any:
    if self.get(key) is None:
      raise UserError(f'no {key}')
    return self.get(key)

  def count(self, key: str) -> int:
    if type(got := self.need(key)) is not int or got < 1:
      raise UserError(f'{key}: got {got!r}, expected an integer of at least 1')
    return got

  def check_all_read(self) -> None:
    if unknown := sorted(self._values.keys() - self._read):
      raise UserError(f'{unknown[0]} is not supported')


def _read_config(
  name: str, values: dict[str, Any], tensors: dict[str, file.Stored]
) -> TransformerConfig:
  """Returns the config of a file, which keys and tensors decide."""
  v = _Values(name, values)
  width, heads = v.count('embedding_length'), v.count('attention.head_count')
  head_dim = v.get('attention.key_length', width // heads)
  for key in ('attention.value_length', 'rope.dimension_count'):
    if v.get(key, head_dim) != head_dim:
      raise UserError(
        f'{key}: got {v.get(key)}, expected {head_dim} as of keys'
      )
  max_length = v.need('context_length')
  window = v.get('attention.sliding_window') or 0
  others = {}
  if name == 'gemma3':
    num_layers = v.need('block_count')
    theta = v.get('rope.freq_base_swa', _WINDOW_THETA)
    slides = v.get('attention.sliding_window_pattern', _PERIOD, per_layer=True)
    if isinstance(slides, int):  # the period
      slides = np.arange(slides) < slides - 1
    elif len(slides) != num_layers:
      raise UserError(
        f'attention.sliding_window_pattern: got {len(slides)} layers, expected '
        f'{num_layers}'
      )
    others = dict(
      windows=tuple(window * int(is_local) for is_local in slides if window),
      window_rope_theta=theta if window else None,
      embedding_scale=math.sqrt(width),
      output_norms=True,
      activation='gelu_tanh',
      query_scale=(width / heads) ** -0.5
      if num_layers == _LAYERS_27B
      else None,
    )
  elif window:  # shorter sequences have full attention
    max_length = min(max_length, window)
  stretch = tensors[_STRETCH].read() if _STRETCH in tensors else None
  config = TransformerConfig(
    vocab_size=tensors[_EMBEDDING].shape[0],
    width=width,
    num_layers=v.need('block_count'),
    num_heads=heads,
    num_kv_heads=v.get('attention.head_count_kv', heads),
    head_dim=head_dim,
    mlp_width=v.need('feed_forward_length'),
    max_length=max_length,
    rope_theta=v.get('rope.freq_base', 10_000.0),
    rope_scaling=_rope_scaling(v, stretch),
    qk_norm=name in ('qwen3', 'gemma3'),
    biases=_biases(tensors),
    tied_embeddings=_HEAD not in tensors,
    norm_epsilon=v.need('attention.layer_norm_rms_epsilon'),
    **others,
  )
  v.check_all_read()
  if stretch is not None:
    plain = dataclasses.replace(config, rope_scaling=None)
    got = rotary.frequencies(plain) / rotary.frequencies(config)
    if got.shape != stretch.shape or not np.allclose(got, stretch, 1e-4):
      raise UserError(f'{_STRETCH}: not the scaling of LLaMA 3')
  return config


def _biases(tensors: dict[str, file.Stored]) -> str:
  """Returns `biases` by those of the first layer; others must agree."""
  for name, kind in (
    ('ffn_up', 'all'),
    ('attn_output', 'attention'),
    ('attn_q', 'qkv'),
  ):
    if f'blk.0.{name}.bias' in tensors:
      return kind
  return 'none'


def _rope_scaling(v: _Values, stretch: np.ndarray | None) -> RopeScaling | None:
  """Returns the scaling that keys describe, or a tensor for LLaMA 3.

  `stretch` has the ratio of each wavelength to the old one, or is None.
  """
  kind = v.get('rope.scaling.type', 'none')
  check_name('rope.scaling.type', kind, ('none', 'linear', 'yarn'))
  factor = v.get('rope.scaling.factor', 1.0)
  length = v.get('rope.scaling.original_context_length')
  high = v.get('rope.scaling.yarn_beta_fast', 32.0)
  low = v.get('rope.scaling.yarn_beta_slow', 1.0)
  attention_factor = v.get('rope.scaling.attn_factor', 1.0)
  if kind != 'yarn' and attention_factor != 1:
    raise UserError('rope.scaling.attn_factor is only supported with yarn')
  if stretch is not None:
    if kind != 'none':
      raise UserError(f'rope.scaling.type {kind} and a tensor {_STRETCH}')
    # The other numbers, which a file does not have, are those of LLaMA 3.
    return RopeScaling(
      'llama3', float(stretch.max()), original_length=length or 8192
    )
  if kind == 'none' or factor == 1:
    return None
  if kind == 'linear':
    return RopeScaling('linear', factor)
  return RopeScaling(
    'yarn',
    factor,
    low,
    high,
    length or v.need('context_length'),
    attention_factor=attention_factor * (1 + 0.1 * math.log(factor)),
  )


def _layout(config: TransformerConfig, interleaves: bool) -> Layout:
  """Returns the layout of a whole model.

  `interleaves` is True if the two halves of each head of q and k alternate.
  """
  halves, stored = ('pi', 'ip') if interleaves else ('k', 'k')
  attention = {
    'q': _source(f'h {halves} d', f'attn_q.weight: h{stored} d'),
    'kv': _source(
      f'c g {halves} d',
      f'attn_k.weight: g{stored} d',
      f'attn_v.weight: g{halves} d',
    ),
    'o': layouts.single('dhk', 'attn_output.weight', 'd hk'),
  }
  if config.biases != 'none':
    attention |= {
      'q_bias': _source(f'h {halves}', f'attn_q.bias: h{stored}'),
      'kv_bias': _source(
        f'c g {halves}', f'attn_k.bias: g{stored}', f'attn_v.bias: g{halves}'
      ),
    }
  if config.biases in ('attention', 'all'):
    attention['o_bias'] = layouts.vector('attn_output.bias')
  if config.qk_norm:
    for letter in 'qk':
      key = f'attn_{letter}_norm.weight'
      attention[f'{letter}_norm'] = layouts.single('k', key, 'k')
  mlp = family.mlp(
    ['ffn_gate', 'ffn_up'], 'ffn_down', 'od', config.biases == 'all'
  )
  layer = {
    'attention_norm.scale': layouts.vector('attn_norm.weight'),
    'mlp_norm.scale': layouts.vector('ffn_norm.weight'),
    **layouts.prefixed(attention, 'attention.', ''),
    **layouts.prefixed(mlp, 'mlp.', ''),
  }
  if config.output_norms:
    layer |= {
      'attention_output_norm.scale': layouts.vector(
        'post_attention_norm.weight'
      ),
      'mlp_output_norm.scale': layouts.vector('post_ffw_norm.weight'),
    }
  result = {
    'embedding': layouts.single('vd', _EMBEDDING, 'v d'),
    'final_norm.scale': layouts.vector('output_norm.weight'),
    **layouts.repeated(layer, config.num_layers, 'blk.'),
  }
  if not config.tied_embeddings:
    result['head'] = layouts.single('vd', _HEAD, 'v d')
  return result


def _source(axes: str, *tensors: str) -> Source:
  """Returns the source of a parameter in tensors 'key: axes'."""
  parts = (tensor.split(': ') for tensor in tensors)
  return Source(axes, tuple(TensorSlice(key, tensor) for key, tensor in parts))
