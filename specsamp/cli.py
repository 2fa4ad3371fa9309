"""What every launcher shares: a user's mistake is one line and exit code 2."""

import contextlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable

from absl import app, flags, logging
from jax.sharding import Mesh
from ml_collections import config_flags

from specsamp import compilation_cache, files
from specsamp.data import tokenizers
from specsamp.errors import UserError
from specsamp.sharding import distributed
from specsamp.sharding import mesh as meshes

_TIME = '-{time}'  # in a folder's name, until the run begins


def define_flags(workdir_prefix: str | None = None) -> None:
  """The two flags of every launcher, --config and --workdir.

  Args:
    workdir_prefix: a launcher with nothing to resume writes into a new folder
      that begins so if none is named; without a prefix one must be named.
  """
  config_flags.DEFINE_config_file(
    'config', None, 'Experiment: configs/NAME.py[:arg].'
  )
  default = workdir_prefix and f'{workdir_prefix}{_TIME}'
  flags.DEFINE_string(
    'workdir', default, 'Folder for everything that is written.'
  )
  flags.mark_flag_as_required('config')
  if default is None:
    flags.mark_flag_as_required('workdir')


def define_mesh(axis: str) -> Callable[[], Mesh | None]:
  """The flag --mesh of a launcher that computes.

  Args:
    axis: of `mesh.parse`, for a flag that is left out.

  Returns:
    A function that makes the mesh; None on a lone device.
  """
  flag = flags.DEFINE_string(
    'mesh',
    '',
    'Shards of the batch x shards of the models, such as 2x4. If left out, one '
    f'device, or of several processes all on the {axis} axis.',
  )
  return lambda: meshes.parse(flag.value, axis)


def run(main: Callable[[], None], distributes: bool = True) -> None:
  """Parses the flags and calls `main`; never returns.

  Args:
    main: the launcher's own.
    distributes: whether it may be one of several processes, of which only the
      first one prints to standard output.
  """
  cache = flags.DEFINE_string(
    'compilation_cache',
    None,
    'Folder that keeps compiled programs for other runs, at most 1 GiB; empty: '
    f'none are kept. If left out, {compilation_cache.default_folder()}.',
  )

  def guarded(argv):
    if len(argv) > 1:
      _fail(f'unexpected arguments {argv[1:]}')
    # Bars and reports are for the user; the libraries' own chatter is not.
    logging.set_verbosity(logging.ERROR)
    compilation_cache.enable(cache.value)
    try:
      if distributes:
        distributed.initialize()
        if not distributed.is_first():
          sys.stdout = open(os.devnull, 'w', encoding='utf-8')  # noqa: SIM115
      main()
      sys.stdout.flush()  # where what it cannot write is still told
    except UserError as error:
      _begun.close()  # while the folder is still this run's
      _fail(str(error))
    except FloatingPointError as error:  # of weights, or of a training run
      _fail(str(error))
    except OSError as error:
      if not error.errno:
        raise
      # A folder for a file, a full device, a pipe that was closed.
      what = error.filename or 'output'
      _fail(f'{what}: {os.strerror(error.errno)}')
    except KeyboardInterrupt:
      _fail('interrupted', code=130)
    finally:
      _running.close()

  for name in ('stdout', 'stderr'):
    stream = getattr(sys, name)
    if stream is None:  # it was closed
      null = open(os.devnull, 'w', encoding='utf-8')  # noqa: SIM115
      setattr(sys, name, null)
    elif hasattr(stream, 'reconfigure'):  # a terminal may know ASCII alone
      stream.reconfigure(errors='backslashreplace')
  app.run(guarded, flags_parser=_parse)


