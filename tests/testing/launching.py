"""Launchers as processes and as functions; a module that can be pickled."""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import runpy
import sys
import types
import warnings
from multiprocessing.process import BaseProcess
from typing import NamedTuple
from unittest import mock

import jax
from absl import app, flags

from specsamp.errors import UserError
from specsamp.experiments import fetch
from specsamp.utils import distributed, home

_ROOT = pathlib.Path(__file__).parents[2]


class Ended(NamedTuple):
  """The exit code and the output of a launcher."""

  code: int
  out: str
  err: str


def path(name: str) -> str:
  """Returns the path of a launcher in the checkout."""
  return str(home.launchers()[name].relative_to(_ROOT))


@contextlib.contextmanager
def _flags_restored():
  """Deletes the flags that launchers define in this block."""
  app.define_help_flags()
  before = set(flags.FLAGS)
  try:
    yield
  finally:
    for flag in set(flags.FLAGS) - before:
      delattr(flags.FLAGS, flag)
    flags.FLAGS.unparse_flags()


def load(name: str) -> types.ModuleType:
  """Returns the module of a launcher, which does not run."""
  spec = importlib.util.spec_from_file_location(name, home.launchers()[name])
  module = importlib.util.module_from_spec(spec)
  with _flags_restored():
    spec.loader.exec_module(module)
  return module


def run(argv, out, err, variables):
  """Replaces this process by a launcher, with output in files `out`, `err`."""
  for descriptor, file in ((1, out), (2, err)):
    opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(opened, descriptor)
  os.chdir(_ROOT)
  os.environ.update(variables)
  for name, value in variables.items():  # jax was imported before
    if name.startswith('JAX_') and hasattr(jax.config, name.lower()):
      value = int(value) if value.isdigit() else value
      jax.config.update(name.lower(), value)
  sys.argv = argv
  runpy.run_path(argv[0], run_name='__main__')


def run_here(name, *arguments) -> Ended:
  """Runs a launcher in this process with these flags."""
  argv = [path(name), *map(str, arguments)]
  out, err = io.StringIO(), io.StringIO()
  with (
    _flags_restored(),
    mock.patch.object(sys, 'argv', argv),
    # This process has computed before: it can join no others.
    mock.patch.object(distributed, 'initialize'),
    contextlib.chdir(_ROOT),
    contextlib.redirect_stdout(out),
    contextlib.redirect_stderr(err),
    warnings.catch_warnings(),
    jax.numpy_dtype_promotion('standard'),
    jax.numpy_rank_promotion('allow'),
  ):
    warnings.simplefilter('ignore')
    try:
      runpy.run_path(argv[0], run_name='__main__')
    except SystemExit as end:
      return Ended(end.code or 0, out.getvalue(), err.getvalue())
  raise AssertionError(f'{argv} did not end as launchers do')


class Started(NamedTuple):
  """A running launcher, and the paths of its standard output and error."""

  argv: list[str]
  process: BaseProcess
  out: pathlib.Path
  err: pathlib.Path

  def join(self, timeout: float) -> Ended:
    """Waits for the end; kills the launcher after the timeout, in seconds."""
    self.process.join(timeout)
    if self.process.is_alive():
      self.process.kill()
      raise TimeoutError(f'{self.argv} ran for over {timeout} s')
    return Ended(
      self.process.exitcode, self.out.read_text(), self.err.read_text()
    )


def start(server, folder, name, *arguments, variables=None) -> Started:
  """Starts a launcher in a fork of `server`; its output is in the folder."""
  out, err = folder / 'stdout', folder / 'stderr'
  argv = [path(name), *map(str, arguments)]
  process = server.Process(target=run, args=(argv, out, err, variables or {}))
  process.start()
  return Started(argv, process, out, err)


def read_flags(commands, path):
  """Lets launchers read their flags and configs, without running.

  Args:
    commands: name -> command line, whose first word is the launcher's path.
    path: file for the output of refused commands, by name.
  """
  os.chdir(_ROOT)

  def read(_, flags_parser):
    rest = flags_parser(sys.argv)[1:]
    if rest and sys.argv[0] != 'launch/fetch.py':
      raise SystemExit(f'unexpected arguments {rest}')
    try:
      for name in rest:
        fetch.parse(name)
    except UserError as error:
      raise SystemExit(str(error)) from None

  app.run = read
  refused = {}
  for name, argv in commands.items():
    sys.argv = argv
    with (
      _flags_restored(),
      contextlib.redirect_stderr(io.StringIO()) as printed,
    ):
      try:
        runpy.run_path(argv[0], run_name='__main__')
      except SystemExit as end:
        if end.code is None:  # help was printed
          continue
        refused[name] = f'{printed.getvalue()}{end}'
  path.write_text(json.dumps(refused))
