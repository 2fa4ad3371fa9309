"""What `sandbox.run` starts: confines its own process, then runs a program.

Run as a script, without the package. Reads from standard input a line of token,
bytes of memory and seconds, then the program. Writes to standard output a line
once it is confined, then the token if the program ran to its last line, else
why not.
"""

import _posixsubprocess
import _thread
import builtins
import collections
import functools
import operator
import os
import posix
import resource
import sys
import weakref

# Kept apart, so that a program that replaces builtins leaves the rules alone.
__builtins__ = dict(vars(builtins))

# Audit events that end a program, by their beginnings. Those of gc and frames
# would show it what proves that it ended; links and folders are refused so
# that its folder stays flat: no path leads out of it, and it is easily removed.
_REFUSED = (
  *('socket.', 'ctypes.', 'subprocess.', 'syslog.', 'fcntl.ioctl'),
  *('os.fork', 'os.exec', 'os.posix_spawn', 'os.system'),
  *('os.kill', 'signal.pthread_kill', 'resource.setrlimit', 'resource.prlimit'),
  *('os.chdir', 'os.link', 'os.symlink', 'os.mkdir', 'os.rmdir', 'os.chmod'),
  *('os.chown', 'os.chflags', 'os.setxattr', 'os.removexattr'),
  *('gc.get_', 'sys._current_', 'sys.remote_exec'),
)
# Audit events with paths to write: how many.
_WRITES = {'os.remove': 1, 'os.truncate': 1, 'os.utime': 1, 'os.rename': 2}
# Audit events with a path to read.
_READS = ('os.listdir', 'os.scandir', 'os.listxattr', 'os.getxattr')
# What these open, start or keep beyond the process raises no audit event.
_MODULES = (
  *('ctypes', '_ctypes', '_ctypes_test', '_sqlite3', '_dbm', '_gdbm'),
  *('_posixshmem', '_multiprocessing', '_xxsubinterpreters', '_interpreters'),
  *('_testcapi', '_testinternalcapi', '_testlimitedcapi', '_testmultiphase'),
)
# Functions that raise none either.
_UNHEARD = (
  *('mkfifo', 'mknod', 'setsid', 'setpgid', 'setpgrp', 'setns', 'unshare'),
  *('pidfd_open', 'fork_exec'),
)

_OPEN_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FILE_BYTES = 1 << 24
_FILES = 64
_STACK_BYTES = 1 << 24


def main():
  header, _, program = sys.stdin.buffer.read().partition(b'\n')
  token, memory, seconds = header.split()
  program = program.decode('utf-8', 'surrogatepass')
  folder = os.getcwd()
  _limit(int(memory), int(seconds))
  if sys.platform == 'linux':
    sys.path.append(os.path.dirname(__file__))
    import confined_by_linux

    sys.path.pop()
    confined_by_linux.confine(folder)
  reply = os.dup(1)
  null = os.open(os.devnull, os.O_RDWR)
  for descriptor in range(3):
    os.dup2(null, descriptor)
  main_module = type(sys)('__main__')
  main_module.__builtins__ = builtins
  for name in list(sys.modules):
    if 'ctypes' in name or 'confined' in name:
      del sys.modules[name]
  sys.modules['__main__'] = main_module
  _listen(folder, reply)

  errors, over = collections.deque(maxlen=1), _thread.allocate_lock()
  sys.unraisablehook = errors.append
  over.acquire()
  watches = []
  tasks = [_task(program, vars(main_module), token, reply, over, watches)]
  del header, program, token
  _thread.stack_size(_STACK_BYTES)
  os.write(reply, b'\n')
  _thread.start_new_thread(*tasks.pop())
  _thread.stack_size(0)
  over.acquire()
  os.write(reply, _why(errors))
  os._exit(0)


