"""Launchers as processes; a module of its own, so that they can be pickled."""

import os
import pathlib
import runpy
import sys
from typing import NamedTuple

_ROOT = pathlib.Path(__file__).parents[1]


class Ended(NamedTuple):
  """How a launcher ended."""

  code: int
  out: str
  err: str


def run(argv, out, err):
  for descriptor, path in ((1, out), (2, err)):
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(opened, descriptor)
  os.chdir(_ROOT)
  sys.argv = argv
  runpy.run_path(argv[0], run_name='__main__')
