"""GPT-2's config.json and tensors, read and written."""

from typing import Any

from specsamp.checkpoints import layouts
from specsamp.checkpoints.huggingface.families.family import (
  HF_ACTIVATIONS,
  Values,
  head,
  learned_config,
  mlp,
)
from specsamp.checkpoints.layouts import Layout, Source, TensorSlice
from specsamp.models import TransformerConfig

BASE = 'transformer.'
# The class's defaults in transformers for absent keys.
_DEFAULTS = dict(
  vocab_size=50_257,
  n_embd=768,
  n_layer=12,
  n_head=12,
  n_positions=1024,
  activation_function='gelu_new',
  layer_norm_epsilon=1e-5,
)
# Keys of other classes of GPT-2, of rounding, and an older name of n_positions.
_IGNORED = """
summary_activation summary_first_dropout summary_proj_to_labels summary_type
summary_use_proj predict_special_tokens n_special reorder_and_upcast_attn n_ctx
"""


def read(values: dict[str, Any]) -> TransformerConfig:
  """Returns the `TransformerConfig` of a config.json."""
  v = Values(values, _DEFAULTS)
  v.ignore(_IGNORED)
  v.must('scale_attn_weights', True)
  v.must('scale_attn_by_inverse_layer_idx', False)
  v.must('add_cross_attention', False)
  width = v.need('n_embd')
  return learned_config(
    v,
    vocab_size=v.need('vocab_size'),
    width=width,
    num_layers=v.need('n_layer'),
    num_heads=v.need('n_head'),
    mlp_width=v.get('n_inner', 4 * width),
    max_length=v.need('n_positions'),
    activation=v.activation('activation_function'),
    tied_embeddings=v.get('tie_word_embeddings', True),
    norm_epsilon=v.need('layer_norm_epsilon'),
  )


def layout(config: TransformerConfig) -> Layout:
  """Returns the layout of the whole model."""
  result = {
    'embedding': layouts.single('vd', BASE + 'wte.weight', 'v d'),
    'position_embedding': layouts.single('sd', BASE + 'wpe.weight', 's d'),
    **layouts.layer_norm('final_norm', BASE + 'ln_f'),
  }
  for i in range(config.num_layers):
    one = _layer(config)
    result |= layouts.prefixed(one, f'layers_{i}.', f'{BASE}h.{i}.')
  return result | head(config)


def _layer(config: TransformerConfig) -> Layout:
  # Queries, keys and values are columns of one tensor [inputs, outputs].
  qkv, out = 'attn.c_attn', 'attn.c_proj'
  kv = (config.width, 2 * config.width)
  attention = {
    'q': layouts.single('hkd', qkv + '.weight', 'd hk'),
    'q_bias': layouts.single('hk', qkv + '.bias', 'hk'),
    'kv': Source(
      'cgkd', tuple(TensorSlice(qkv + '.weight', 'd gk', (0, n)) for n in kv)
    ),
    'kv_bias': Source(
      'cgk', tuple(TensorSlice(qkv + '.bias', 'gk', (n,)) for n in kv)
    ),
    'o': layouts.single('dhk', out + '.weight', 'hk d'),
    'o_bias': layouts.vector(out + '.bias'),
  }
  return {
    **layouts.layer_norm('attention_norm', 'ln_1'),
    **layouts.layer_norm('mlp_norm', 'ln_2'),
    **layouts.prefixed(attention, 'attention.', ''),
    **layouts.prefixed(mlp(['c_fc'], 'c_proj', 'do', True), 'mlp.', 'mlp.'),
  }


def write(config: TransformerConfig, model_type: str) -> dict[str, Any]:
  """Returns the keys of a config.json, see `families`."""
  del model_type
  return dict(
    n_embd=config.width,
    n_layer=config.num_layers,
    n_head=config.num_heads,
    n_inner=config.mlp_width,
    n_positions=config.max_length,
    activation_function=HF_ACTIVATIONS[config.activation],
    layer_norm_epsilon=config.norm_epsilon,
  )
