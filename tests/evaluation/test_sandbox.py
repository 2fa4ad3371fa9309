"""Correct programs pass, and what a program does stays within its limits."""

import re
import tempfile
import time

import pytest
from testing import shared_data

from specsamp.evaluation import sandbox
from specsamp.evaluation.tasks.task import read_lines

_FAILING = {
  'assertion': ('assert 1 == 2, "not so"', '^AssertionError: not so$'),
  'syntax': ('def', '^SyntaxError: '),
  'hard_exit': ('import os; os._exit(0)', '^ended before its last line$'),
  'input': ('input()', '^EOFError'),
  'memory': ('[0] * (1 << 40)', '^MemoryError$'),
  'file': ('open("big", "wb").write(bytes(1 << 25))', r'^OSError: .*Errno 27'),
  'crash': ('import os; os.abort()', '^killed by SIGABRT$'),
  'surrogate': ('x = "\ud800"', 'Error'),
  'unprintable': ('raise ValueError("\\x1b[2J" * 999)', r'^ValueError: \?\[2J'),
}


@pytest.mark.parametrize('name', _FAILING)
def test_failing_programs(name):
  program, why = _FAILING[name]
  outcome = sandbox.run(program)
  assert not outcome.passed
  assert re.search(why, outcome.why), outcome
  assert len(outcome.why) <= 200 and outcome.why.isprintable()


@pytest.mark.parametrize(
  'program',
  [
    '',
    'assert __name__ == "__main__"\nmain = exec = print = None',
    'import os, sys\nassert not os.listdir() and not os.environ.get("PATH")',
    'print("é" * 999999)\ntry: raise SystemExit\nexcept SystemExit: pass',
    'import dataclasses\n@dataclasses.dataclass\nclass A:\n  x: "int" = 1\nA()',
  ],
)
def test_programs_that_pass(program):
  assert sandbox.run(program) == (True, 'passed')


def test_a_program_and_its_children_are_ended(monkeypatch, tmp_path):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  child = f'if os.fork() == 0:\n  while open({str(tmp_path / "beat")!r}, "a")'
  child += '.write("x"): time.sleep(0.01)\n'
  began = time.monotonic()
  program = f'import os, time\n{child}time.sleep(0.1)\nwhile True: pass'
  assert sandbox.run(program, seconds=1.0) == (False, 'timed out')
  assert time.monotonic() - began < 5
  size = (tmp_path / 'beat').stat().st_size
  time.sleep(0.1)
  assert (tmp_path / 'beat').stat().st_size == size > 0
  assert [path.name for path in tmp_path.iterdir()] == ['beat']


@pytest.mark.parametrize(
  'every', [8, pytest.param(1, marks=pytest.mark.slow)], ids='{}th'.format
)
def test_solutions_of_humaneval(every):
  path = shared_data.find('humaneval/HumanEval.jsonl.gz')
  tasks = read_lines(path)
  assert len(tasks) == 164
  for task in tasks[::every]:
    program = (
      f'{task["prompt"]}{task["canonical_solution"]}\n{task["test"]}\n'
      f'check({task["entry_point"]})\n'
    )
    outcome = sandbox.run(program, seconds=30.0)
    assert outcome.passed, (task['task_id'], outcome)
