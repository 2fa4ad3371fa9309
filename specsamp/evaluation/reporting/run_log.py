"""Logs of a run: files of JSON lines from which an interrupted run resumes."""

import contextlib
import dataclasses
import json
import math
import pathlib
import sys
import types
import typing
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

from specsamp.utils import distributed, files

Record = TypeVar('Record')


class RunLog(Generic[Record]):
  """A file of JSON lines, one record a line, that a later run continues.

  A record is a frozen dataclass or a TypedDict, whose annotations are the
  schema of a line::

    log = RunLog(workdir / 'times.jsonl', Time, lambda time: time.program)
    for name, measure in programs.items():
      if name not in log.records:
        log.append(Time(name, measure()))

  Without a key the log starts an empty file, and a record may be any dict. A
  line that does not belong to the run (other types, a duplicate key, refused by
  `accepts`) moves to `NAME.set-aside`, and a message reports that. A last line
  whose writing was interrupted is dropped. All
  processes of a run read the file, and the first one writes it.

  Attributes:
    path: path of the file.
    records: the records by their keys, in the order of the file. Without a key
      function the keys are 0, 1, 2 and so on.
  """

  def __init__(
    self,
    path: pathlib.Path,
    kind: type[Record] = dict,
    key: Callable[[Record], Hashable] | None = None,
    accepts: Callable[[Record], bool] = lambda record: True,
  ):
    """Reads the file if it exists.

    Args:
      path: path of the file; its folder exists.
      kind: type of a record. A dataclass drops fields that it does not declare,
        a TypedDict keeps them.
      key: returns the identity of a record; None starts an empty file.
      accepts: returns True if a record belongs to this run.
    """
    self.path = path
    self.records: dict[Hashable, Record] = {}
    self._key = key or (lambda record: len(self.records))
    text = path.read_bytes() if path.exists() else b''
    refused = self._read(text if key else b'', kind, accepts)
    distributed.wait(f'{path.name} is read')
    if refused and distributed.is_first():
      aside = path.with_name(f'{path.name}.set-aside')
      with aside.open('ab') as file:
        file.writelines(line + b'\n' for _, line in refused)
      print(
        f'{path}: {len(refused)} lines do not belong to this run, the first is '
        f'line {refused[0][0]}; they go to {aside.name}',
        file=sys.stderr,
      )
    if not key or text != b''.join(map(_line_of, self.records.values())):
      self._rewrite()

  def append(self, *records: Record) -> None:
    """Adds records, and writes their lines before it returns."""
    for record in records:
      self.records[self._key(record)] = record
    if distributed.is_first():
      with self.path.open('ab') as file:
        file.writelines(map(_line_of, records))

  def keep(self, keys: Iterable[Hashable]) -> None:
    """Deletes all records except those of these keys."""
    dropped = self.records.keys() - set(keys)
    for key in dropped:
      del self.records[key]
    if dropped:
      self._rewrite()

  def _read(self, text: bytes, kind, accepts) -> list[tuple[int, bytes]]:
    """Fills the records; returns other lines with their numbers, from 1."""
    refused = []
    *whole, last = text.split(b'\n')
    for number, line in enumerate([*whole, last], start=1):
      is_cut = number > len(whole) and line[:1] == b'{'
      try:
        value = files.parse_json(line.decode())
      except ValueError:
        if line.strip() and not is_cut:
          refused.append((number, line))
        continue
      with contextlib.suppress(ValueError):
        record = from_plain(kind, value)
        if accepts(record) and self._key(record) not in self.records:
          self.records[self._key(record)] = record
          continue
      refused.append((number, line))
    return refused

  def _rewrite(self) -> None:
    if distributed.is_first():
      lines = map(_line_of, self.records.values())
      files.replace(self.path, b''.join(lines))


def _line_of(record: Any) -> bytes:
  if dataclasses.is_dataclass(record):
    record = dataclasses.asdict(record)
  return json.dumps(record).encode() + b'\n'


def from_plain(kind: Any, value: Any) -> Any:
  """Converts a value of JSON to a type; raises ValueError if it does not fit.

  The type is bool, int, float (any finite number), str, dict, list[..],
  tuple[.., ...], dict[str, ..], a union, a TypedDict or a dataclass.
  """
  origin, arguments = typing.get_origin(kind), typing.get_args(kind)
  is_huge = type(value) is int and abs(value) >= 2**63
  if origin in (typing.Union, types.UnionType):
    for option in arguments:
      with contextlib.suppress(ValueError):
        return from_plain(option, value)
  elif origin in (list, tuple) and type(value) is list:
    return origin(from_plain(arguments[0], item) for item in value)
  elif origin is dict and type(value) is dict:
    items = value.items()
    return {name: from_plain(arguments[1], item) for name, item in items}
  elif hasattr(kind, '__annotations__') and type(value) is dict:
    hints = typing.get_type_hints(kind)
    if missing := hints.keys() - value.keys():
      raise ValueError(f'fields {sorted(missing)} are missing')
    fields = {
      name: from_plain(hint, value[name]) for name, hint in hints.items()
    }
    return value | fields if typing.is_typeddict(kind) else kind(**fields)
  elif kind is float and type(value) in (int, float) and not is_huge:
    if math.isfinite(value):
      return float(value)
  elif type(value) is kind and not is_huge:  # NoneType is the type of None
    return value
  raise ValueError(f'got {value!r:.80}, expected {kind}')