def _parse(argv):
  # Loading a config file runs it and applies --config.key=value on the way: it
  # raises whatever its author's mistake raises.
  try:
    rest = flags.FLAGS(argv)
    if 'config' in flags.FLAGS:
      config = flags.FLAGS.config
      if isinstance(config, dict):
        _fail('--config: get_config returned a dict, expected a ConfigDict')
      # A config file that does not exist complains when it is first used.
      config.to_dict()
    return rest
  except flags.Error as error:
    _fail(str(error))
  except (ValueError, TypeError, AttributeError, KeyError, OSError) as error:
    _fail(f'--config: {error}')
  except Exception as error:
    _fail(f'--config: {type(error).__name__}: {error}')


def _fail(message: str, code: int = 2):
  line = ' '.join(message.split())
  try:
    print(f'{pathlib.Path(sys.argv[0]).name}: {line}', file=sys.stderr)
    sys.stderr.flush()
    sys.stdout.flush()
  except OSError:  # nobody reads it; and nobody reads what else is there
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
      os.dup2(null, stream.fileno())
  raise SystemExit(code)


# What a run holds until it ends, and what it takes back if it never began.
_running = contextlib.ExitStack()
_begun = contextlib.ExitStack()


def make_workdir(path: str, config, resumes: bool = True) -> pathlib.Path:
  """Creates the folder and writes the config into it as config.json.

  The folder is this run's until the process ends: others are refused. Of
  several processes, which all must see the folder, the first one makes it. If
  the launcher ends with a `UserError` before anything else is written, nothing
  is left of it.

  Args:
    path: folder.
    config: a ConfigDict.
    resumes: the run goes on in a folder in which the same config began.

  Raises:
    UserError: the folder can't be written, is another run's, or holds what must
      not be overwritten.
  """
  if not path.strip():
    raise UserError(f'workdir: got {path!r}, expected a folder')
  folder = pathlib.Path(path)
  if path.endswith(_TIME):
    folder = _new_folder(path.removesuffix(_TIME))
  file = folder / 'config.json'
  text = json.dumps(config.to_dict(), indent=2, sort_keys=True) + '\n'
  try:
    _look(folder, text, resumes)  # before anything is written, the lock too
    _running.enter_context(files.lock(folder))
    is_new = _look(folder, text, resumes)
    distributed.wait('workdir looked at')
  except OSError as error:
    raise UserError(f'workdir {folder}: {error.strerror}') from None
  if is_new:
    _begun.callback(_take_back, folder)
  distributed.first_does(lambda: files.replace(file, text), f'workdir {folder}')
  return folder


def _new_folder(prefix: str) -> pathlib.Path:
  """A name with the time in it that no other run has."""
  now = time.localtime(distributed.of_first(int(time.time())))
  name = prefix + time.strftime('-%Y%m%d-%H%M%S', now)
  count = 0
  if distributed.is_first():
    while pathlib.Path(f'{name}{-count or ""}').exists():
      count += 1
  return pathlib.Path(f'{name}{-distributed.of_first(count) or ""}')


def _look(folder: pathlib.Path, text: str, resumes: bool) -> bool:
  """Whether a run has yet to begin there, with this config.

  Raises:
    UserError: what the folder holds must not be overwritten.
    OSError: it cannot be read.
  """
  file = folder / 'config.json'
  if file.is_dir():
    raise UserError(f'workdir {folder}: config.json is a folder')
  # A config alone is a run that never began: a mistake in it stopped it.
  if not folder.exists() or not any(
    other.name not in (file.name, files.LOCK)
    and not files.is_left_over(other.name)
    for other in folder.iterdir()
  ):
    return True
  same = file.exists() and file.read_bytes() == text.encode()
  if same and resumes:
    return False
  kind = 'this run' if same else 'something else'
  raise UserError(f'workdir {folder} holds {kind} already; name another folder')


def _take_back(folder: pathlib.Path) -> None:
  """Removes what a run has written that has not begun."""
  if not distributed.is_first():  # the first may have removed the folder too
    return
  own = {'config.json', tokenizers.FILE}
  there = {path.name for path in folder.iterdir()}
  if there <= own | {files.LOCK}:
    for name in own:
      (folder / name).unlink(missing_ok=True)
