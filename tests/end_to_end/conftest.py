"""Launchers run as a user runs them, without paying for an import each time."""

import multiprocessing
import re

import pytest
from launching import Ended, run


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
    process = server.Process(target=run, args=(argv, out, err))
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
