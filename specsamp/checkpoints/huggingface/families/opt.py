"""OPT, the sizes with norms before blocks."""

from typing import Any

from specsamp.checkpoints import layouts
from specsamp.checkpoints.huggingface.families import learned
from specsamp.checkpoints.huggingface.families.family import head, projections
from specsamp.checkpoints.huggingface.families.values import (
  HF_ACTIVATIONS,
  Values,
)
from specsamp.checkpoints.layouts import Layout, Part, Source
from specsamp.models import TransformerConfig

# Defaults of transformers' class for absent keys.
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
  """Returns the config of a config.json."""
  v = Values(values, _DEFAULTS)
  v.must('do_layer_norm_before', True)
  v.must('_remove_final_layer_norm', False)
  v.must('enable_bias', True)
  v.must('layer_norm_elementwise_affine', True)
  v.must('word_embed_proj_dim', v.need('hidden_size'))
  return learned.config_of(
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
  """Of the whole model."""
  base = 'model.decoder.'
  found = {
    'embedding': layouts.one('vd', base + 'embed_tokens.weight', 'v d'),
    # Two rows are for padding, which this library has no positions for.
    'position_embedding': Source(
      'sd', (Part(base + 'embed_positions.weight', 's d', (2, 0)),)
    ),
    **layouts.norm('final_norm', base + 'final_layer_norm'),
  }
  for i in range(config.num_layers):
    own, theirs = f'layers_{i}.', f'{base}layers.{i}.'
    found |= {
      own + 'attention.' + name: source
      for name, source in projections(
        config, theirs + 'self_attn.', 'out_proj'
      ).items()
    }
    found |= layouts.norm(
      own + 'attention_norm', theirs + 'self_attn_layer_norm'
    )
    found |= layouts.norm(own + 'mlp_norm', theirs + 'final_layer_norm')
    found |= {
      own + 'mlp.up': layouts.stack('cfd', [theirs + 'fc1.weight'], 'f d'),
      own + 'mlp.up_bias': layouts.stack('cf', [theirs + 'fc1.bias'], 'f'),
      own + 'mlp.down': layouts.one('df', theirs + 'fc2.weight', 'd f'),
      own + 'mlp.down_bias': layouts.one('d', theirs + 'fc2.bias', 'd'),
    }
  return found | head(config)


def write(config: TransformerConfig) -> dict[str, Any] | None:
  """The config.json that computes a config."""
  is_opt = config.activation == 'relu' and config.norm_epsilon == 1e-5
  if not is_opt or not learned.has_its_shape(config):
    return None
  return dict(
    architectures=['OPTForCausalLM'],
    model_type='opt',
    hidden_size=config.width,
    word_embed_proj_dim=config.width,
    num_hidden_layers=config.num_layers,
    num_attention_heads=config.num_heads,
    ffn_dim=config.mlp_width,
    max_position_embeddings=config.max_length,
    activation_function=HF_ACTIVATIONS[config.activation],
  )
