"""Programs that harm, fail, never end or are fine, for the sandbox."""

# Name -> program, and what `why` says. OUT is a folder that is none of its own,
# with a file in it and a folder.
REFUSED = {
  'fork': ('if os.fork() == 0: open(OUT + "/new", "w")', r'os\.fork'),
  'forkpty': ('os.forkpty()', r'os\.forkpty'),
  'bomb': ('while True: os.fork()', r'os\.fork'),
  'system': ('os.system(f"touch {OUT}/new")', r'os\.system'),
  'popen': ('os.popen(f"touch {OUT}/new").read()', r'subprocess\.Popen'),
  'subprocess': (
    'import subprocess; subprocess.run(["touch", OUT + "/new"])',
    r'subprocess\.Popen',
  ),
  'posix_spawn': (
    'os.posix_spawn("/bin/sh", ["sh", "-c", f"touch {OUT}/new"], {})',
    r'os\.posix_spawn',
  ),
  'exec': ('os.execv("/bin/sh", ["sh", "-c", f"> {OUT}/new"])', r'os\.exec'),
  'fork_exec': (
    'import _posixsubprocess; _posixsubprocess.fork_exec(["/bin/true"])',
    'fork_exec',
  ),
  'multiprocessing': (
    'import multiprocessing\n'
    'p = multiprocessing.get_context("fork").Process(target=print)\n'
    'p.start(); p.join()',
    r'os\.fork',
  ),
  'setsid': ('os.setsid()', 'setsid|PermissionError'),
  'open': ('open(OUT + "/new", "w")', 'open .*/new'),
  'append': ('open(OUT + "/file", "a").write("x")', 'open .*/file'),
  'update': ('open(OUT + "/file", "r+").write("x")', 'open .*/file'),
  'bytes': ('open(os.fsencode(OUT + "/new"), "w")', 'open .*/new'),
  'os_open': ('os.open(OUT + "/new", os.O_CREAT | os.O_WRONLY)', 'open .*/new'),
  'pathlib': ('pathlib.Path(OUT, "new").write_text("x")', 'open .*/new'),
  'parent': ('open("../new", "w")', r'open .\.\./new'),
  'beside': ('open(os.getcwd() + "2", "w")', 'open'),
  'folder': (
    'there = os.open(OUT, os.O_RDONLY)\n'
    'os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=there)',
    'open',
  ),
  'library': (
    'there = os.open(os.path.dirname(os.__file__), os.O_RDONLY)\n'
    'os.remove("no_such_module.py", dir_fd=there)',
    'open',
  ),
  'null': ('os.utime("/dev/null")', r'os\.utime'),
  'mkdir': ('os.mkdir(OUT + "/new")', r'os\.mkdir'),
  'rmdir': ('os.rmdir(OUT + "/folder")', r'os\.rmdir'),
  'remove': ('os.remove(OUT + "/file")', r'os\.remove'),
  'unlink': ('pathlib.Path(OUT, "file").unlink()', r'os\.remove'),
  'rename_in': ('os.rename(OUT + "/file", "file")', r'os\.rename'),
  'rename_out': (
    'open("x", "w").close(); os.rename("x", OUT + "/new")',
    r'os\.rename',
  ),
  'link': ('os.link(OUT + "/file", "file")', r'os\.link'),
  'symlink': (
    'os.symlink(OUT, "out"); open("out/new", "w")',
    r'os\.symlink',
  ),
  'chmod': ('os.chmod(OUT + "/file", 0)', r'os\.chmod'),
  'chown': ('os.chown(OUT + "/file", 1, 1)', r'os\.chown'),
  'truncate': ('os.truncate(OUT + "/file", 0)', r'os\.truncate'),
  'mkfifo': ('os.mkfifo(OUT + "/new")', 'mkfifo'),
  'mknod': ('os.mknod(OUT + "/new")', 'mknod'),
  'rmtree': ('import shutil; shutil.rmtree(OUT)', 'open|os.scandir'),
  'copy': (
    'import shutil; shutil.copy(os.__file__, OUT + "/new")',
    'open .*/new',
  ),
  'tempfile': (
    'import tempfile; tempfile.NamedTemporaryFile(dir=OUT, delete=False)',
    'open',
  ),
  'chdir': ('os.chdir(OUT); open("new", "w")', r'os\.chdir'),
  'sqlite': (
    'import sqlite3\n'
    'sqlite3.connect(":memory:").execute("attach ? as x", [OUT + "/new"])'
    '.execute("create table x.t (a)")',
    'import ._sqlite3',
  ),
  'shared_memory': (
    'from multiprocessing import shared_memory\n'
    'shared_memory.SharedMemory(create=True, size=9).unlink()',
    'import ._posixshmem',
  ),
  'socket': ('import socket; socket.socket()', r'socket\.__new__'),
  'pair': ('import socket; socket.socketpair()', r'socket\.|a system call'),
  'asyncio': (
    'import asyncio; asyncio.run(asyncio.sleep(0))',
    r'socket\.|a system call',
  ),
  'kill': ('os.kill(os.getppid(), signal.SIGURG)', r'os\.kill'),
  'killpg': ('os.killpg(os.getpgid(os.getppid()), 23)', r'os\.killpg'),
  'ctypes': ('import ctypes; ctypes.CDLL(None).getpid()', 'import ._?ctypes'),
  'limits': (
    'import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))',
    r'resource\.setrlimit',
  ),
}
REFUSED_BY_RULES = {
  'read': ('open(OUT + "/file")', 'open .*/file'),
  'password': ('open("/etc/passwd")', 'open ./etc/passwd'),
  'list': ('os.listdir(OUT)', r'os\.listdir'),
  'frames': ('sys._current_frames()', r'sys\._current_frames'),
  'objects': ('import gc; gc.get_objects()', r'gc\.get_objects'),
  **{
    f'extension_{where}': (
      'from importlib import machinery\n'
      'class Falsy(str):\n'
      '  def __bool__(self): return False\n'
      'open("own.so", "w").close()\n'
      f'path = {path}\n'
      'machinery.ExtensionFileLoader("own", path).create_module(\n'
      '  machinery.ModuleSpec("own", None, origin=path))',
      'import .own',
    )
    for where, path in {
      'here': '"own.so"',
      'falsy': 'Falsy("own.so")',
      'by_proc': '"/proc/self/cwd/own.so"',
      'by_detour': 'os.getcwd() + "/../" + os.getcwd().split("/")[-1] + "/own"',
      'in_memory': 'f"/proc/self/fd/{os.dup(0)}"',
      'elsewhere': 'OUT + "/file"',
    }.items()
  },
  'extension_of_another_name': (
    'import _imp, types\n'
    'class Name(str):\n'
    '  def __eq__(self, other): return False\n'
    '  __hash__ = str.__hash__\n'
    '_imp.create_dynamic(types.SimpleNamespace(name=Name("_ctypes"), '
    'origin=os.__file__))',
    'import ._ctypes',
  ),
  'equal': (
    'class Path(str):\n'
    '  def __eq__(self, other): return True\n'
    'open(Path(OUT + "/file"))',
    'open .*/file',
  ),
  'a_number': (
    'class Path(str):\n  __class__ = int\nopen(Path(OUT + "/file"))',
    'open .*/file',
  ),
  'replaced_null': (
    'os.devnull = OUT + "/file"; open(OUT + "/file")',
    'open .*/file',
  ),
  'lying': (
    'class Path(str):\n'
    '  def split(self, _): return os.getcwd().split("/")\n'
    'open(Path(OUT + "/new"), "w")',
    'open .*/new',
  ),
  'replaced_read': (
    'def stat(*args): raise OSError\nos.stat = stat\nopen(OUT + "/file")',
    'open .*/file',
  ),
  'replaced': (
    'import builtins, posixpath\n'
    'for name in "all", "isinstance", "map", "str":\n'
    '  setattr(builtins, name, lambda *_: True)\n'
    'os.stat = os.fspath = os.fsdecode = posixpath.normpath = None\n'
    'open(OUT + "/new", "w")',
    'open .*/new',
  ),
}
# Those that Linux does not refuse, or that mean no harm.
NOT_OF_LINUX = ('limits', 'library', 'null', 'ctypes')

