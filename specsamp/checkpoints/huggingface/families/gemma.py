"""Gemma 2 and the text models of Gemma 3, read and written.

The tensor of a norm has w for a scale of 1 + w.
"""

from typing import Any

from specsamp.checkpoints import layouts
from specsamp.checkpoints.huggingface import config_keys
from specsamp.checkpoints.huggingface.families.family import (
  FULL,
  SLIDING,
  Values,
  attention,
  mlp,
  norms,
  rope_values,
  shared_values,
  whole,
  window_values,
)
from specsamp.checkpoints.layouts import Layout
from specsamp.models import TransformerConfig

BASE = 'model.'
# The classes' defaults in transformers for absent keys.
_DEFAULTS = dict(
  hidden_size=2304,
  intermediate_size=9216,
  num_hidden_layers=26,
  num_attention_heads=8,
  num_key_value_heads=4,
  head_dim=256,
  hidden_activation='gelu_pytorch_tanh',
  rms_norm_eps=1e-6,
  query_pre_attn_scalar=256,
  sliding_window=4096,
)
_OF_GEMMA2 = dict(
  vocab_size=256_000,
  max_position_embeddings=8192,
  final_logit_softcapping=30.0,
  attn_logit_softcapping=50.0,
)
_OF_GEMMA3 = dict(
  vocab_size=262_208,
  max_position_embeddings=131_072,
  sliding_window_pattern=6,
)
_GLOBAL_THETA, _LOCAL_THETA = 1_000_000.0, 10_000.0  # Gemma 3's defaults


def read(values: dict[str, Any]) -> TransformerConfig:
  """Returns the `TransformerConfig` of a config.json."""
  is_2 = values['model_type'] == 'gemma2'
  v = Values(values, _DEFAULTS | (_OF_GEMMA2 if is_2 else _OF_GEMMA3))
  v.ignore('hidden_act sliding_window_pattern _sliding_window_pattern')
  # Gemma 2 9B has a second name of sliding_window, which its class ignores.
  v.ignore('sliding_window_size')
  v.must('use_bidirectional_attention', False)
  if not is_2:  # its class has the key, and its attention ignores it
    v.must('attn_logit_softcapping', None)
  period = 2 if is_2 else v.need('sliding_window_pattern')
  width = v.need('hidden_size')
  layers = range(v.need('num_hidden_layers'))
  kinds = [FULL if (i + 1) % period == 0 else SLIDING for i in layers]
  return v.llama_config(
    act_key='hidden_activation',
    tied=True,
    biases='attention' if v.get('attention_bias', False) else 'none',
    qk_norm=not is_2,
    windows=v.windows(v.window(), kinds),
    query_scale=v.need('query_pre_attn_scalar') ** -0.5,
    score_cap=v.get('attn_logit_softcapping'),
    logit_cap=v.get('final_logit_softcapping'),
    embedding_scale=width**0.5,
    output_norms=True,
    **(v.rope() if is_2 else _ropes(v)),
  )


def _ropes(v: Values) -> dict[str, Any]:
  """Returns the fields of Gemma 3's two ropes, from any version's keys."""
  nested = v.get('rope_parameters', {})
  config_keys.check(nested, (FULL, SLIDING))
  in_full = dict(
    rope_parameters=nested.get(FULL),
    rope_scaling=v.get('rope_scaling'),
    rope_theta=v.get('rope_theta'),
    max_position_embeddings=v.need('max_position_embeddings'),
  )
  in_sliding = dict(
    rope_parameters=nested.get(SLIDING),
    rope_theta=v.get('rope_local_base_freq'),
  )
  local = Values(in_sliding).rope(('default',), _LOCAL_THETA)
  return dict(
    Values(in_full).rope(theta=_GLOBAL_THETA),
    window_rope_theta=local['rope_theta'],
  )


def layout(config: TransformerConfig) -> Layout:
  """Returns the layout of the whole model."""
  in_mlp = mlp(['gate_proj', 'up_proj'], 'down_proj', 'od', has_biases=False)
  layer = {
    **norms(
      attention_norm='input_layernorm',
      attention_output_norm='post_attention_layernorm',
      mlp_norm='pre_feedforward_layernorm',
      mlp_output_norm='post_feedforward_layernorm',
    ),
    **layouts.prefixed(attention(config), 'attention.', 'self_attn.'),
    **layouts.prefixed(in_mlp, 'mlp.', 'mlp.'),
  }
  return {
    name: source._replace(added=1.0)
    if name.endswith(('norm', 'norm.scale'))
    else source
    for name, source in whole(BASE, layer, config).items()
  }


def write(config: TransformerConfig, model_type: str) -> dict[str, Any]:
  """Returns the keys of a config.json, see `families`."""
  scale = config.query_scale or config.head_dim**-0.5
  values = shared_values(config) | rope_values(config) | window_values(config)
  if model_type != 'gemma2':
    local = config.window_rope_theta or config.rope_theta
    values |= dict(
      rope_parameters={
        FULL: values['rope_parameters'],
        SLIDING: dict(rope_type='default', rope_theta=local),
      },
      rope_local_base_freq=local,
    )
  return values | dict(
    hidden_activation='gelu_pytorch_tanh',
    query_pre_attn_scalar=max(round(scale**-2), 1),
    attn_logit_softcapping=config.score_cap,
    final_logit_softcapping=config.logit_cap,
  )
