"""The values of a config.json of Hugging Face's transformers.

What a config.json asks for that would be computed otherwise here is refused by
name.
"""

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
  """What a config.json holds, and what it must hold."""

  def __init__(self, values: dict[str, Any]):
    self._values = values
    # Of weights that were packed when they were trained or saved.
    self.must('quantization_config', None)

  def get(self, key: str, default: Any) -> Any:
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
    """rope_theta and rope_scaling, by the keys of any version."""
    # Where both are there transformers takes the older name's.
    both = self.get('rope_scaling', {}) or self.get('rope_parameters', {})
    kind = both.get('rope_type', both.get('type', 'default'))
    theta = both.get('rope_theta', self.get('rope_theta', 10_000.0))
    if both.get('partial_rotary_factor', 1) != 1:
      raise UserError('partial_rotary_factor: only 1 is supported')
    self.must('partial_rotary_factor', 1)
    check_name('rope_type', kind, ('default', 'linear', 'llama3'))
    scaling = None
    if kind == 'linear':
      scaling = RopeScaling('linear', float(both['factor']))
    elif kind == 'llama3':
      scaling = RopeScaling(
        'llama3',
        float(both['factor']),
        float(both['low_freq_factor']),
        float(both['high_freq_factor']),
        both['original_max_position_embeddings'],
      )
    return dict(rope_theta=float(theta), rope_scaling=scaling)

  def window(self, model_type: str) -> float:
    """Positions within which attention sees everything."""
    if model_type == 'llama':
      return float('inf')
    kinds = set(self.get('layer_types', [])) or {'sliding_attention'}
    unknown = kinds - {'full_attention', 'sliding_attention'}
    if unknown:
      raise UserError(f'layer_types: {unknown.pop()!r} is not supported')
    if model_type == 'mistral':
      # Without the key transformers takes the window of the first Mistral.
      window = self._values.get('sliding_window', 4096)
    else:
      window = self.get('use_sliding_window', False) and self.need(
        'sliding_window'
      )
    return window if window and 'sliding_attention' in kinds else float('inf')