def _task(program, namespace, token, reply, over, watches):
  """What a thread is to call: the program, then the proof that it ended.

  All of it are functions in C. The program has no frame below its own, and the
  token is in no frame, global or traceback, also not of the other thread: to
  get at it, a program would have to read the process's memory. `over` is
  released where it does not end as it should.
  """
  run = functools.partial(exec, program, namespace)
  watches.append(weakref.ref(run, lambda _: over.release()))
  steps = [
    run,
    functools.partial(os.write, reply, token),
    functools.partial(os._exit, 0),
  ]
  return collections.deque(maxlen=0).extend, (map(operator.call, steps),)


def _why(errors) -> bytes:
  if not errors:
    return b''
  error = errors[0].exc_value
  if isinstance(error, MemoryError):
    return b'out of memory'
  name = type(error).__name__
  try:
    text = str(error)[:200]
  except BaseException:
    text = ''
  return f'{name}: {text}'.encode(errors='replace')


def _limit(memory: int, seconds: int):
  for name, value in (
    ('RLIMIT_AS', memory),
    ('RLIMIT_CPU', seconds + 2),  # should nobody be left to kill it
    ('RLIMIT_FSIZE', _FILE_BYTES),
    ('RLIMIT_NOFILE', _FILES),
    ('RLIMIT_CORE', 0),
  ):
    try:
      resource.setrlimit(getattr(resource, name), (value, value))
    except (AttributeError, OSError, ValueError):
      continue  # macOS has no limit of address space


def _listen(folder: str, reply: int):
  """Ends the program, for good, at what the rules above refuse."""
  libraries = tuple(f'{path}/' for path in sys.path)
  # Programs replace functions of modules; not these.
  write, leave, stat, null = os.write, os._exit, os.stat, os.devnull

  def end(what):
    try:
      write(reply, b'refused: ' + what.encode(errors='replace')[:160])
    finally:
      leave(1)

  def place(path):
    """From the root on; '' for a detour, the folder for a descriptor."""
    kind = type(path)  # __class__ may be a lie
    if path is None or issubclass(kind, int):
      return folder  # these rules let it be opened
    if issubclass(kind, bytes):
      path = bytes.decode(path, errors='surrogateescape')
    path = str.__str__(path)
    parts = (path if path[:1] == '/' else f'{folder}/{path}').split('/')
    if '..' in parts:
      return ''
    return ''.join(f'/{part}' for part in parts if part not in ('', '.'))

  def mine(path):
    return f'{place(path)}/'.startswith(f'{folder}/')

  def readable(path):
    path = place(path)
    if f'{path}/'.startswith((f'{folder}/', *libraries)):
      return True
    try:
      stat(path)
    except (OSError, ValueError):
      return path != ''  # let it find that there is no such file
    return False

  def allowed(event, args):
    if event == 'open':
      path, mode, flags = args
      # os.open, which gives no mode, could open a folder of the library, and
      # other calls then name files beside that.
      if place(path) == null:  # the text itself: == may be the program's own
        return True
      writes = mode is None or flags & _OPEN_TO_WRITE
      return mine(path) if writes else readable(path)
    if event == 'import':
      name, file = str.__str__(args[0]), args[1]
      if name == 'readline':  # pdb and so doctest do without
        raise ModuleNotFoundError('readline')
      # No extension module but the library's: these rules end with another.
      of_library = file is None or place(file).startswith(libraries)
      return name not in _MODULES and of_library
    if event in _READS:
      return readable(args[0])
    if event in _WRITES:
      return all(map(mine, args[: _WRITES[event]]))
    return not event.startswith(_REFUSED)

  def hear(event, args):
    if not allowed(event, args):
      named = event in ('open', 'import', *_READS, *_WRITES)
      end(f'{event} {args[0]!r}' if named else event)

  for module in (os, posix, _posixsubprocess):
    for name in _UNHEARD:
      if hasattr(module, name):
        setattr(module, name, lambda *_, name=name, **__: end(name))
  sys.addaudithook(hear)


if __name__ == '__main__':
  main()
