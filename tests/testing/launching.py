"""Launchers as processes; a module of its own, so that they can be pickled."""

import contextlib
import io
import json
import os
import pathlib
import runpy
import sys
import warnings
from multiprocessing.process import BaseProcess
from typing import NamedTuple
from unittest import mock

import jax
from absl import app, flags

from specsamp.errors import UserError
from specsamp.experiments import fetch
from specsamp.utils import distributed

_ROOT = pathlib.Path(__file__).parents[2]


class Ended(NamedTuple):
  """How a launcher ended."""

  code: int
  out: str
  err: str


def run(argv, out, err, variables):
  """Becomes the launcher.

  Args:
    argv: its command line.
    out: path of its standard output.
    err: path of its standard error.
    variables: of the environment.
  """
  for descriptor, path in ((1, out), (2, err)):
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(opened, descriptor)
  os.chdir(_ROOT)
  os.environ.update(variables)
  for name, value in variables.items():  # jax was imported before
    if name.startswith('JAX_') and hasattr(jax.config, name.lower()):
      value = int(value) if value.isdigit() else value
      jax.config.update(name.lower(), value)
  sys.argv = argv
  runpy.run_path(argv[0], run_name='__main__')


def run_here(name, *given) -> Ended:
  """Runs launch/`name`.py in this process: what only looks at its input.

  Args:
    name: of the launcher.
    *given: its flags.
  """
  argv = [f'launch/{name}.py', *map(str, given)]
  out, err = io.StringIO(), io.StringIO()
  app.define_help_flags()
  defined = set(flags.FLAGS)
  with (
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
    finally:
      for flag in set(flags.FLAGS) - defined:
        delattr(flags.FLAGS, flag)
      flags.FLAGS.unparse_flags()
  raise AssertionError(f'{argv} did not end as launchers do')


class Started(NamedTuple):
  """A launcher that runs.

  Attributes:
    argv: its command line.
    process: itself.
    out: path of its standard output.
    err: path of its standard error.
  """

  argv: list[str]
  process: BaseProcess
  out: pathlib.Path
  err: pathlib.Path

  def join(self, timeout: float) -> Ended:
    """Waits for its end; kills it when the time is over."""
    self.process.join(timeout)
    if self.process.is_alive():
      self.process.kill()
      raise TimeoutError(f'{self.argv} ran for over {timeout} s')
    return Ended(
      self.process.exitcode, self.out.read_text(), self.err.read_text()
    )


def start(server, folder, name, *flags, variables=None) -> Started:
  """Starts launch/`name`.py.

  Args:
    server: the context that forks it off.
    folder: where its output goes.
    name: of the launcher.
    *flags: its flags.
    variables: of the environment, a dict.
  """
  out, err = folder / 'stdout', folder / 'stderr'
  argv = [f'launch/{name}.py', *map(str, flags)]
  process = server.Process(target=run, args=(argv, out, err, variables or {}))
  process.start()
  return Started(argv, process, out, err)


def read_flags(commands, path):
  """Has launchers read their flags and configs, and run nothing.

  Args:
    commands: name -> command line, its launcher first.
    path: a file for what is refused, name -> what the launcher printed.
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
  refused, at_first = {}, set(flags.FLAGS)
  for name, argv in commands.items():
    for flag in set(flags.FLAGS) - at_first:  # of the launcher before
      delattr(flags.FLAGS, flag)
    flags.FLAGS.unparse_flags()
    sys.argv = argv
    with contextlib.redirect_stderr(io.StringIO()) as printed:
      try:
        runpy.run_path(argv[0], run_name='__main__')
      except SystemExit as end:
        if end.code is None:  # help was printed
          continue
        refused[name] = f'{printed.getvalue()}{end}'
  path.write_text(json.dumps(refused))
