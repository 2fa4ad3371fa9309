"""Run logs keep the lines of a run, and no line of a user is lost."""

import dataclasses
import json
from typing import TypedDict

import pytest

from specsamp.evaluation.reporting.run_log import RunLog, from_plain


class _Inner(TypedDict):
  z: bool


@dataclasses.dataclass(frozen=True)
class _Line:
  id: str
  n: tuple[int, ...]
  x: float
  y: _Inner | None


_GOOD = {'id': 'a', 'n': [1, 2], 'x': 1.0, 'y': {'z': True}}


def _plain(name, **changes):
  return json.dumps(_GOOD | {'id': name} | changes).encode()


def _open(path, accepts=lambda line: True):
  return RunLog(path, _Line, lambda line: line.id, accepts)


@pytest.mark.parametrize(
  'change',
  [
    dict(id=1), dict(n=1), dict(n=[1.0]), dict(n=[True]), dict(x='1'),
    dict(x=float('nan')), dict(x=float('inf')), dict(x=True), dict(x=10**400),
    dict(n=[2**63]), dict(y={}), dict(y={'z': 1}), dict(y=0),
  ],
  ids=repr,
)  # fmt: skip
def test_types_of_a_record(change):
  record = _Line('a', (1, 2), 1.0, {'z': True})
  assert from_plain(_Line, _GOOD | {'more': 3, 'x': 1}) == record
  assert from_plain(_Line, _GOOD | {'y': None}).y is None
  assert from_plain(dict[str, list[float]], {'a': [1]}) == {'a': [1.0]}
  with pytest.raises(ValueError):
    from_plain(_Line, _GOOD | change)


def test_a_run_resumes(tmp_path):
  path = tmp_path / 'lines.jsonl'
  log = _open(path)
  assert not log.records and not path.exists()
  for name in 'abc':
    log.append(_Line(name, (1,), 0.5, None))
  # The last line was interrupted, and is written again.
  path.write_bytes(path.read_bytes()[:-5])
  log = _open(path)
  assert [*log.records] == ['a', 'b']
  assert log.records['a'] == _Line('a', (1,), 0.5, None)
  log.append(_Line('c', (), 1.0, {'z': True}))
  log.keep('ac')
  assert [*_open(path).records] == [*log.records] == ['a', 'c']
  lines = path.read_text().splitlines()
  assert [json.loads(line)['id'] for line in lines] == ['a', 'c']


def test_a_log_without_a_key_starts_anew(tmp_path):
  path = tmp_path / 'lines.jsonl'
  for _ in range(2):
    log = RunLog(path)
    assert path.read_bytes() == b''
    log.append({'a': 1}, {'b': None})
  assert path.read_text() == '{"a": 1}\n{"b": null}\n'
  assert [*log.records.values()] == [{'a': 1}, {'b': None}]


def test_other_lines_are_set_aside(tmp_path, capsys):
  path = tmp_path / 'lines.jsonl'
  lines = [_plain(name) for name in 'abc']
  others = [
    b'{}', b'5', b'null', b'"x"', b'\xff\xfe', b'[' * 10**5, b'{"id": ', b'nan',
    b'9' * 5000, _plain('d', n='x'), _plain('a', x=7), _plain('e'),
  ]  # fmt: skip
  mixed = [lines[0], *others[:5], lines[1], b'', *others[5:], lines[2]]
  path.write_bytes(b'\n'.join([*mixed, lines[0][:9]]))
  log = _open(path, lambda line: line.id != 'e')
  assert [*log.records] == ['a', 'b', 'c']
  assert path.read_bytes() == b'\n'.join([*lines, b''])
  aside = tmp_path / 'lines.jsonl.set-aside'
  assert aside.read_bytes().split(b'\n')[:-1] == others
  message = '12 lines do not belong to this run, the first is line 2'
  assert message in capsys.readouterr().err
  # A last line that lacks only its end counts.
  path.write_bytes(b'\n'.join(lines))
  assert len(_open(path).records) == 3
