"""A wrong shape is refused in one line that says what was expected."""

import dataclasses
import json

import pytest

from specsamp.models import TransformerConfig

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
    (dict(norm='batch'), r"norm must be one of .*'rms'.* got 'batch'"),
    (dict(positions='alibi'), "positions must be one of .* got 'alibi'"),
    (dict(activation='swish'), "activation must be one of .* got 'swish'"),
    (dict(dtype='float16'), "dtype must be one of .* got 'float16'"),
    (dict(num_layers=0), 'num_layers must be a positive integer, got 0'),
    (dict(width=8.0), r'width must be a positive integer, got 8\.0'),
    (dict(max_length=True), 'max_length must be a positive integer, got True'),
    (dict(num_kv_heads=3), 'num_kv_heads must divide num_heads=4, got 3'),
    (dict(head_dim=3), 'rotary positions need an even head_dim, got 3'),
  ],
)
def test_refused(changes, message):
  with pytest.raises(ValueError, match=f'^{message}$') as error:
    TransformerConfig(**(_GOOD | changes))
  assert '\n' not in str(error.value)


def test_an_odd_head_is_fine_without_rotary():
  TransformerConfig(**(_GOOD | dict(head_dim=3, positions='relative')))


def test_from_dict_is_the_inverse_of_asdict():
  config = TransformerConfig(**_GOOD, gated=False, dtype='bfloat16')
  values = json.loads(json.dumps(dataclasses.asdict(config)))
  assert TransformerConfig.from_dict(values) == config


def test_from_dict_names_the_keys():
  values = _GOOD | {'heads': 1}
  del values['width']
  with pytest.raises(
    ValueError, match=r"unknown keys \['heads'\], missing keys \['width'\]"
  ):
    TransformerConfig.from_dict(values)
