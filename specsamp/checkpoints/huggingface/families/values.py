"""The values of a config.json of Hugging Face's transformers.

What a config.json asks for that would be computed otherwise here is refused by
name.
"""

import math
from typing import Any

from specsamp.errors import UserError, check_name
from specsamp.models.config import RopeScaling

_ACTIVATIONS = {
  'silu': 'silu',
  'swish': 'silu',
  'gelu': 'gelu',
  'gelu_new': 'gelu_tanh',
  'gelu_pytorch_tanh': 'gelu_tanh',
  'relu': 'relu',
}
HF_ACTIVATIONS = {
  'silu': 'silu',
  'gelu': 'gelu',
  'gelu_tanh': 'gelu_new',
  'relu': 'relu',
}


class Values:
  """Values of a config.json, with its class's defaults for absent keys."""

  def __init__(
    self, values: dict[str, Any], defaults: dict[str, Any] | None = None
  ):
    """Wraps the values.

    Args:
      values: of a config.json.
      defaults: of the class in transformers that reads it, by key.

    Raises:
      UserError: the weights were packed when they were trained or saved.
    """
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
    """Refuses a value under which something else is computed."""
    got = self.get(key, expected)
    if got != expected:
      raise UserError(f'{key}: got {got!r}, only {expected!r} is supported')

  def activation(self, key: str) -> str:
    got = self.need(key)
    check_name(key, got, _ACTIVATIONS)
    return _ACTIVATIONS[got]

  def rope(self) -> dict[str, Any]:
    """Returns rope_theta and rope_scaling, by the keys of any version.

    Raises:
      UserError: rotary positions that are not computed here, or two keys that
        differ.
    """
    self.must('partial_rotary_factor', 1)
    names = [
      name for name in ('rope_parameters', 'rope_scaling') if self.get(name)
    ]
    found = [self._rope_of(name) for name in names] or [self._rope_of(None)]
    # Programs differ in the key that they prefer.
    if found[1:] and found[0] != found[1]:
      raise UserError(
        f'rope_parameters and rope_scaling differ: got {self.get(names[0])!r} '
        f'and {self.get(names[1])!r}'
      )
    theta, scaling = found[0]
    return dict(rope_theta=theta, rope_scaling=scaling)

  def _rope_of(self, name: str | None) -> tuple[float, RopeScaling | None]:
    """Returns the theta and scaling of one of the keys, or of neither."""
    found = self.get(name, {}) if name else {}
    kinds = [key for key, value in found.items() if type(value) is dict]
    if kinds:
      raise UserError(
        f'{name}: got {", ".join(kinds)}, expected one for all layers'
      )
    values = Values(found)
    values.must('partial_rotary_factor', 1)
    kind = values.get('rope_type') or values.get('type', 'default')
    check_name('rope_type', kind, ('default', 'linear', 'llama3'))
    theta = float(self._agreed(values, 'rope_theta', 10_000.0))
    if kind == 'default':
      return theta, None
    factor = float(values.need('factor'))
    if kind == 'linear':
      return theta, RopeScaling('linear', factor)
    return theta, RopeScaling(
      'llama3',
      factor,
      float(values.need('low_freq_factor')),
      float(values.need('high_freq_factor')),
      self._agreed(
        values,
        'original_max_position_embeddings',
        self.need('max_position_embeddings'),
      ),
    )

  def _agreed(self, nested: 'Values', key: str, default: Any) -> Any:
    """Returns the value of a key that may be nested, at top level, or both."""
    inside, outside = nested.get(key), self.get(key)
    if None not in (inside, outside) and inside != outside:
      raise UserError(f'{key}: got {inside!r} and {outside!r}, expected one')
    return nested.get(key, self.get(key, default))

  def window(self, model_type: str) -> float:
    """Returns the number of positions within which attention sees all."""
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
