"""Launchers run as a user runs them, without paying for an import each time."""

import multiprocessing
import os
import pathlib
import re
import runpy
import sys
from typing import NamedTuple

import pytest

_ROOT = pathlib.Path(__file__).parents[2]


class Ended(NamedTuple):
  """How a launcher ended."""

  code: int
  out: str
  err: str


def _run(argv, out, err):
  for descriptor, path in ((1, out), (2, err)):
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(opened, descriptor)
  os.chdir(_ROOT)
  sys.argv = argv
  runpy.run_path(argv[0], run_name='__main__')


@pytest.fixture(scope='session')
def server():
  """Forks off a process in which everything is imported and nothing has run."""
  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload(
    ['specsamp.cli', 'specsamp.evaluation.demo', 'specsamp.training.pretrain']
  )
  return context


@pytest.fixture
def launch(server, tmp_path):
  """launch('decode', '--flag=...', ...) -> Ended."""

  def start(name: str, *flags: str, timeout: float = 240) -> Ended:
    out, err = tmp_path / 'stdout', tmp_path / 'stderr'
    argv = [f'launch/{name}.py', *map(str, flags)]
    process = server.Process(target=_run, args=(argv, out, err))
    process.start()
    process.join(timeout)
    if process.is_alive():
      process.kill()
      raise TimeoutError(f'{argv} ran for over {timeout} s')
    return Ended(process.exitcode, out.read_text(), err.read_text())

  return start


@pytest.fixture
def refused(launch):
  """As `launch`, for a mistake: asserts one line and code 2, returns it."""

  def start(name: str, *flags: str) -> str:
    ended = launch(name, *flags)
    assert ended.code == 2, ended
    assert ended.out == ''
    assert re.fullmatch(rf'{name}\.py: [^\n]+\n', ended.err), ended.err
    return ended.err

  return start
