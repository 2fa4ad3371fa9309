"""The architectures of transformers: the layout of each one's tensors."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from specsamp.checkpoints.huggingface import config_json
from specsamp.checkpoints.layouts import Layout, Part, Source
from specsamp.errors import UserError
from specsamp.models import TransformerConfig

# Buffers that older versions saved beside the weights.
BUFFERS = re.compile(r'(rotary_emb\.inv_freq|\.attn\.(masked_)?bias)$')


class Family(NamedTuple):
  """One architecture.

  Attributes:
    model_type: as in config.json.
    base: what the names of all tensors but the LM head's begin with; files of
      the bare model leave it out.
    read: values of a config.json -> config.
    layout: config -> layout.
  """

  model_type: str
  base: str
  read: Callable[[dict[str, Any]], TransformerConfig]
  layout: Callable[[TransformerConfig], Layout]

  def rename(self, names) -> dict[str, str]:
    """Name in the layout -> name in the files, without buffers."""
    names = [name for name in names if not BUFFERS.search(name)]
    if any(name.startswith(self.base) for name in names):
      return {name: name for name in names}
    return {
      name if name.startswith('lm_head.') else self.base + name: name
      for name in names
    }


def of(values: dict[str, Any]) -> Family:
  """The family of a config.json.

  Raises:
    UserError: it names no architecture, or one that there is not here.
  """
  architectures = values.get('architectures')
  if not isinstance(architectures, list) or not architectures:
    raise UserError('names no architecture')
  family = _FAMILIES.get(architectures[0])
  if family is None:
    known = ', '.join(sorted(_FAMILIES))
    raise UserError(
      f'architecture: got {architectures[0]}, expected one of {known}'
    )
  if values.get('model_type') != family.model_type:
    raise UserError(
      f'model_type: got {values.get("model_type")!r}, expected '
      f'{family.model_type!r} of a {architectures[0]}'
    )
  return family


def _llama(config: TransformerConfig) -> Layout:
  layout = {
    'embedding': _one('vd', 'model.embed_tokens.weight', 'v d'),
    'final_norm.scale': _one('d', 'model.norm.weight', 'd'),
  }
  for i in range(config.num_layers):
    layout |= llama_layer(config, f'layers_{i}.', f'model.layers.{i}.')
  return layout | _head(config)


def llama_layer(config: TransformerConfig, own: str, theirs: str) -> Layout:
  """A layer's, of names that begin with `own` here and `theirs` there."""
  attention, mlp = theirs + 'self_attn.', theirs + 'mlp.'
  layout = {
    'attention_norm.scale': _one('d', theirs + 'input_layernorm.weight', 'd'),
    'mlp_norm.scale': _one(
      'd', theirs + 'post_attention_layernorm.weight', 'd'
    ),
  } | {
    f'attention.{name}': source
    for name, source in projections(config, attention).items()
  }
  if config.qk_norm:
    for name in ('q_norm', 'k_norm'):
      layout[f'attention.{name}'] = _one('k', f'{attention}{name}.weight', 'k')
  parts = ['gate_proj', 'up_proj'] if config.gated else ['up_proj']
  layout['mlp.up'] = _stack('dcf', [f'{mlp}{n}.weight' for n in parts], 'f d')
  layout['mlp.down'] = _one('fd', mlp + 'down_proj.weight', 'd f')
  if config.biases == 'all':
    layout['mlp.up_bias'] = _stack('cf', [f'{mlp}{n}.bias' for n in parts], 'f')
    layout['mlp.down_bias'] = _one('d', mlp + 'down_proj.bias', 'd')
  return {own + name: source for name, source in layout.items()}


def projections(
  config: TransformerConfig, theirs: str, out: str = 'o_proj'
) -> Layout:
  """An attention's, of matrices [outputs, inputs] of their own."""
  kv = [f'{theirs}k_proj', f'{theirs}v_proj']
  layout = {
    'q': _one('dhk', f'{theirs}q_proj.weight', 'hk d'),
    'kv': _stack('dcgk', [f'{n}.weight' for n in kv], 'gk d'),
    'o': _one('hkd', f'{theirs}{out}.weight', 'd hk'),
  }
  if config.biases != 'none':
    layout['q_bias'] = _one('hk', f'{theirs}q_proj.bias', 'hk')
    layout['kv_bias'] = _stack('cgk', [f'{n}.bias' for n in kv], 'gk')
  if config.biases in ('attention', 'all'):
    layout['o_bias'] = _one('d', f'{theirs}{out}.bias', 'd')
  return layout


