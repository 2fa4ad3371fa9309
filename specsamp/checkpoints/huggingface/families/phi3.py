"""Phi-3 and Phi-4 14B, read; another family with separate tensors is written.

Their tensors are fused: queries, keys and values in one, gate and up in one.
"""

from typing import Any

from specsamp.checkpoints import layouts
from specsamp.checkpoints.huggingface.families import llama
from specsamp.checkpoints.huggingface.families.family import (
  Values,
  fused_mlp,
  norms,
  whole,
)
from specsamp.checkpoints.layouts import Layout
from specsamp.models import TransformerConfig

BASE = 'model.'
# The class's defaults in transformers for absent keys.
_DEFAULTS = dict(
  vocab_size=32_064,
  hidden_size=3072,
  intermediate_size=8192,
  num_hidden_layers=32,
  num_attention_heads=32,
  hidden_act='silu',
  max_position_embeddings=4096,
  rms_norm_eps=1e-5,
)


def read(values: dict[str, Any]) -> TransformerConfig:
  """Returns the `TransformerConfig` of a config.json."""
  v = Values(values, _DEFAULTS)
  v.ignore('original_max_position_embeddings attention_bias mlp_bias')
  window = v.window()
  return v.llama_config(
    windows=(window,) if window else (),
    # Its class takes 'su' and 'yarn' for longrope.
    **v.rope(('default',), fraction=1.0),
  )


def layout(config: TransformerConfig) -> Layout:
  """Returns the layout of the whole model."""
  q_rows = config.num_heads * config.head_dim
  kv_rows = config.num_kv_heads * config.head_dim
  qkv = 'qkv_proj.weight'
  attention = {
    'q': layouts.single('hkd', qkv, 'hk d'),
    'kv': layouts.fused('cgkd', qkv, 'gk d', [q_rows, q_rows + kv_rows]),
    'o': layouts.single('dhk', 'o_proj.weight', 'd hk'),
  }
  layer = {
    **norms(
      attention_norm='input_layernorm', mlp_norm='post_attention_layernorm'
    ),
    **layouts.prefixed(attention, 'attention.', 'self_attn.'),
    **layouts.prefixed(fused_mlp(config), 'mlp.', 'mlp.'),
  }
  return whole(BASE, layer, config)


def write(config: TransformerConfig, model_type: str) -> dict[str, Any]:
  """Returns the keys of a config.json, see `families`."""
  values = llama.write(config, 'mistral')
  values['rope_parameters']['partial_rotary_factor'] = config.rotary_fraction
  return values | dict(partial_rotary_factor=config.rotary_fraction)
