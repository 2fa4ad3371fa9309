"""Compiled programs are kept on disk: a second run loads what one compiled.

The cache is jax's own, which knows a program by what it computes, the compiler
and the chip. Its folder holds code that every run of the user executes, so
that nobody else must be able to write in it.
"""

import contextlib
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Iterator

import filelock
import jax

MAX_BYTES = 2**30  # of all programs; those not used for longest go first

# Older ones load what they kept for a CPU too, but write on standard error for
# each program that it was compiled for another one.
_QUIET = (0, 10, 2)

# As jax names what is in the folder.
_LOCK, _PROGRAM, _USED = '.lockfile', '-cache', '-atime'
_LOCK_SECONDS = 10


def default_folder() -> pathlib.Path:
  """Where programs are kept if nothing else is asked for; ~ is not expanded.

  A container's user may have no home.
  """
  caches = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  return pathlib.Path(caches) / 'specsamp' / 'xla'


def enable(folder: str | None = None) -> None:
  """Keeps the programs that this process compiles, and loads those kept.

  To be called before anything is compiled. A folder that cannot be written is
  told on standard error in a line, and nothing is kept. Where jax's own
  variables JAX_COMPILATION_CACHE_DIR or JAX_ENABLE_COMPILATION_CACHE say
  otherwise they decide.

  Args:
    folder: made if it is not there; '' keeps nothing, whatever the variables
      say; None is `default_folder()`, and nothing before jax 0.10.2.
  """
  if folder is None:
    if jax.config.jax_compilation_cache_dir:
      return  # the user's own, as large as jax's variables allow
    if jax.__version_info__ < _QUIET:
      return
    folder = str(default_folder())
  if not folder.strip():
    jax.config.update('jax_compilation_cache_dir', None)
    return
  if not jax.config.jax_enable_compilation_cache:
    return
  path = pathlib.Path(folder)
  try:
    path = path.expanduser().absolute()
    _prepare(path)
  except (OSError, RuntimeError) as error:  # the latter where there is no home
    why = getattr(error, 'strerror', None) or error
    print(
      f'compilation cache {path}: {why}; every start compiles anew',
      file=sys.stderr,
    )
    jax.config.update('jax_compilation_cache_dir', None)
    return
  jax.config.update('jax_compilation_cache_dir', str(path))
  jax.config.update('jax_compilation_cache_max_size', MAX_BYTES)
  # All of them: a prefill may take half a second, and there are many.
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  # A program that cannot be read or kept is compiled, without a word for each.
  warnings.filterwarnings(
    'ignore', 'Error (reading|writing) persistent compilation cache'
  )


def _prepare(path: pathlib.Path) -> None:
  """Makes the folder, and removes what a killed run had half written.

  Of such a program jax has not yet noted when it was used, without which it
  would keep no other one in the folder ever after. In a folder that had no
  bound so far, and so no lock, that is all of them: they are noted as used now.

  Raises:
    OSError: the folder cannot be written, or knows no locks.
  """
  path.mkdir(mode=0o700, parents=True, exist_ok=True)
  had_bound = (path / _LOCK).exists()
  lock = filelock.FileLock(
    path / _LOCK, timeout=_LOCK_SECONDS, fallback_to_soft=False
  )
  with lock:  # jax's: no run is writing
    names = set(os.listdir(path))
    for name in names:
      key = name.removesuffix(_PROGRAM)
      if key == name or key + _USED in names:
        continue
      if had_bound:
        (path / name).unlink()
      else:
        now = time.time_ns().to_bytes(8, 'little')  # as jax writes it
        (path / f'{key}{_USED}').write_bytes(now)


@contextlib.contextmanager
def compilations() -> Iterator[list[float]]:
  """A list that has the seconds of each program from now on, to the end.

  Of those that are compiled, and those that are loaded from the folder.
  """
  seconds = []

  def listen(event, took, **_):
    if event.endswith('backend_compile_duration'):
      seconds.append(took)

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    yield seconds
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
