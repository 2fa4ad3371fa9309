"""Keys of configs: their defaults, documentation and values."""

import dataclasses
from typing import Literal

import pytest

from specsamp.errors import UserError
from specsamp.utils import schema


@dataclasses.dataclass(frozen=True)
class _Inner:
  """A nested config.

  Attributes:
    size: number of things.
  """

  size: int = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Base:
  """A config.

  Attributes:
    seed: seed of all draws, which
      may be long: two lines.
    rates: rates to compare.
  """

  seed: int = 0
  rates: tuple[float, ...] = (0.5,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Config(_Base):
  """A larger config.

  Attributes:
    kind: the kind.
    inner: nested values.
    rates: rates, documented again.
    items: nested values, in a tuple.

  Not an attribute:
    other: text.
  """

  kind: Literal['', 'one', 'two']
  inner: _Inner = _Inner()
  items: tuple[_Inner, ...] = ()
  shape: tuple[int | tuple[int, ...], ...] = ()
  pair: tuple[str, int] = ('a', 1)
  flag: bool = False
  top_p: float | None = None
  free: dict[str, int] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    if self.seed < 0:
      raise ValueError('negative seed')


def test_config_dict():
  config = schema.config_dict(_Config, kind='one', seed=7)
  assert config.is_locked and config.inner.is_locked
  assert not config.free.is_locked
  assert config.seed == 7 and config.rates == (0.5,)
  assert config.inner.to_dict() == {'size': 3}
  config = schema.config_dict(_Config, kind='', inner={})
  assert config.inner.to_dict() == {'size': 3}
  assert schema.read(_Config, config.to_dict()) == _Config(kind='')


def test_describe():
  config = schema.config_dict(_Config, kind='one')
  keys = list(schema.describe(_Config, config.to_dict()))
  assert keys[:6] == [
    ('seed', 0, 'seed of all draws, which may be long: two lines.'),
    ('rates', (0.5,), 'rates, documented again.'),
    ('kind', 'one', 'the kind. One of one, two.'),
    ('inner', {'size': 3}, 'nested values.'),
    ('inner.size', 3, 'number of things.'),
    ('items', (), 'nested values, in a tuple.'),
  ]


def test_read():
  config = schema.read(
    _Config,
    dict(
      kind='two', inner={'size': 4}, items=[{}, {'size': 5}], rates=[1, 0.5],
      shape=[2, [1, 1]], top_p=1,
    ),
  )  # fmt: skip
  assert config == _Config(
    kind='two', inner=_Inner(4), items=(_Inner(), _Inner(5)), rates=(1, 0.5),
    shape=(2, (1, 1)), top_p=1,
  )  # fmt: skip


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'sed': 1}, "config: key: got 'sed', .*did you mean seed"),
    ({'kind': 'three'}, "kind: got 'three', expected one of one, two"),
    ({'kind': ...}, "config: missing key 'kind'"),
    ({'seed': True}, 'seed: got True, expected an integer'),
    ({'seed': -1}, 'config: negative seed'),
    ({'rates': 0.5}, 'rates: got 0.5, expected tuple'),
    ({'rates': ('a',)}, "rates: got 'a', expected a number"),
    ({'inner': 3}, 'inner: got 3, expected a dict'),
    ({'inner': {'siz': 3}}, "config: inner: key: got 'siz'"),
    ({'shape': (2, (1, 'a'))}, "shape: got 'a', expected an integer"),
    ({'pair': ('a',)}, r"pair: got \('a',\), expected tuple\[str, int\]"),
    ({'flag': 1}, 'flag: got 1, expected true or false'),
    ({'top_p': 'a'}, "top_p: got 'a', expected a number"),
    ({'free': 3}, 'free: got 3, expected dict'),
  ],
)
def test_invalid_values(changes, message):
  values = {'kind': 'one'} | changes
  values = {key: value for key, value in values.items() if value is not ...}
  with pytest.raises(UserError, match=message):
    schema.read(_Config, values)
