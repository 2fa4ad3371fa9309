"""Wrong shapes are refused in one line that names the expected values."""

import dataclasses
import json

import pytest

from specsamp.models import TransformerConfig
from specsamp.models.config import RopeScaling

_GOOD = dict(
  vocab_size=8,
  width=8,
  num_layers=1,
  num_heads=4,
  num_kv_heads=2,
  head_dim=2,
  mlp_width=8,
  max_length=8,
)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(norm='batch'), "norm: got 'batch', expected one of .*rms.*"),
    (dict(dtype='float64'), "dtype: got 'float64', .* did you mean float.*"),
    (dict(num_layers=0), 'num_layers must be an integer from 1 to 4096, got 0'),
    (dict(width=8.0), r'width must be an integer from 1 to .*, got 8\.0'),
    (dict(max_length=True), 'max_length must be an integer .*, got True'),
    (dict(gated=1), 'gated must be true or false, got 1'),
    (dict(rope_theta=0.0), r'rope_theta must be a positive number, got 0\.0'),
    (dict(num_kv_heads=3), 'num_kv_heads must divide num_heads=4, got 3'),
    (dict(head_dim=3), 'rotary positions need an even head_dim, got 3'),
    (dict(padding=-1), 'padding must be an integer from 0 to .*, got -1'),
    (dict(padding=8), 'padding must be below vocab_size=8, got 8'),
    (
      dict(positions='learned', rope_scaling=RopeScaling('linear', 2.0)),
      "rope_scaling is for rotary positions, got 'learned'",
    ),
  ],
)
def test_refused(changes, message):
  with pytest.raises(ValueError, match=f'^{message}$') as error:
    TransformerConfig(**(_GOOD | changes))
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    (dict(factor=0.5), r'factor must be at least 1, got 0\.5'),
    (dict(low_frequency=4.0), 'low_frequency must be above 0 and below .*'),
  ],
)
def test_refused_scalings(values, message):
  with pytest.raises(ValueError, match=f'^{message}$'):
    RopeScaling(**(dict(kind='llama3', factor=8.0) | values))


@pytest.mark.parametrize('scaling', [None, RopeScaling('llama3', 8.0)])
def test_from_dict_is_the_inverse_of_asdict(scaling):
  config = TransformerConfig(
    **_GOOD, gated=False, dtype='bfloat16', rope_scaling=scaling
  )
  values = json.loads(json.dumps(dataclasses.asdict(config)))
  assert TransformerConfig.from_dict(values) == config


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(heads=1), "TransformerConfig.* unexpected .*'heads'"),
    (dict(rope_scaling={'base': 3}), "RopeScaling.* unexpected .*'base'"),
    (dict(rope_scaling={'factor': 3}), "RopeScaling.* missing .*'kind'"),
  ],
)
def test_from_dict_names_wrong_keys(changes, message):
  with pytest.raises(ValueError, match=f'^model config: {message}'):
    TransformerConfig.from_dict(_GOOD | changes)
