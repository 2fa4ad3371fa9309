"""The config.json and tensors of LLaMA, Mistral, Qwen2 and Qwen3."""

from typing import Any

from specsamp.checkpoints import layouts
from specsamp.checkpoints.huggingface.families.family import (
  HF_ACTIVATIONS,
  Values,
  attention,
  head,
  mlp,
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
  'qwen3': _QWEN | dict(head_dim=128),
}


def read(values: dict[str, Any]) -> TransformerConfig:
  """Returns the `TransformerConfig` of a config.json.

  A sliding window bounds `max_length`, because shorter sequences have full
  attention.
  """
  kind = values['model_type']
  v = Values(values, _DEFAULTS[kind])
  heads, width = v.need('num_attention_heads'), v.need('hidden_size')
  return TransformerConfig(
    vocab_size=v.need('vocab_size'),
    width=width,
    num_layers=v.need('num_hidden_layers'),
    num_heads=heads,
    num_kv_heads=v.get('num_key_value_heads', heads),
    head_dim=v.need('head_dim')
    if kind == 'qwen3'
    else v.get('head_dim', width // heads),
    mlp_width=v.need('intermediate_size'),
    max_length=min(v.need('max_position_embeddings'), v.window(kind)),
    activation=v.activation('hidden_act'),
    biases=_biases(v, kind),
    qk_norm=kind == 'qwen3',
    tied_embeddings=v.get('tie_word_embeddings', False),
    norm_epsilon=v.need('rms_norm_eps'),
    **v.rope(),
  )


def _biases(v: Values, kind: str) -> str:
  """Returns `biases`, from the keys that the model type's class reads."""
  if kind == 'qwen2':
    return 'qkv'
  in_attention = kind != 'mistral' and v.get('attention_bias', False)
  in_mlp = kind == 'llama' and v.get('mlp_bias', False)
  if in_mlp and not in_attention:
    raise UserError('mlp_bias: only supported with attention_bias')
  return 'all' if in_mlp else 'attention' if in_attention else 'none'


def layout(config: TransformerConfig) -> Layout:
  """Returns the layout of the whole model."""
  result = {
    'embedding': layouts.single('vd', BASE + 'embed_tokens.weight', 'v d'),
    'final_norm.scale': layouts.vector(BASE + 'norm.weight'),
  }
  for i in range(config.num_layers):
    one = layer(config)
    result |= layouts.prefixed(one, f'layers_{i}.', f'{BASE}layers.{i}.')
  return result | head(config)


def layer(config: TransformerConfig) -> Layout:
  """Returns the layout of a layer, without prefixes."""
  up = ['gate_proj'] * config.gated + ['up_proj']
  in_attention = attention(config)
  if config.qk_norm:
    for norm in ('q_norm', 'k_norm'):
      in_attention[norm] = layouts.single('k', f'{norm}.weight', 'k')
  in_mlp = mlp(up, 'down_proj', 'od', config.biases == 'all')
  return {
    'attention_norm.scale': layouts.vector('input_layernorm.weight'),
    'mlp_norm.scale': layouts.vector('post_attention_layernorm.weight'),
    **layouts.prefixed(in_attention, 'attention.', 'self_attn.'),
    **layouts.prefixed(in_mlp, 'mlp.', 'mlp.'),
  }


def write(config: TransformerConfig) -> dict[str, Any] | None:
  """Returns the config.json for a config, or None if no family expresses it."""
  if (config.norm, config.positions, config.gated) != ('rms', 'rotary', True):
    return None
  if config.qk_norm:
    kind, name = 'qwen3', 'Qwen3ForCausalLM'
    if config.biases not in ('none', 'attention'):
      return None
  elif config.biases == 'qkv':
    kind, name = 'qwen2', 'Qwen2ForCausalLM'
  else:
    kind, name = 'llama', 'LlamaForCausalLM'
  rope: dict[str, Any] = dict(rope_type='default')
  scaling = config.rope_scaling
  if scaling:
    rope = dict(rope_type=scaling.kind, factor=scaling.factor)
  if scaling and scaling.kind == 'llama3':
    rope |= dict(
      low_freq_factor=scaling.low_frequency,
      high_freq_factor=scaling.high_frequency,
      original_max_position_embeddings=scaling.original_length,
    )
  return dict(
    architectures=[name],
    model_type=kind,
    hidden_size=config.width,
    num_hidden_layers=config.num_layers,
    num_attention_heads=config.num_heads,
    num_key_value_heads=config.num_kv_heads,
    head_dim=config.head_dim,
    intermediate_size=config.mlp_width,
    max_position_embeddings=config.max_length,
    hidden_act=HF_ACTIVATIONS[config.activation],
    rms_norm_eps=config.norm_epsilon,
    attention_bias=config.biases in ('attention', 'all'),
    mlp_bias=config.biases == 'all',
    # The keys of today, and those that other programs still read.
    rope_parameters=rope | dict(rope_theta=config.rope_theta),
    rope_theta=config.rope_theta,
    rope_scaling=rope if scaling else None,
  )
