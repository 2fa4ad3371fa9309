"""What every launcher shares: a user's mistake is one line and exit code 2."""

import json
import os
import pathlib
import sys
import time
from collections.abc import Callable

from absl import app, flags, logging
from jax.sharding import Mesh
from ml_collections import config_flags

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
      first one is heard on standard output.
  """

  def guarded(argv):
    if len(argv) > 1:
      _fail(f'unexpected arguments {argv[1:]}')
    # Bars and reports are for the user; the libraries' own chatter is not.
    logging.set_verbosity(logging.WARNING)
    try:
      if distributes:
        distributed.initialize()
        if not distributed.is_first():
          sys.stdout = open(os.devnull, 'w')  # noqa: SIM115
      main()
    except UserError as error:
      _fail(str(error))
    except KeyboardInterrupt:
      _fail('interrupted', code=130)

  app.run(guarded, flags_parser=_parse)


def _parse(argv):
  # Loading a config file runs it and applies --config.key=value on the way:
  # the config's own complaints surface here, as all kinds of exceptions.
  try:
    rest = flags.FLAGS(argv)
    if 'config' in flags.FLAGS:
      # A config file that does not exist complains when it is first used.
      flags.FLAGS.config.to_dict()
    return rest
  except flags.Error as error:
    _fail(str(error))
  except (ValueError, TypeError, AttributeError, KeyError, OSError) as error:
    _fail(f'--config: {error}')


def _fail(message: str, code: int = 2):
  line = ' '.join(message.split())
  print(f'{pathlib.Path(sys.argv[0]).name}: {line}', file=sys.stderr)
  sys.stderr.flush()
  raise SystemExit(code)


def make_workdir(path: str, config, resumes: bool = True) -> pathlib.Path:
  """Creates the folder and writes the config into it as config.json.

  Of several processes, which all must see the folder, the first one does.

  Args:
    path: folder.
    config: a ConfigDict.
    resumes: the run goes on in a folder in which the same config began.

  Raises:
    UserError: the folder can't be written, or holds what must not be
      overwritten.
  """
  if path.endswith(_TIME):
    now = time.localtime(distributed.of_first(int(time.time())))
    path = path.removesuffix(_TIME) + time.strftime('-%Y%m%d-%H%M%S', now)
  folder = pathlib.Path(path)
  file = folder / 'config.json'
  text = json.dumps(config.to_dict(), indent=2, sort_keys=True) + '\n'
  try:
    folder.mkdir(parents=True, exist_ok=True)
    # A config alone is a run that never began: a mistake in it stopped it.
    began = any(other.name != file.name for other in folder.iterdir())
    same = file.exists() and file.read_text() == text
    if began and not (same and resumes):
      kind = 'this run' if same else 'something else'
      raise UserError(
        f'workdir {folder} holds {kind} already; name another folder'
      )
    distributed.wait('workdir looked at')
  except OSError as error:
    raise UserError(f'workdir {folder}: {error.strerror}') from None

  def write():
    partial = folder / f'config.json.{os.getpid()}'
    partial.write_text(text)
    partial.rename(file)

  distributed.first_does(write, f'workdir {folder}')
  return folder
