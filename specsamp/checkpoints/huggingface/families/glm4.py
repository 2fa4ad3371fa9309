"""GLM-4 dense, read and written.

Rotary pairs are neighbors in its tensors. Only a part of each head is rotated.
"""

from typing import Any

from specsamp.checkpoints import layouts
from specsamp.checkpoints.huggingface.families.family import (
  HF_ACTIVATIONS,
  Values,
  fused_mlp,
  norms,
  rope_values,
  shared_values,
  whole,
)
from specsamp.checkpoints.layouts import Layout, Source, TensorSlice
from specsamp.errors import UserError
from specsamp.models import TransformerConfig

BASE = 'model.'
# The class's defaults in transformers for absent keys.
_DEFAULTS = dict(
  vocab_size=151_552,
  hidden_size=4096,
  intermediate_size=13_696,
  num_hidden_layers=40,
  num_attention_heads=32,
  num_key_value_heads=2,
  head_dim=128,
  hidden_act='silu',
  max_position_embeddings=131_072,
  rms_norm_eps=1.5625e-7,
  attention_bias=True,
)
# Share of a head that is rotated -> axes of a head here, and in its tensors:
# p is the place in a pair, i the pair, n the half of the head. Entries that are
# not rotated may have any order that is the same for queries and keys.
_HEADS = {1.0: ('pi', 'ip'), 0.5: ('npi', 'nip')}


def read(values: dict[str, Any]) -> TransformerConfig:
  """Returns the `TransformerConfig` of a config.json."""
  v = Values(values, _DEFAULTS)
  rope = v.rope(fraction=0.5)
  if rope['rotary_fraction'] not in _HEADS:
    raise UserError(
      f'partial_rotary_factor: got {rope["rotary_fraction"]!r}, expected one '
      f'of {sorted(_HEADS)}'
    )
  return v.llama_config(
    biases='qkv' if v.need('attention_bias') else 'none',
    output_norms=True,
    **rope,
  )


def layout(config: TransformerConfig) -> Layout:
  """Returns the layout of the whole model."""
  ours, theirs = _HEADS[config.rotary_fraction]
  q, k, v = (f'{name}_proj.weight' for name in 'qkv')
  attention = {
    'q': layouts.single(f'h {ours} d', q, f'h{theirs} d'),
    'kv': Source(
      f'c g {ours} d',
      (TensorSlice(k, f'g{theirs} d'), TensorSlice(v, f'g{ours} d')),
    ),
    'o': layouts.single('dhk', 'o_proj.weight', 'd hk'),
  }
  if config.biases == 'qkv':
    q, k, v = (f'{name}_proj.bias' for name in 'qkv')
    attention |= {
      'q_bias': layouts.single(f'h {ours}', q, f'h{theirs}'),
      'kv_bias': Source(
        f'c g {ours}',
        (TensorSlice(k, f'g{theirs}'), TensorSlice(v, f'g{ours}')),
      ),
    }
  layer = {
    **norms(
      attention_norm='input_layernorm',
      attention_output_norm='post_self_attn_layernorm',
      mlp_norm='post_attention_layernorm',
      mlp_output_norm='post_mlp_layernorm',
    ),
    **layouts.prefixed(attention, 'attention.', 'self_attn.'),
    **layouts.prefixed(fused_mlp(config), 'mlp.', 'mlp.'),
  }
  return whole(BASE, layer, config)


def write(config: TransformerConfig, model_type: str) -> dict[str, Any]:
  """Returns the keys of a config.json, see `families`."""
  del model_type
  values = shared_values(config) | rope_values(config)
  values['rope_parameters']['partial_rotary_factor'] = config.rotary_fraction
  if config.rope_scaling:
    values['rope_scaling']['partial_rotary_factor'] = config.rotary_fraction
  return values | dict(
    hidden_act=HF_ACTIVATIONS[config.activation],
    partial_rotary_factor=config.rotary_fraction,
  )
