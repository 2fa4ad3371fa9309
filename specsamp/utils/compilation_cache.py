"""Compiled programs on disk: a second run loads the programs of the first.

The cache is jax's, whose keys cover the program, the compiler and the chip. The
folder holds code that every run of the user executes, so only the user may
write in it.
"""

import contextlib
import os
import pathlib
import sys
import warnings
from collections.abc import Iterator

import jax

MAX_BYTES = 2**30  # of all programs; jax evicts the least recently used ones

# Older versions of jax print a line for each program loaded on a CPU: the
# program was compiled for another machine type.
_QUIET = (0, 10, 2)


def default_folder() -> pathlib.Path:
  """Returns the folder used by default, whose `~` is not expanded.

  Expansion fails in a container whose user has no home.
  """
  caches = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  return pathlib.Path(caches) / 'specsamp' / 'xla'


def enable(folder: str | None = None) -> None:
  """Makes jax keep this process's programs on disk and load kept programs.

  Must be called before anything is compiled. If the folder cannot be made, a
  line on standard error reports it and nothing is kept. jax's variables
  JAX_COMPILATION_CACHE_DIR and JAX_ENABLE_COMPILATION_CACHE take precedence.

  Args:
    folder: is created if missing; '' keeps nothing, whatever the variables say;
      None is `default_folder()`, or nothing before jax 0.10.2.
  """
  if folder is None:
    # The user's folder keeps the bounds of jax's variables.
    if jax.config.jax_compilation_cache_dir or jax.__version_info__ < _QUIET:
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
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
  except (OSError, RuntimeError) as error:  # RuntimeError: no home
    reason = getattr(error, 'strerror', None) or error
    print(
      f'compilation cache {path}: {reason}; every start compiles all programs',
      file=sys.stderr,
    )
    jax.config.update('jax_compilation_cache_dir', None)
    return
  jax.config.update('jax_compilation_cache_dir', str(path))
  jax.config.update('jax_compilation_cache_max_size', MAX_BYTES)
  # Short compilations count too: a prefill may take half a second, and there
  # are many.
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  # A program that cannot be read or kept is compiled without a warning.
  warnings.filterwarnings(
    'ignore', 'Error (reading|writing) persistent compilation cache'
  )


@contextlib.contextmanager
def compilations() -> Iterator[list[float]]:
  """Yields a list that collects the seconds of each program in the block.

  Programs that are compiled count, and so do programs loaded from the cache.
  """
  seconds = []

  def listen(event, duration, **_):
    if event.endswith('backend_compile_duration'):
      seconds.append(duration)

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    yield seconds
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
