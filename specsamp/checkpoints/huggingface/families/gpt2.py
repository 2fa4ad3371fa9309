"""GPT-2."""

from typing import Any

from specsamp.checkpoints import layouts
from specsamp.checkpoints.huggingface.families.family import (
  head,
  is_learned,
  learned_config,
  mlp,
)
from specsamp.checkpoints.huggingface.families.values import (
  HF_ACTIVATIONS,
  Values,
)
from specsamp.checkpoints.layouts import Layout, Source, TensorSlice
from specsamp.models import TransformerConfig

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


def read(values: dict[str, Any]) -> TransformerConfig:
  """Returns the config of a config.json."""
  v = Values(values, _DEFAULTS)
  v.must('scale_attn_weights', True)
  v.must('scale_attn_by_inverse_layer_idx', False)
  v.must('add_cross_attention', False)
  width = v.need('n_embd')
  return learned_config(
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
  base, width = 'transformer.', config.width
  result = {
    'embedding': layouts.single('vd', base + 'wte.weight', 'v d'),
    'position_embedding': layouts.single('sd', base + 'wpe.weight', 's d'),
    **layouts.layer_norm('final_norm', base + 'ln_f'),
  }
  for i in range(config.num_layers):
    name, key = f'layers_{i}.', f'{base}h.{i}.'
    # Queries, keys and values are columns of one tensor [inputs, outputs].
    qkv, out = key + 'attn.c_attn', key + 'attn.c_proj'
    kv = (width, 2 * width)
    result |= {
      **layouts.layer_norm(name + 'attention_norm', key + 'ln_1'),
      **layouts.layer_norm(name + 'mlp_norm', key + 'ln_2'),
      name + 'attention.q': layouts.single('hkd', qkv + '.weight', 'd hk'),
      name + 'attention.q_bias': layouts.single('hk', qkv + '.bias', 'hk'),
      name + 'attention.kv': Source(
        'cgkd', tuple(TensorSlice(qkv + '.weight', 'd gk', (0, n)) for n in kv)
      ),
      name + 'attention.kv_bias': Source(
        'cgk', tuple(TensorSlice(qkv + '.bias', 'gk', (n,)) for n in kv)
      ),
      name + 'attention.o': layouts.single('dhk', out + '.weight', 'hk d'),
      name + 'attention.o_bias': layouts.vector(out + '.bias'),
      **mlp(name + 'mlp.', [key + 'mlp.c_fc'], key + 'mlp.c_proj', 'do', True),
    }
  return result | head(config)


def write(config: TransformerConfig) -> dict[str, Any] | None:
  """Returns the config.json that computes a config, or None."""
  if not is_learned(config):
    return None
  return dict(
    architectures=['GPT2LMHeadModel'],
    model_type='gpt2',
    n_embd=config.width,
    n_layer=config.num_layers,
    n_head=config.num_heads,
    n_inner=config.mlp_width,
    n_positions=config.max_length,
    activation_function=HF_ACTIVATIONS[config.activation],
    layer_norm_epsilon=config.norm_epsilon,
  )