def _opt(config: TransformerConfig) -> Layout:
  base = 'model.decoder.'
  layout = {
    'embedding': _one('vd', base + 'embed_tokens.weight', 'v d'),
    # Two rows are for padding, which this library has no positions for.
    'position_embedding': Source(
      'sd', (Part(base + 'embed_positions.weight', 's d', (2, 0)),)
    ),
    **_norm('final_norm', base + 'final_layer_norm'),
  }
  for i in range(config.num_layers):
    own, theirs = f'layers_{i}.', f'{base}layers.{i}.'
    layout |= {
      own + 'attention.' + name: source
      for name, source in projections(
        config, theirs + 'self_attn.', 'out_proj'
      ).items()
    }
    layout |= _norm(own + 'attention_norm', theirs + 'self_attn_layer_norm')
    layout |= _norm(own + 'mlp_norm', theirs + 'final_layer_norm')
    layout |= {
      own + 'mlp.up': _stack('dcf', [theirs + 'fc1.weight'], 'f d'),
      own + 'mlp.up_bias': _stack('cf', [theirs + 'fc1.bias'], 'f'),
      own + 'mlp.down': _one('fd', theirs + 'fc2.weight', 'd f'),
      own + 'mlp.down_bias': _one('d', theirs + 'fc2.bias', 'd'),
    }
  return layout | _head(config)


def _gpt2(config: TransformerConfig) -> Layout:
  base, width = 'transformer.', config.width
  layout = {
    'embedding': _one('vd', base + 'wte.weight', 'v d'),
    'position_embedding': _one('sd', base + 'wpe.weight', 's d'),
    **_norm('final_norm', base + 'ln_f'),
  }
  for i in range(config.num_layers):
    own, theirs = f'layers_{i}.', f'{base}h.{i}.'
    qkv = theirs + 'attn.c_attn'  # side by side, inputs first
    layout |= _norm(own + 'attention_norm', theirs + 'ln_1')
    layout |= _norm(own + 'mlp_norm', theirs + 'ln_2')
    kv = (width, 2 * width)
    layout |= {
      own + 'attention.q': _one('dhk', qkv + '.weight', 'd hk'),
      own + 'attention.q_bias': _one('hk', qkv + '.bias', 'hk'),
      own + 'attention.kv': Source(
        'dcgk', tuple(Part(qkv + '.weight', 'd gk', (0, at)) for at in kv)
      ),
      own + 'attention.kv_bias': Source(
        'cgk', tuple(Part(qkv + '.bias', 'gk', (at,)) for at in kv)
      ),
      own + 'attention.o': _one('hkd', theirs + 'attn.c_proj.weight', 'hk d'),
      own + 'attention.o_bias': _one('d', theirs + 'attn.c_proj.bias', 'd'),
      own + 'mlp.up': _stack('dcf', [theirs + 'mlp.c_fc.weight'], 'd f'),
      own + 'mlp.up_bias': _stack('cf', [theirs + 'mlp.c_fc.bias'], 'f'),
      own + 'mlp.down': _one('fd', theirs + 'mlp.c_proj.weight', 'f d'),
      own + 'mlp.down_bias': _one('d', theirs + 'mlp.c_proj.bias', 'd'),
    }
  return layout | _head(config)


def _one(axes: str, key: str, there: str) -> Source:
  return Source(axes, (Part(key, there),))


def _stack(axes: str, keys: list[str], there: str) -> Source:
  return Source(axes, tuple(Part(key, there) for key in keys))


def _norm(own: str, theirs: str) -> Layout:
  return {
    f'{own}.scale': _one('d', f'{theirs}.weight', 'd'),
    f'{own}.bias': _one('d', f'{theirs}.bias', 'd'),
  }


def _head(config: TransformerConfig) -> Layout:
  if config.tied_embeddings:
    return {}
  return {'head': _one('dv', 'lm_head.weight', 'v d')}


_FAMILIES = {
  'LlamaForCausalLM': Family('llama', 'model.', config_json.read_llama, _llama),
  'LLaMAForCausalLM': Family('llama', 'model.', config_json.read_llama, _llama),
  'MistralForCausalLM': Family(
    'mistral', 'model.', config_json.read_llama, _llama
  ),
  'Qwen2ForCausalLM': Family('qwen2', 'model.', config_json.read_llama, _llama),
  'Qwen3ForCausalLM': Family('qwen3', 'model.', config_json.read_llama, _llama),
  'OPTForCausalLM': Family('opt', 'model.', config_json.read_opt, _opt),
  'OPTModel': Family('opt', 'model.', config_json.read_opt, _opt),
  'GPT2LMHeadModel': Family(
    'gpt2', 'transformer.', config_json.read_gpt2, _gpt2
  ),
}