FAILING = {
  'exit': ('sys.exit(0)', 'ended before'),
  'exit_hard': ('os._exit(0)', 'ended before'),
  'system_exit': ('raise SystemExit', 'ended before'),
  'thread_exit': ('import _thread; _thread.exit()', 'ended before'),
  'quiet': ('raise KeyboardInterrupt', 'KeyboardInterrupt'),
  'closed': ('os.closerange(0, 60); os._exit(0)', 'ended before'),
  'closed_goes_on': ('os.closerange(0, 60)\nwhile 1: pass', 'ended before'),
  'words': (
    'for f in range(9):\n'
    '  try: os.write(f, b"passed")\n'
    '  except OSError: pass\n'
    'os._exit(0)',
    'passed',
  ),
  'flood': (
    'for f in range(9):\n'
    '  try:\n'
    '    for _ in range(99): os.write(f, b"passed" * 9999)\n'
    '  except OSError: pass\n'
    'os._exit(0)',
    'passed',
  ),
  'frames': (
    'try: 1 / 0\n'
    'except Exception as error: frame = error.__traceback__.tb_frame\n'
    'assert frame.f_back is None, "a frame"\n'
    'sys.exit()',
    'ended before',
  ),
  'hooked': (
    'def hook(args):\n'
    '  getattr(args.object, "__self__", []).append(None)\n'
    'sys.unraisablehook = hook\n'
    'raise ValueError',
    'ended before',
  ),
  'text': (
    'class Error(Exception):\n'
    '  def __str__(self):\n'
    '    frame = sys._getframe()\n'
    '    while frame:\n'
    '      for value in frame.f_locals.values():\n'
    '        if isinstance(value, bytes) and len(value) == 32:\n'
    '          for f in range(9):\n'
    '            try: os.write(f, value)\n'
    '            except OSError: pass\n'
    '      frame = frame.f_back\n'
    '    os._exit(0)\n'
    'raise Error',
    '',
  ),
  'interrupt': (
    'import _thread\n'
    'def hook(kind, error, trace):\n'
    '  while trace:\n'
    '    for value in trace.tb_frame.f_locals.values():\n'
    '      if isinstance(value, bytes) and len(value) == 32:\n'
    '        for f in range(9):\n'
    '          try: os.write(f, value)\n'
    '          except OSError: pass\n'
    '    trace = trace.tb_next\n'
    '  os._exit(0)\n'
    'sys.excepthook = hook\n'
    '_thread.interrupt_main()\n'
    'sys.exit()',
    'ended before',
  ),
  'again': (
    'for file in sys.stdin, sys.stdin.buffer, sys.stdin.buffer.raw:\n'
    '  for read in file.read, file.seek, file.read:\n'
    '    try: text = read(*[0] * (read == file.seek))\n'
    '    except OSError: continue\n'
    '    text = text.encode() if isinstance(text, str) else text\n'
    '    for f in range(9):\n'
    '      try: os.write(f, text[:32])\n'
    '      except (OSError, TypeError): pass\n'
    'os._exit(0)',
    'ended before',
  ),
  'readline': (
    'import readline; readline.write_history_file(OUT + "/new")',
    '^ModuleNotFoundError',
  ),
  'assertion': ('assert 1 == 2, "not so"', '^AssertionError: not so$'),
  'bare': ('assert False', '^AssertionError$'),
  'lines': ('raise ValueError("a\\n\\x1b[2Jb" * 999)', r'^ValueError: a \?'),
  'syntax': ('def', '^SyntaxError: .*line'),
  'null': ('x = "\0"', 'ValueError|SyntaxError'),
  'surrogate': ('x = "\ud800"', 'UnicodeEncodeError'),
  'recursion': ('def f(): f()\nf()', '^RecursionError'),
  'crash': (
    'sys.setrecursionlimit(10**9)\n'
    'class A:\n'
    '  def __repr__(self): return repr(self)\n'
    'repr(A())\n',
    'killed by SIGSEGV|RecursionError|out of memory',
  ),
  'list': ('[0] * (1 << 40)', '^out of memory$'),
  'eater': ('x = []\nwhile 1: x.append([0] * 99999)', '^out of memory$'),
  'small': ('x = []\nwhile 1: x.append([x])', '^out of memory$'),
  'stack': (
    'sys.setrecursionlimit(10**9)\ndef f(): f()\nf()',
    'out of memory|killed by|SystemError',
  ),
  'file': (
    'with open("big", "wb") as f:\n'
    '  for _ in range(99): f.write(bytes(1 << 20))',
    r'^OSError: \[Errno 27\]',
  ),
  'descriptors': (
    'x = [open(f"{i}", "w") for i in range(999)]',
    r'^OSError: \[Errno 24\]',
  ),
  'input': ('input()', '^EOFError'),
}

