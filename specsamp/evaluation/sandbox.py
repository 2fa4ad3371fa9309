"""Runs a program that a language model wrote in a subprocess with limits."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from typing import NamedTuple

_PASSED = 87  # exit status, which a program does not have by accident
_WHY_CHARS = 200
_RUNNER = f"""
def main():
  import os, resource, sys
  memory, seconds = map(int, sys.argv[1:])
  source = sys.stdin.buffer.read()
  for name, limit in dict(
    RLIMIT_AS=memory,
    RLIMIT_CPU=seconds,
    RLIMIT_FSIZE=1 << 24,
    RLIMIT_NOFILE=64,
    RLIMIT_CORE=0,
  ).items():
    try:
      resource.setrlimit(getattr(resource, name), (limit, limit))
    except (OSError, ValueError):
      pass  # macOS does not limit the address space
  exec(compile(source, 'program', 'exec'), vars(sys.modules['__main__']))
  os._exit({_PASSED})

main()
"""


class Outcome(NamedTuple):
  """Result of a program."""

  passed: bool  # it ran to its last line
  why: str  # one line for people


def run(
  program: str, *, seconds: float = 5.0, memory_bytes: int = 1 << 30
) -> Outcome:
  """Runs Python source as `__main__`; it passes if its last line is reached.

  Exits and exceptions are failures. The program has the standard library, no
  input, no environment, a private working directory, and limits on its
  wall-clock time, address space, files and file sizes. Its child processes are
  killed when it ends.

  The limits contain accidents. The program can still read and write the files
  of this user and use the network: run untrusted code in a container.
  """
  with (
    tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
    tempfile.TemporaryFile() as source,
    tempfile.TemporaryFile() as errors,
  ):
    source.write(program.encode('utf-8', 'surrogatepass'))
    source.seek(0)
    limits = [str(memory_bytes), str(int(seconds) + 1)]
    process = subprocess.Popen(
      [sys.executable, '-I', '-S', '-B', '-X', 'utf8', '-c', _RUNNER, *limits],
      stdin=source,
      stdout=subprocess.DEVNULL,
      stderr=errors,
      cwd=folder,
      env={'HOME': folder, 'TMPDIR': folder},
      start_new_session=True,
    )
    try:
      status = process.wait(seconds)
    except subprocess.TimeoutExpired:
      return Outcome(False, 'timed out')
    finally:
      # The session has children even if its first process has ended.
      with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
      process.wait()
    if status == _PASSED:
      return Outcome(True, 'passed')
    if status < 0:
      return Outcome(False, f'killed by {signal.Signals(-status).name}')
    errors.seek(0)
    text = errors.read().decode(errors='replace')
  _, _, last = text.strip().rpartition('\n')
  why = ''.join(c if c.isprintable() else '?' for c in last[:_WHY_CHARS])
  return Outcome(False, why or 'ended before its last line')
