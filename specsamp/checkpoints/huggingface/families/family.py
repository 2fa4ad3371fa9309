"""Values of a config.json, and layouts that several architectures share.

A value that would change the computed function is refused by its name.
"""

import math
from typing import Any

from specsamp.checkpoints import layouts
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
# Fields of OPT and GPT-2.
_LEARNED = dict(norm='layer', positions='learned', gated=False, biases='all')


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
  """Values of a config.json, with its class's defaults for absent keys."""

  def __init__(
    self, values: dict[str, Any], defaults: dict[str, Any] | None = None
  ):
    """Wraps the values; raises `UserError` if the weights are quantized."""
    self._values = (defaults or {}) | values
    self.must('quantization_config', None)

  def get(self, key: str, default: Any = None) -> Any:
    value = self._values.get(key)
    return default if value is None else value

  def need(self, key: str) -> Any:
    if self._values.get(key) is None:
      raise UserError(f'no {key}')
    return self._values[key]

  def must(self, key: str, expected: Any) -> None:
    """Refuses a value that would change the computed function."""
    got = self.get(key, expected)
    if got != expected:
      raise UserError(f'{key}: got {got!r}, only {expected!r} is supported')

  def activation(self, key: str) -> str:
    got = self.need(key)
    check_name(key, got, _ACTIVATIONS)
    return _ACTIVATIONS[got]

  def rope(self) -> dict[str, Any]:
    """Returns rope_theta and rope_scaling, from any version's keys."""
    self.must('partial_rotary_factor', 1)
    names = [
      name for name in ('rope_parameters', 'rope_scaling') if self.get(name)
    ]
    results = [self._rope_of(self.get(name)) for name in names]
    # Programs differ in the key that they prefer.
    if results[1:] and results[0] != results[1]:
      raise UserError(
        f'rope_parameters and rope_scaling differ: got {self.get(names[0])!r} '
        f'and {self.get(names[1])!r}'
      )
    theta, scaling = results[0] if results else self._rope_of({})
    return dict(rope_theta=theta, rope_scaling=scaling)

  def _rope_of(
    self, nested: dict[str, Any]
  ) -> tuple[float, RopeScaling | None]:
    """Returns the theta and the scaling that a nested config describes."""
    values = Values(nested)
    values.must('partial_rotary_factor', 1)
    kind = values.get('rope_type') or values.get('type', 'default')
    check_name('rope_type', kind, ('default', 'linear', 'llama3'))
    theta = agreed('rope_theta', nested, self._values)
    theta = 10_000.0 if theta is None else float(theta)
    if kind == 'default':
      return theta, None
    factor = float(values.need('factor'))
    if kind == 'linear':
      return theta, RopeScaling('linear', factor)
    length = agreed('original_max_position_embeddings', nested, self._values)
    return theta, RopeScaling(
      'llama3',
      factor,
      float(values.need('low_freq_factor')),
      float(values.need('high_freq_factor')),
      self.need('max_position_embeddings') if length is None else length,
    )

  def window(self, model_type: str) -> float:
    """Returns the number of positions within which attention is full."""
    window = self.get('sliding_window', math.inf)
    if model_type == 'llama':  # its class ignores the key
      return math.inf
    if model_type == 'mistral':  # all its layers slide
      return window
    if not self.get('use_sliding_window', False):
      window = math.inf
    kinds = self.get('layer_types')
    if kinds is None:
      slides = self.need('num_hidden_layers') > self.need('max_window_layers')
      return window if slides else math.inf
    for kind in kinds:
      check_name('layer_types', kind, ('full_attention', 'sliding_attention'))
    if 'sliding_attention' not in kinds:
      return math.inf
    if window == math.inf:
      raise UserError(
        'layer_types: got sliding_attention, expected a sliding_window and '
        'use_sliding_window'
      )
    return window


def head(config: TransformerConfig) -> Layout:
  """Returns the layout of the LM head; it is empty for a tied model."""
  if config.tied_embeddings:
    return {}
  return {'head': layouts.single('vd', 'lm_head.weight', 'v d')}


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


def learned_config(width: int, num_heads: int, **values) -> TransformerConfig:
  """Returns a config of OPT or GPT-2."""
  if width % num_heads:
    raise UserError(f'{num_heads} heads do not divide a width of {width}')
  return TransformerConfig(
    width=width,
    num_heads=num_heads,
    num_kv_heads=num_heads,
    head_dim=width // num_heads,
    **_LEARNED,
    **values,
  )


def is_learned(config: TransformerConfig) -> bool:
  """Returns True if `learned_config` can return this config."""
  return (
    all(getattr(config, name) == value for name, value in _LEARNED.items())
    and not config.qk_norm
    and config.num_kv_heads == config.num_heads
    and config.head_dim * config.num_heads == config.width
  )