ENDLESS = {
  'loop': 'while True: pass',
  'sleep': 'time.sleep(99)',
  'deaf': (
    'import threading\n'
    'for _ in range(3): threading.Thread(target=time.sleep, args=(99,)).start()'
    '\nwhile True:\n'
    '  try: time.sleep(1)\n'
    '  except BaseException: pass'
  ),
  'number': '9 ** 9 ** 9',
  'catching': 'while True:\n  try: 1 / 0\n  except BaseException: pass',
  'printing': 'while True: print("x" * 9999); sys.stderr.write("x" * 9999)',
}

FINE = {
  'empty': '',
  'main': (
    'assert __name__ == "__main__"\nassert sys.modules[__name__].os is os'
  ),
  'names': 'main = token = ends = end = reply = exec = print = None',
  'threads': (
    'from concurrent.futures import ThreadPoolExecutor\n'
    'import threading\n'
    'all_there = threading.Barrier(64)\n'
    'with ThreadPoolExecutor(64) as pool:\n'
    '  assert sum(pool.map(lambda _: all_there.wait(), range(64))) == 2016'
  ),
  'numbers': 'sys.set_int_max_str_digits(0); len(str(7 ** 20000))',
  'depth': (
    'sys.setrecursionlimit(20000)\n'
    'def f(n): return n and 1 + f(n - 1)\n'
    'assert f(9999) == 9999'
  ),
  'modules': (
    'import bisect, cmath, collections, contextlib, copy, dataclasses, datetime'
    ', decimal, enum, fractions, functools, hashlib, heapq, io, itertools, json'
    ', logging, math, numbers, operator, random, re, statistics, string, struct'
    ', asyncio, textwrap, threading, time, traceback, typing, uuid, zlib\n'
    'hashlib.md5(b"x").hexdigest(), hashlib.sha256(b"x"), random.random()\n'
    'datetime.datetime.now(), uuid.uuid4()\n'
    '@dataclasses.dataclass\n'
    'class A:\n'
    '  x: "typing.List[int]" = None\n'
    'collections.namedtuple("B", "x y")(1, copy.deepcopy(A()))'
  ),
  'doctest': (
    'def f():\n  """\n  >>> f()\n  1\n  """\n  return 1\n'
    'import doctest; assert doctest.testmod().attempted == 1'
  ),
  'files': (
    'import tempfile\n'
    'with open("x", "w") as f: f.write("é")\n'
    'assert pathlib.Path("x").read_text() == "é"\n'
    'os.rename("x", "y"); assert os.listdir() == ["y"]; os.remove("y")\n'
    'tempfile.TemporaryFile().close(); open(os.devnull, "w").close()'
  ),
  'missing': (
    'try: open("/no/such/file")\nexcept FileNotFoundError: print("so it is")'
  ),
  'output': 'print("x\\u00e9" * 9999999); print("x", file=sys.stderr)',
  'crlf': 'x = 1\r\nif x:\r\n  y = "é"\r\n',
  'unraisable': 'class A:\n  def __del__(self): 1 / 0\nA()',
  'caught': 'try: sys.exit()\nexcept SystemExit: pass',
}
