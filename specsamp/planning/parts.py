"""Compiled programs kept in a file, so that a run that was cut off goes on."""

import dataclasses
import json
import pathlib
import typing
from collections.abc import Callable, Mapping
from typing import Any

from specsamp.planning.work import Collective, Kernels, Part
from specsamp.utils import files, progress


def compiled(
  path: pathlib.Path, programs: Mapping[tuple[str, str], Callable[[], Part]]
) -> dict[str, list[Part]]:
  """The parts of every slice; those in the file are not compiled again.

  Args:
    path: of JSON lines, written as programs are compiled.
    programs: what compiles each, by the names of its slice and its part.
  """
  lines = files.read_lines(
    path, is_part, key=lambda line: (line[0], line[1]['name'])
  )
  found = {(name, part['name']): from_plain(part) for name, part in lines.kept}
  todo = [key for key in programs if key not in found]
  lines.rewrite(
    [[name, dataclasses.asdict(part)] for (name, _), part in found.items()]
  )
  with path.open('a') as file:
    bar = progress.bar('compiling', todo, unit='program')
    for key in bar:
      bar.set_description(' '.join(key))
      found[key] = programs[key]()
      line = [key[0], dataclasses.asdict(found[key])]
      file.write(json.dumps(line) + '\n')
      file.flush()
  slices: dict[str, list[Part]] = {}
  for key in programs:
    slices.setdefault(key[0], []).append(found[key])
  return slices


def is_part(line: Any) -> bool:
  """Whether `from_plain` reads what follows the name of a slice."""
  if type(line) is not list or len(line) != 2 or type(line[0]) is not str:
    return False
  hints = typing.get_type_hints(Part)
  shape = hints | {
    'collectives': [typing.get_type_hints(Collective)],
    'kernels': typing.get_type_hints(Kernels),
  }
  try:
    return files.has_shape(line[1], shape) and bool(from_plain(line[1]))
  except TypeError:  # other fields
    return False


def from_plain(values: dict[str, Any]) -> Part:
  """The part of plain values, as `dataclasses.asdict` makes them."""
  sent = tuple(Collective(**each) for each in values['collectives'])
  run = Kernels(**values['kernels'])
  return Part(**(values | {'collectives': sent, 'kernels': run}))
