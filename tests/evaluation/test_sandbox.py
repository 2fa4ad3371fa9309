"""What programs can do to us, and that correct ones pass."""

import concurrent.futures
import gzip
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import time

import programs
import pytest
from testing import shared_data

from specsamp.errors import UserError
from specsamp.evaluation import sandbox


@pytest.fixture(
  params=['both', 'kernel', pytest.param('rules', marks=pytest.mark.slow)]
)
def layer(request, monkeypatch, tmp_path):
  """Takes the other layer out of a copy of what runs in the process."""
  if request.param == 'both':
    return 'both'
  if request.param == 'kernel' and not _has_kernel():
    pytest.skip('a kernel without seccomp or Landlock')
  line = {
    'rules': 'confined_by_linux.confine(folder)',
    'kernel': '_listen(folder, reply)\n\n',
  }[request.param]
  source = sandbox._CONFINED
  for file in source.parent.glob('confined*.py'):
    text = file.read_text()
    if file == source:
      assert text.count(line) == 1
      text = text.replace(line, '0\n\n')
    (tmp_path / file.name).write_text(text)
  monkeypatch.setattr(sandbox, '_CONFINED', tmp_path / source.name)
  return request.param


@pytest.fixture(autouse=True)
def box(monkeypatch, tmp_path):
  """Where the programs' folders are; neither they nor processes stay."""
  path = tmp_path / 'box'
  path.mkdir()
  monkeypatch.setattr(tempfile, 'tempdir', str(path))
  yield path
  assert not list(path.iterdir())
  for process in pathlib.Path('/proc').glob('[0-9]*/cwd'):
    try:
      folder = os.readlink(process)
    except OSError:
      continue
    assert not folder.startswith(str(path)), 'a process is left over'


@pytest.fixture
def out(tmp_path):
  """A folder with something in it, which stays as it is."""
  path = tmp_path / 'out'
  (path / 'folder').mkdir(parents=True)
  (path / 'file').write_text('text')
  before = _state(path)
  yield path
  assert _state(path) == before


@pytest.mark.parametrize('name', programs.REFUSED)
def test_refused(name, layer, out):
  if layer == 'kernel' and name in programs.NOT_OF_LINUX:
    pytest.skip('not of the kernel')
  text, why = programs.REFUSED[name]
  outcome = _run(text, out, catch=layer != 'kernel')
  assert not outcome.passed
  if layer != 'kernel':
    assert re.match(f'refused: ({why})', outcome.why), outcome


@pytest.mark.parametrize('name', programs.REFUSED_BY_RULES)
def test_refused_by_rules(name, out):
  text, why = programs.REFUSED_BY_RULES[name]
  outcome = _run(text, out, catch=True)
  assert not outcome.passed
  assert re.match(f'refused: {why}', outcome.why), outcome


@pytest.mark.parametrize('name', programs.FAILING)
def test_failing(name, out):
  text, why = programs.FAILING[name]
  outcome = _run(text, out, seconds=4.0, memory_bytes=3 << 25)
  assert not outcome.passed
  assert re.search(why, outcome.why), outcome
  assert len(outcome.why) <= 200 and outcome.why.isprintable()


@pytest.mark.parametrize('name', programs.ENDLESS)
def test_endless(name, out):
  start = time.monotonic()
  outcome = _run(programs.ENDLESS[name], out, seconds=0.3)
  assert outcome == (False, 'timed out')
  assert time.monotonic() - start < 5


@pytest.mark.parametrize('name', programs.FINE)
def test_fine(name, out):
  assert _run(programs.FINE[name], out) == (True, 'passed')


def test_function_and_its_check():
  program = textwrap.dedent("""
    from typing import List

    def double(numbers: List[int]) -> List[int]:
        return [2 * n for n in numbers]

    def check(candidate):
        assert candidate([]) == []
        assert candidate([1, 2]) == [2, %d]

    check(double)
  """)
  assert sandbox.run(program % 4) == (True, 'passed')
  assert sandbox.run(program % 5) == (False, 'AssertionError')


def test_descendants_are_killed(monkeypatch, tmp_path):
  """Also of a process that nothing confines: see `box`."""
  idle = tmp_path / 'idle.py'
  idle.write_text(
    'import os, time\nos.write(1, b"\\n")\nos.fork()\ntime.sleep(99)'
  )
  monkeypatch.setattr(sandbox, '_CONFINED', idle)
  assert sandbox.run('', seconds=0.3) == (False, 'timed out')


def test_at_once():
  texts = ['x = 1', 'assert 0', 'import os; os._exit(0)'] * 4
  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    outcomes = list(pool.map(sandbox.run, texts))
  assert [o.passed for o in outcomes] == [True, False, False] * 4


def test_python_that_does_not_start(monkeypatch, tmp_path):
  broken = tmp_path / 'broken.py'
  broken.write_text('raise ValueError("broken")')
  monkeypatch.setattr(sandbox, '_CONFINED', broken)
  with pytest.raises(RuntimeError, match='(?s)did not start.*broken'):
    sandbox.run('x = 1\n' * 99999)


def test_system_without_limits(monkeypatch):
  monkeypatch.setattr(sandbox.util, 'find_spec', lambda name: None)
  with pytest.raises(UserError, match='^sandbox: got .*, expected Linux'):
    sandbox.run('')


@pytest.mark.parametrize(
  'every', [8, pytest.param(1, marks=pytest.mark.slow)], ids='{}th'.format
)
def test_solutions_of_humaneval(every):
  with gzip.open(shared_data.find('humaneval/HumanEval.jsonl.gz')) as file:
    tasks = [json.loads(line) for line in file]
  assert len(tasks) == 164
  outcomes = {
    task['task_id']: sandbox.run(
      f'{task["prompt"]}{task["canonical_solution"]}\n{task["test"]}\n'
      f'check({task["entry_point"]})\n',
      seconds=30.0,
    )
    for task in tasks[::every]
  }
  assert not {name: o for name, o in outcomes.items() if not o.passed}


def _run(text, out, catch=False, **kwargs):
  if catch:
    text = f'try:\n{textwrap.indent(text, "  ")}\nexcept BaseException: pass\n'
  return sandbox.run(
    f'import os, pathlib, signal, sys, time\nOUT = {str(out)!r}\n{text}\n',
    **kwargs,
  )


def _state(folder):
  return {
    path.name: (path.stat().st_mode, path.is_file() and path.read_text())
    for path in folder.rglob('*')
  }


def _has_kernel() -> bool:
  """Whether both of its parts are there, as a process of its own finds."""
  if sys.platform != 'linux' or os.uname().machine not in (
    'x86_64',
    'aarch64',
  ):
    return False
  probe = (
    'import ctypes\n'
    'libc = ctypes.CDLL(None)\n'
    'number, flag = ctypes.c_long(0), ctypes.c_long(1)\n'
    'assert libc.syscall(ctypes.c_long(444), None, number, flag) > 0\n'
    'assert libc.prctl(21, 0, 0, 0, 0) >= 0\n'
  )
  return subprocess.run([sys.executable, '-c', probe]).returncode == 0
