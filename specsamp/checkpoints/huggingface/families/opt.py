"""OPT's config.json and tensors, for the sizes with norms before blocks."""

from typing import Any

from specsamp.checkpoints import layouts
from specsamp.checkpoints.huggingface.families.family import (
  Values,
  attention,
  head,
  learned_config,
  mlp,
)
from specsamp.checkpoints.layouts import Layout, Source, TensorSlice
from specsamp.models import TransformerConfig

BASE = 'model.'
# The class's defaults in transformers for absent keys.
_DEFAULTS = dict(
  vocab_size=50_272,
  hidden_size=768,
  num_hidden_layers=12,
  num_attention_heads=12,
  ffn_dim=3072,
  max_position_embeddings=2048,
  activation_function='relu',
)


def read(values: dict[str, Any]) -> TransformerConfig:
  """Returns the `TransformerConfig` of a config.json."""
  v = Values(values, _DEFAULTS)
  v.must('do_layer_norm_before', True)
  v.must('_remove_final_layer_norm', False)
  v.must('enable_bias', True)
  v.must('layer_norm_elementwise_affine', True)
  v.must('word_embed_proj_dim', v.need('hidden_size'))
  return learned_config(
    v,
    vocab_size=v.need('vocab_size'),
    width=v.need('hidden_size'),
    num_layers=v.need('num_hidden_layers'),
    num_heads=v.need('num_attention_heads'),
    mlp_width=v.need('ffn_dim'),
    max_length=v.need('max_position_embeddings'),
    activation=v.activation('activation_function'),
    tied_embeddings=v.get('tie_word_embeddings', True),
    norm_epsilon=1e-5,
  )


def layout(config: TransformerConfig) -> Layout:
  """Returns the layout of the whole model."""
  base = BASE + 'decoder.'
  result = {
    'embedding': layouts.single('vd', base + 'embed_tokens.weight', 'v d'),
    # The first two rows are for padding, which has no positions here.
    'position_embedding': Source(
      'sd', (TensorSlice(base + 'embed_positions.weight', 's d', (2, 0)),)
    ),
    **layouts.layer_norm('final_norm', base + 'final_layer_norm'),
  }
  in_attention = attention(config, 'out_proj')
  in_mlp = mlp(['fc1'], 'fc2', 'od', True)
  layer = {
    **layouts.prefixed(in_attention, 'attention.', 'self_attn.'),
    **layouts.layer_norm('attention_norm', 'self_attn_layer_norm'),
    **layouts.layer_norm('mlp_norm', 'final_layer_norm'),
    **layouts.prefixed(in_mlp, 'mlp.', ''),
  }
  for i in range(config.num_layers):
    result |= layouts.prefixed(layer, f'layers_{i}.', f'{base}layers.{i}.')
  return result | head(config)


def write(config: TransformerConfig, model_type: str) -> dict[str, Any]:
  """Returns the keys of a config.json, see `families`."""
  del model_type
  return dict(
    hidden_size=config.width,
    word_embed_proj_dim=config.width,
    num_hidden_layers=config.num_layers,
    num_attention_heads=config.num_heads,
    ffn_dim=config.mlp_width,
    max_position_embeddings=config.max_length,
    activation_function='relu',
  )
