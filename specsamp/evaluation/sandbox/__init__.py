"""Programs that a language model wrote, run apart from this process."""

import contextlib
import os
import pathlib
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from importlib import util
from typing import NamedTuple

from specsamp.errors import UserError

_CONFINED = pathlib.Path(__file__).with_name('confined.py')
_START_SECONDS = 60.0
_REPLY_BYTES = 4096
_WHY_CHARS = 200


def run(
  program: str, *, seconds: float = 5.0, memory_bytes: int = 1 << 30
) -> 'Outcome':
  """Runs a program in a process of its own, and reports whether it passed.

  It passes if it runs to its last line, whatever it prints. Exits, exceptions,
  and all that is refused are failures, also where the program catches them.

  The program gets the standard library and a flat, empty folder, removed
  afterwards, but no input, output, other files, processes, signals, network,
  `ctypes` or `sqlite3`. Audit hooks of Python and limits of resources see to
  it; on Linux the kernel does too, where it offers seccomp and Landlock. That
  keeps out accidents and ordinary mischief of a model. It does not keep out a
  determined attacker: audit hooks are no wall within a process, the kernel does
  not keep this process from reading what this user may read, and many files of
  16 MiB fill a disk. Hostile programs belong in a container or a virtual
  machine besides. A program may also replace what its own tests rely on.

  It runs in a thread, so that `signal.signal` raises; loops of `asyncio` are
  refused, as they need sockets.

  Args:
    program: Python source, run as `__main__`.
    seconds: on the clock, from when the process is confined.
    memory_bytes: of address space, its Python included; macOS has no limit.

  Raises:
    UserError: a system without limits of resources, such as Windows.
    RuntimeError: the process did not get as far as the program.
  """
  if util.find_spec('resource') is None:
    raise UserError(f'sandbox: got {sys.platform}, expected Linux or macOS')
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    return _run(program, seconds, memory_bytes, os.path.realpath(folder))


def _run(program, seconds, memory_bytes, folder) -> 'Outcome':
  # Whoever knows the token passes. It is drawn anew for each program.
  token = secrets.token_hex(16).encode()
  with tempfile.TemporaryFile() as given:
    given.write(b'%b %d %d\n' % (token, memory_bytes, seconds + 1))
    given.write(program.encode('utf-8', 'surrogatepass'))
    given.seek(0)
    process = subprocess.Popen(
      [sys.executable, '-I', '-S', '-B', str(_CONFINED)],
      stdin=given,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      cwd=folder,
      env={'HOME': folder, 'TMPDIR': folder},
      start_new_session=True,
    )
  with process:  # closes the pipe and waits
    try:
      return _outcome(process, token, seconds)
    finally:
      # Of a process that was waited for, the number may be another's.
      if process.returncode is None:
        with contextlib.suppress(PermissionError):  # of macOS: it is over
          os.killpg(process.pid, signal.SIGKILL)


def _outcome(process, token, seconds) -> 'Outcome':
  started, _ = _read(process.stdout, 1, _START_SECONDS)
  if started != b'\n':
    output, _ = _read(process.stdout, _REPLY_BYTES, 1.0)
    output = (started + output).decode(errors='replace')
    raise RuntimeError(f'sandbox: Python did not start: {output}')
  reply, in_time = _read(process.stdout, _REPLY_BYTES, seconds)
  if reply == token:
    return Outcome(True, 'passed')
  if not in_time:
    return Outcome(False, 'timed out')
  # It may have closed its descriptors and go on.
  with contextlib.suppress(subprocess.TimeoutExpired):
    process.wait(0.5)
  return Outcome(False, _why(reply, process.returncode))


def _read(pipe, size: int, seconds: float) -> tuple[bytes, bool]:
  """Up to `size` bytes, and whether they or the end came in time."""
  deadline = time.monotonic() + seconds
  found = b''
  with selectors.DefaultSelector() as selector:
    selector.register(pipe, selectors.EVENT_READ)
    while len(found) < size:
      if not selector.select(max(0.0, deadline - time.monotonic())):
        return found, False
      piece = os.read(pipe.fileno(), size - len(found))
      if not piece:
        break
      found += piece
  return found, True


def _why(reply: bytes, status: int | None) -> str:
  """One line; the program may have written the reply itself.

  Args:
    reply: what came instead of the token.
    status: of the process, or None if it went on.
  """
  output = ' '.join(reply.decode(errors='replace').split())
  if output:
    line = ''.join(c if c.isprintable() else '?' for c in output)
    return line.removesuffix(':')[:_WHY_CHARS]
  if status == -signal.SIGSYS:
    return 'refused: a system call'
  if status == -signal.SIGKILL:
    return 'out of memory'
  if status and status < 0:
    return f'killed by {signal.Signals(-status).name}'
  return 'ended before its last line'


class Outcome(NamedTuple):
  """How a program ended.

  Attributes:
    passed: it ran to its last line.
    why: one line, for people: a program can forge it.
  """

  passed: bool
  why: str
