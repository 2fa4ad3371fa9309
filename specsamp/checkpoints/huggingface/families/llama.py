"""LLaMA, Mistral, Ministral 3, Qwen2, Qwen3 and MiMo, read and written."""

import math
from typing import Any

from specsamp.checkpoints import layouts
from specsamp.checkpoints.huggingface.families.family import (
  FULL,
  HF_ACTIVATIONS,
  SLIDING,
  Values,
  attention,
  mlp,
  norms,
  rope_values,
  shared_values,
  whole,
  window_values,
)
from specsamp.checkpoints.layouts import Layout
from specsamp.errors import UserError
from specsamp.models import TransformerConfig

BASE = 'model.'
# The classes' defaults in transformers for absent keys.
_SHARED = dict(
  hidden_size=4096,
  num_hidden_layers=32,
  num_attention_heads=32,
  hidden_act='silu',
  rms_norm_eps=1e-6,
)
_QWEN = _SHARED | dict(
  vocab_size=151_936,
  num_key_value_heads=32,
  intermediate_size=22_016,
  max_position_embeddings=32_768,
  sliding_window=4096,
  max_window_layers=28,
)
_DEFAULTS = {
  'llama': _SHARED
  | dict(
    vocab_size=32_000, intermediate_size=11_008, max_position_embeddings=2048
  ),
  'mistral': _SHARED
  | dict(
    vocab_size=32_000,
    num_key_value_heads=8,
    intermediate_size=14_336,
    max_position_embeddings=131_072,
    sliding_window=4096,
  ),
  'qwen2': _QWEN,
  'mimo': _QWEN,
  'qwen3': _QWEN | dict(head_dim=128),
  'ministral3': _SHARED
  | dict(
    vocab_size=131_072,
    num_hidden_layers=34,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=14_336,
    max_position_embeddings=262_144,
    rms_norm_eps=1e-5,
  ),
}
_GROWTH = 'llama_4_scaling_beta'
_MINISTRAL_ROPE = dict(
  rope_type='yarn',
  rope_theta=1_000_000.0,
  factor=16.0,
  original_max_position_embeddings=16_384,
  mscale=1.0,
  mscale_all_dim=1.0,
  llama_4_scaling_beta=0.1,
)
# Keys of one class that the others ignore, and those of Vicuna and SmolLM.
_IGNORED = """
attention_bias mlp_bias head_dim layer_types sliding_window use_sliding_window
max_window_layers max_sequence_length is_llama_config num_nextn_predict_layers
"""


def read(values: dict[str, Any]) -> TransformerConfig:
  """Returns the `TransformerConfig` of a config.json."""
  kind = values['model_type']
  defaults = _DEFAULTS[kind]
  has_rope = values.get('rope_parameters') or values.get('rope_scaling')
  if kind == 'ministral3' and not has_rope:
    defaults = defaults | dict(rope_parameters=_MINISTRAL_ROPE)
  v = Values(values, defaults)
  v.ignore(_IGNORED)
  v.must('rope_interleaved', False)
  growth = None
  if kind == 'ministral3':
    rope = v.rope(('yarn',), ignored=f'{_GROWTH} max_position_embeddings')
    growth = float(_growth(v)) or None
  else:
    rope = v.rope()
  return v.llama_config(
    biases=_biases(v, kind),
    qk_norm=kind == 'qwen3',
    windows=_windows(v, kind),
    query_growth=growth,
    **rope,
  )


def _growth(v: Values) -> float:
  """Returns the growth of queries, which has no default in the class."""
  rope = v.get('rope_scaling', v.get('rope_parameters'))
  if rope.get(_GROWTH) is None:
    raise UserError(f'no {_GROWTH}')
  return rope[_GROWTH]


def _windows(v: Values, kind: str) -> tuple[int, ...]:
  """Returns `windows`, from the keys that the model type's class reads."""
  if kind == 'llama':
    return ()
  window = v.window()
  if kind in ('mistral', 'ministral3'):
    return (window,) if window else ()
  if not v.get('use_sliding_window', False):
    window = 0
  first = v.need('max_window_layers') if window else math.inf
  layers = range(v.need('num_hidden_layers'))
  return v.windows(window, [SLIDING if i >= first else FULL for i in layers])


def _biases(v: Values, kind: str) -> str:
  """Returns `biases`, from the keys that the model type's class reads."""
  if kind in ('qwen2', 'mimo'):
    return 'qkv'
  in_attention = kind in ('llama', 'qwen3') and v.get('attention_bias', False)
  in_mlp = kind == 'llama' and v.get('mlp_bias', False)
  if in_mlp and not in_attention:
    raise UserError('mlp_bias: only supported with attention_bias')
  return 'all' if in_mlp else 'attention' if in_attention else 'none'


def layout(config: TransformerConfig) -> Layout:
  """Returns the layout of the whole model."""
  return whole(BASE, layer(config), config)


def layer(config: TransformerConfig) -> Layout:
  """Returns the layout of a layer, without prefixes."""
  up = ['gate_proj'] * config.gated + ['up_proj']
  in_mlp = mlp(up, 'down_proj', 'od', config.biases == 'all')
  return {
    **norms(
      attention_norm='input_layernorm', mlp_norm='post_attention_layernorm'
    ),
    **layouts.prefixed(attention(config), 'attention.', 'self_attn.'),
    **layouts.prefixed(in_mlp, 'mlp.', 'mlp.'),
  }


def write(config: TransformerConfig, model_type: str) -> dict[str, Any]:
  """Returns the keys of a config.json, see `families`."""
  values = (
    shared_values(config)
    | rope_values(config)
    | dict(
      hidden_act=HF_ACTIVATIONS[config.activation],
      mlp_bias=config.biases == 'all',
    )
  )
  if model_type in ('mistral', 'ministral3'):
    values['sliding_window'] = config.window(0) or None
  elif any(config.windows) and model_type != 'llama':
    values |= window_values(config)
    # For programs that do not read layer_types.
    values['max_window_layers'] = values['layer_types'].index(SLIDING)
    values['use_sliding_window'] = True
  if config.query_growth:
    values['rope_parameters'][_GROWTH] = config.query_growth
    values['rope_scaling'] = None
  return values
