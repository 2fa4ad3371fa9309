"""GPT-2."""

from typing import Any

from specsamp.checkpoints import layouts
from specsamp.checkpoints.huggingface.families import learned
from specsamp.checkpoints.huggingface.families.family import head
from specsamp.checkpoints.huggingface.families.values import (
  HF_ACTIVATIONS,
  Values,
)
from specsamp.checkpoints.layouts import Layout, Part, Source
from specsamp.models import TransformerConfig

# Defaults of transformers' class for absent keys.
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
  return learned.config_of(
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
  """Of the whole model."""
  base, width = 'transformer.', config.width
  found = {
    'embedding': layouts.one('vd', base + 'wte.weight', 'v d'),
    'position_embedding': layouts.one('sd', base + 'wpe.weight', 's d'),
    **layouts.norm('final_norm', base + 'ln_f'),
  }
  for i in range(config.num_layers):
    own, theirs = f'layers_{i}.', f'{base}h.{i}.'
    qkv = theirs + 'attn.c_attn'  # side by side, inputs first
    found |= layouts.norm(own + 'attention_norm', theirs + 'ln_1')
    found |= layouts.norm(own + 'mlp_norm', theirs + 'ln_2')
    kv = (width, 2 * width)
    found |= {
      own + 'attention.q': layouts.one('hkd', qkv + '.weight', 'd hk'),
      own + 'attention.q_bias': layouts.one('hk', qkv + '.bias', 'hk'),
      own + 'attention.kv': Source(
        'cgkd', tuple(Part(qkv + '.weight', 'd gk', (0, at)) for at in kv)
      ),
      own + 'attention.kv_bias': Source(
        'cgk', tuple(Part(qkv + '.bias', 'gk', (at,)) for at in kv)
      ),
      own + 'attention.o': layouts.one(
        'dhk', theirs + 'attn.c_proj.weight', 'hk d'
      ),
      own + 'attention.o_bias': layouts.one(
        'd', theirs + 'attn.c_proj.bias', 'd'
      ),
      own + 'mlp.up': layouts.stack('cfd', [theirs + 'mlp.c_fc.weight'], 'd f'),
      own + 'mlp.up_bias': layouts.stack('cf', [theirs + 'mlp.c_fc.bias'], 'f'),
      own + 'mlp.down': layouts.one('df', theirs + 'mlp.c_proj.weight', 'f d'),
      own + 'mlp.down_bias': layouts.one('d', theirs + 'mlp.c_proj.bias', 'd'),
    }
  return found | head(config)


def write(config: TransformerConfig) -> dict[str, Any] | None:
  """The config.json that computes a config."""
  if not learned.has_its_shape(config):
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
