"""Values of a config.json, and layouts that several architectures share.

A key that is not known, or whose value would change the computed function, is
refused by its name.
"""

import math
from typing import Any

from specsamp.checkpoints import layouts
from specsamp.checkpoints.huggingface import config_keys
from specsamp.checkpoints.layouts import Layout
from specsamp.errors import UserError, check_name
from specsamp.models import TransformerConfig
from specsamp.models.config import RopeScaling

_ACTIVATIONS = {
  'silu': 'silu',
  'swish': 'silu',
  'gelu': 'gelu',
  'gelu_new': 'gelu_tanh',
  'gelu_pytorch_tanh': 'gelu_tanh',
  'relu': 'relu',
}
HF_ACTIVATIONS = dict(
  silu='silu', gelu='gelu', gelu_tanh='gelu_new', relu='relu'
)
_ROPE_KINDS = ('default', 'linear', 'llama3', 'yarn')
SLIDING, FULL = 'sliding_attention', 'full_attention'  # in layer_types


def agreed(key: str, *configs: dict[str, Any]) -> Any:
  """Returns the value of a key that several parts of a config may have.

  Absent keys and nulls are ignored. The result is None if all are absent.

  Raises:
    UserError: the parts have different values.
  """
  values = [part[key] for part in configs if part.get(key) is not None]
  for value in values[1:]:
    if value != values[0]:
      raise UserError(f'{key}: got {values[0]!r} and {value!r}, expected one')
  return values[0] if values else None


