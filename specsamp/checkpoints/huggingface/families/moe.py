"""Mixtures of experts: Mixtral and Qwen3-MoE, read and written.

Files have three tensors for each expert.
"""

from typing import Any

from specsamp.checkpoints import layouts
from specsamp.checkpoints.huggingface import config_keys
from specsamp.checkpoints.huggingface.families import llama
from specsamp.checkpoints.huggingface.families.family import (
  Values,
  agreed,
  whole,
)
from specsamp.checkpoints.layouts import Layout
from specsamp.errors import UserError
from specsamp.models import TransformerConfig

BASE = 'model.'
# The classes' defaults in transformers for absent keys.
_DEFAULTS = {
  'mixtral': dict(
    vocab_size=32_000,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    hidden_act='silu',
    max_position_embeddings=131_072,
    rms_norm_eps=1e-5,
    num_experts_per_tok=2,
  ),
  'qwen3_moe': dict(
    vocab_size=151_936,
    hidden_size=2048,
    intermediate_size=6144,
    num_hidden_layers=24,
    num_attention_heads=32,
    num_key_value_heads=4,
    hidden_act='silu',
    max_position_embeddings=32_768,
    rms_norm_eps=1e-6,
    sliding_window=4096,
    decoder_sparse_step=1,
    moe_intermediate_size=768,
    num_experts_per_tok=8,
  ),
}
_NUM_EXPERTS = {'mixtral': 8, 'qwen3_moe': 128}
_THETA = {'mixtral': 1_000_000.0, 'qwen3_moe': 10_000.0}
# Keys of training, and keys that the classes ignore.
_IGNORED = """
output_router_logits router_aux_loss_coef router_jitter_noise max_window_layers
use_sliding_window attention_bias mlp_only_layers decoder_sparse_step
"""


def read(values: dict[str, Any]) -> TransformerConfig:
  """Returns the `TransformerConfig` of a config.json."""
  kind = values['model_type']
  is_qwen = kind == 'qwen3_moe'
  v = Values(values, _DEFAULTS[kind])
  v.ignore(_IGNORED)
  window = v.window()
  if is_qwen and not v.get('use_sliding_window', False):
    window = 0
  # Versions of transformers differ in the key that they write.
  keys = 'num_experts', 'num_local_experts'
  num_experts = agreed('num_experts', *[{keys[0]: v.get(key)} for key in keys])
  fields: dict[str, Any] = {}
  if is_qwen:
    # The class divides by their sum, which is a softmax over them alone.
    key = 'norm_topk_prob'
    is_normalized = config_keys.flag({key: v.get(key)}, key)
    fields = dict(
      expert_width=v.need('moe_intermediate_size'),
      router='top_k' if is_normalized else 'softmax',
      dense_layers=_dense_layers(v),
      qk_norm=True,
      biases='attention' if v.get('attention_bias', False) else 'none',
    )
  else:
    fields = dict(expert_width=v.need('intermediate_size'))
  return v.llama_config(
    num_experts=_NUM_EXPERTS[kind] if num_experts is None else num_experts,
    experts_per_token=v.need('num_experts_per_tok'),
    windows=(window,) if window else (),
    **fields,
    **v.rope(theta=_THETA[kind]),
  )


def _dense_layers(v: Values) -> tuple[int, ...]:
  """Returns the layers without experts."""
  dense, step = v.get('mlp_only_layers', []), v.need('decoder_sparse_step')
  if type(dense) is not list or {type(i) for i in dense} - {int}:
    raise UserError(f'mlp_only_layers: got {dense!r}, expected layers')
  if type(step) is not int or step < 1:
    raise UserError(f'decoder_sparse_step: got {step!r}, expected at least 1')
  key = 'num_hidden_layers'
  layers = range(config_keys.count({key: v.need(key)}, key))
  return tuple(i for i in layers if i in dense or (i + 1) % step)


def layout(config: TransformerConfig) -> Layout:
  """Returns the layout of the whole model."""
  result = whole(BASE, {}, config)
  for i in range(config.num_layers):
    layer = llama.layer(config)
    if config.of_layer(i).num_experts:
      dense = [name for name in layer if name.startswith('mlp.')]
      layer = {name: layer[name] for name in layer if name not in dense}
      layer |= _experts(config)
    result |= layouts.prefixed(layer, f'layers_{i}.', f'{BASE}layers.{i}.')
  return result


def _experts(config: TransformerConfig) -> Layout:
  """Returns the layout of the experts of a layer, by its model's names."""
  if config.qk_norm:
    block, *names = 'mlp.', 'gate_proj', 'up_proj', 'down_proj'
  else:
    block, *names = 'block_sparse_moe.', 'w1', 'w3', 'w2'
  gate, up, down = (
    [f'experts.{i}.{name}.weight' for i in range(config.num_experts)]
    for name in names
  )
  layout = {
    'router': layouts.single('ed', 'gate.weight', 'e d'),
    'expert_gate': layouts.stack('efd', gate, 'f d'),
    'expert_up': layouts.stack('efd', up, 'f d'),
    'expert_down': layouts.stack('edf', down, 'd f'),
  }
  return layouts.prefixed(layout, 'mlp.', block)


def write(config: TransformerConfig, model_type: str) -> dict[str, Any]:
  """Returns the keys of a config.json, see `families`."""
  layers = range(config.num_layers)
  values = llama.write(config, 'mistral') | dict(
    num_experts_per_tok=config.experts_per_token,
    num_local_experts=config.num_experts,
  )
  del values['mlp_bias']
  if model_type == 'mixtral':
    return values
  return values | dict(
    num_experts=config.num_experts,
    moe_intermediate_size=config.expert_width,
    norm_topk_prob=config.router == 'top_k',
    mlp_only_layers=[i for i in layers if i in config.dense_layers],
    decoder_sparse_step=1,
    use_sliding_window=bool(config.window(0)),
  )