class Values:
  """Values of a config.json, with its class's defaults for absent keys.

  It notes the keys that are read, and `check` refuses all others.
  """

  def __init__(
    self, values: dict[str, Any], defaults: dict[str, Any] | None = None
  ):
    """Wraps the values; raises `UserError` if the weights are quantized."""
    self._given = values
    self._values = (defaults or {}) | values
    self._known: set[str] = set()
    self.must('quantization_config', None)

  def get(self, key: str, default: Any = None) -> Any:
    self._known.add(key)
    value = self._values.get(key)
    return default if value is None else value

  def need(self, key: str) -> Any:
    value = self.get(key)
    if value is None:
      raise UserError(f'no {key}')
    return value

  def must(self, key: str, expected: Any) -> None:
    """Refuses a value that would change the computed function."""
    got = self.get(key, expected)
    if got != expected:
      raise UserError(f'{key}: got {got!r}, only {expected!r} is supported')

  def ignore(self, keys: str) -> None:
    """Notes keys that the class of transformers ignores."""
    self._known.update(keys.split())

  def check(self) -> None:
    """Refuses keys that were not read and may change the function."""
    config_keys.check(self._given, self._known)

  def config(self, **fields) -> TransformerConfig:
    """Returns a config of these fields, which are all that was to be read."""
    self.check()
    return TransformerConfig(**fields)

  def llama_config(
    self, *, act_key: str = 'hidden_act', tied: bool = False, **fields
  ) -> TransformerConfig:
    """Returns a config whose shape has LLaMA's keys, like most families.

    Args:
      act_key: key of the activation.
      tied: default of `tie_word_embeddings`.
      **fields: further fields.
    """
    heads, width = self.need('num_attention_heads'), self.need('hidden_size')
    return self.config(
      vocab_size=self.need('vocab_size'),
      width=width,
      num_layers=self.need('num_hidden_layers'),
      num_heads=heads,
      num_kv_heads=self.get('num_key_value_heads', heads),
      head_dim=self.get('head_dim', width // heads),
      mlp_width=self.need('intermediate_size'),
      max_length=self.need('max_position_embeddings'),
      activation=self.activation(act_key),
      tied_embeddings=self.get('tie_word_embeddings', tied),
      norm_epsilon=self.need('rms_norm_eps'),
      **fields,
    )

  def activation(self, key: str) -> str:
    got = self.need(key)
    check_name(key, got, _ACTIVATIONS)
    return _ACTIVATIONS[got]

  def rope(
    self,
    kinds: tuple[str, ...] = _ROPE_KINDS,
    theta: float = 10_000.0,
    fraction: float | None = None,
    ignored: str = '',
  ) -> dict[str, Any]:
    """Returns the fields of the rope, from any version's keys.

    Args:
      kinds: values of rope_type that the class has.
      theta: its default.
      fraction: default share of a head that the class rotates, or None if it
        rotates whole heads.
      ignored: further keys of the nested config.
    """
    nested = [
      key for key in ('rope_parameters', 'rope_scaling') if self.get(key)
    ]
    results = [
      self._rope_of(config_keys.nested(self._values, key), kinds, ignored)
      for key in nested
    ]
    # Programs differ in the key that they prefer.
    if results[1:] and results[0] != results[1]:
      raise UserError(
        'rope_parameters and rope_scaling differ: got '
        f'{self.get(nested[0])!r} and {self.get(nested[1])!r}'
      )
    result = results[0] if results else self._rope_of({}, kinds, ignored)
    result.setdefault('rope_theta', theta)
    rotated = result.setdefault('rotary_fraction', fraction or 1.0)
    if fraction is None and rotated != 1:
      raise UserError(
        f'partial_rotary_factor: got {rotated!r}, only 1 is supported'
      )
    return result

  def _rope_of(
    self, nested: dict[str, Any], kinds: tuple[str, ...], ignored: str
  ) -> dict[str, Any]:
    """Returns the fields that a nested config sets."""
    values = Values(nested)
    values.ignore('rope_type type rope_theta partial_rotary_factor')
    values.ignore('original_max_position_embeddings ' + ignored)
    kind = agreed('rope_type', nested, {'rope_type': nested.get('type')})
    check_name('rope_type', kind or 'default', kinds)
    fields: dict[str, Any] = dict(
      rope_scaling=None
      if kind in (None, 'default')
      else self._scaling(kind, values, nested)
    )
    values.check()
    names = dict(
      rope_theta='rope_theta', rotary_fraction='partial_rotary_factor'
    )
    for name, key in names.items():
      value = agreed(key, nested, {key: self.get(key)})
      if value is not None:
        fields[name] = float(value)
    return fields

  def _scaling(
    self, kind: str, values: 'Values', nested: dict[str, Any]
  ) -> RopeScaling:
    factor = float(values.need('factor'))
    if kind == 'linear':
      return RopeScaling(kind, factor)
    key = 'original_max_position_embeddings'
    length = agreed(key, nested, {key: self.get(key)})
    if length is None:
      length = self.need('max_position_embeddings')
    if kind == 'llama3':
      low, high = 'low_freq_factor', 'high_freq_factor'
      frequencies = float(values.need(low)), float(values.need(high))
      return RopeScaling(kind, factor, *frequencies, length)
    log = max(math.log(factor), 0.0) / 10
    mscale, of_all = values.get('mscale'), values.get('mscale_all_dim')
    attention = 1 + log
    if mscale and of_all:
      attention = (1 + mscale * log) / (1 + of_all * log)
    return RopeScaling(
      kind,
      factor,
      float(values.get('beta_slow') or 1),
      float(values.get('beta_fast') or 32),
      length,
      values.get('truncate', True),
      float(values.get('attention_factor', attention)),
    )

  def window(self) -> int:
    """Returns sliding_window, or 0 if layers see everything."""
    if self.get('sliding_window') is None:
      return 0
    return config_keys.count(self._values, 'sliding_window')

  def windows(self, window: int, kinds: list[str]) -> tuple[int, ...]:
    """Returns `TransformerConfig.windows`, with a window for sliding layers.

    `kinds` has the kind of each layer where there are no layer_types.
    """
    kinds = self.get('layer_types', kinds)
    for kind in kinds:
      check_name('layer_types', kind, (FULL, SLIDING))
    if SLIDING not in kinds:
      return ()
    if not window:
      raise UserError(
        f'layer_types: got {SLIDING}, expected a sliding_window and '
        'use_sliding_window'
      )
    num_layers = self.need('num_hidden_layers')
    if len(kinds) != num_layers:
      raise UserError(
        f'layer_types: got {len(kinds)} kinds of {num_layers} layers'
      )
    windows = [window if kind == SLIDING else 0 for kind in kinds]
    # The shortest tuple that gives all windows when it is repeated.
    for size in range(1, num_layers + 1):
      if all(n == windows[i % size] for i, n in enumerate(windows)):
        break
    return tuple(windows[:size])


def shared_values(config: TransformerConfig) -> dict[str, Any]:
  """Returns the keys that LLaMA and the families after it have."""
  return dict(
    hidden_size=config.width,
    num_hidden_layers=config.num_layers,
    num_attention_heads=config.num_heads,
    num_key_value_heads=config.num_kv_heads,
    head_dim=config.head_dim,
    intermediate_size=config.mlp_width,
    max_position_embeddings=config.max_length,
    rms_norm_eps=config.norm_epsilon,
    attention_bias=config.biases in ('qkv', 'attention', 'all'),
  )


def window_values(config: TransformerConfig) -> dict[str, Any]:
  """Returns the keys of layers that have one window or none."""
  windows = [config.window(i) for i in range(config.num_layers)]
  return dict(
    sliding_window=max(windows) or None,
    layer_types=[SLIDING if n else FULL for n in windows],
  )


def rope_values(config: TransformerConfig) -> dict[str, Any]:
  """Returns the keys of the rope: those of today, and those before them."""
  scaling = config.rope_scaling
  rope: dict[str, Any] = dict(rope_type=scaling.kind if scaling else 'default')
  if scaling:
    rope['factor'] = scaling.factor
  if scaling and scaling.kind != 'linear':
    rope['original_max_position_embeddings'] = scaling.original_length
  if scaling and scaling.kind == 'llama3':
    rope |= dict(
      low_freq_factor=scaling.low_frequency,
      high_freq_factor=scaling.high_frequency,
    )
  if scaling and scaling.kind == 'yarn':
    rope |= dict(
      beta_slow=scaling.low_frequency,
      beta_fast=scaling.high_frequency,
      truncate=scaling.rounded,
      attention_factor=scaling.attention_factor,
    )
  return dict(
    rope_parameters=rope | dict(rope_theta=config.rope_theta),
    rope_theta=config.rope_theta,
    rope_scaling=rope if scaling else None,
  )


def whole(base: str, layer: Layout, config: TransformerConfig) -> Layout:
  """Returns the layout of a model of equal layers, by LLaMA's names."""
  return {
    'embedding': layouts.single('vd', base + 'embed_tokens.weight', 'v d'),
    'final_norm.scale': layouts.vector(base + 'norm.weight'),
    **layouts.repeated(layer, config.num_layers, base + 'layers.'),
    **head(config),
  }


def head(config: TransformerConfig) -> Layout:
  """Returns the layout of the LM head; it is empty for a tied model."""
  if config.tied_embeddings:
    return {}
  return {'head': layouts.single('vd', 'lm_head.weight', 'v d')}


def norms(**keys: str) -> Layout:
  """Returns the layout of RMS norms, by the names of their tensors."""
  return {
    f'{name}.scale': layouts.vector(f'{key}.weight')
    for name, key in keys.items()
  }


def attention(config: TransformerConfig, out: str = 'o_proj') -> Layout:
  """Returns the layout of attention in separate [outputs, inputs] matrices."""
  kv_biases = ['k_proj.bias', 'v_proj.bias']
  layout = {
    'q': layouts.single('hkd', 'q_proj.weight', 'hk d'),
    'kv': layouts.stack('cgkd', ['k_proj.weight', 'v_proj.weight'], 'gk d'),
    'o': layouts.single('dhk', f'{out}.weight', 'd hk'),
  }
  if config.biases != 'none':
    layout['q_bias'] = layouts.single('hk', 'q_proj.bias', 'hk')
    layout['kv_bias'] = layouts.stack('cgk', kv_biases, 'gk')
  if config.biases in ('attention', 'all'):
    layout['o_bias'] = layouts.vector(f'{out}.bias')
  if config.qk_norm:
    for norm in ('q_norm', 'k_norm'):
      layout[norm] = layouts.single('k', f'{norm}.weight', 'k')
  return layout


def mlp(up: list[str], down: str, order: str, has_biases: bool) -> Layout:
  """Returns the layout of an MLP.

  `up` names the projections before the activation, the gate first. The order is
  'od' for tensors [outputs, inputs], 'do' for the reverse.
  """
  up_axes, down_axes = ('f d', 'd f') if order == 'od' else ('d f', 'f d')
  layout = {
    'up': layouts.stack('cfd', [f'{name}.weight' for name in up], up_axes),
    'down': layouts.single('df', f'{down}.weight', down_axes),
  }
  if has_biases:
    biases = [f'{name}.bias' for name in up]
    layout['up_bias'] = layouts.stack('cf', biases, 'f')
    layout['down_bias'] = layouts.vector(f'{down}.bias')
  return layout


def fused_mlp(config: TransformerConfig) -> Layout:
  """Returns the layout of an MLP whose gate and up are rows of one tensor."""
  starts = [0, config.mlp_width]
  return {
    'up': layouts.fused('cfd', 'gate_up_proj.weight', 'f d', starts),
    'down': layouts.single('df', 'down_proj.weight', 'd f'),
  }


def learned_config(
  v: Values, width: int, num_heads: int, **fields
) -> TransformerConfig:
  """Returns a config of OPT or GPT-2."""
  if width % num_heads:
    raise UserError(f'{num_heads} heads do not divide a width of {width}')
  return v.config(
    width=width,
    num_heads=num_heads,
    num_kv_heads=num_heads,
    head_dim=width // num_heads,
    norm='layer',
    positions='learned',
    gated=False,
    biases='all',
    **fields,
  )
