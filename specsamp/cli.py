"""Command lines of the launchers: flags, configs, help, workdirs and errors.

A launcher defines its flags and passes its `main` to `run`.
"""

import ast
import contextlib
import functools
import json
import logging as stdlib_logging
import os
import pathlib
import re
import runpy
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO

import ml_collections
from absl import app, flags, logging
from jax.sharding import Mesh
from ml_collections import config_flags

from specsamp.data import tokenizers
from specsamp.errors import UserError, describe_unknown
from specsamp.sharding import mesh as meshes
from specsamp.utils import (
  compilation_cache,
  distributed,
  files,
  home,
  locks,
  schema,
)

_HELP = {'--help', '-help', '-h', '--helpfull', '--helpshort', '-?'}
_TIME = '-{time}'  # replaced by the time when the folder is made

# Locks that this process holds until it ends.
_locks = contextlib.ExitStack()
# Removes what this process wrote, in case its run does not begin.
_undo = contextlib.ExitStack()


def run(
  main: Callable[..., None],
  config_schema: type | None = None,
  default_config: str | None = None,
  distributes: bool = True,
  takes_names: bool = False,
) -> None:
  """Parses the command line and calls `main`; never returns.

  A `UserError` ends the process with one line on standard error and exit
  code 2.

  Args:
    main: called with the config if there is a schema, else with the names.
    config_schema: a dataclass whose fields are the keys of the launcher's
      configs; None for a launcher without a config.
    default_config: config of a command line without --config. None makes the
      flag mandatory; '' is the defaults of the schema.
    distributes: True if the launcher may run as several processes; then only
      the first one prints.
    takes_names: True if the command line may have words that are not flags.
  """
  cache = flags.DEFINE_string(
    'compilation_cache',
    None,
    'Folder that keeps compiled programs for later runs, at most 1 GiB; empty '
    f'keeps none. If left out, {compilation_cache.default_folder()}.',
  )

  def guarded(argv):
    names = argv[1:]
    if names and not takes_names:
      _fail(f'unexpected arguments {names}')
    # Progress bars and reports are for the user, the log of libraries is not.
    logging.set_verbosity(logging.WARNING)
    logging.get_absl_logger().addFilter(_is_ours_or_error)
    compilation_cache.enable(cache.value)
    try:
      if distributes:
        distributed.initialize()
        if not distributed.is_first():
          sys.stdout = open(os.devnull, 'w', encoding='utf-8')  # noqa: SIM115
      main(*([flags.FLAGS.config] if config_schema else names))
      sys.stdout.flush()  # an error of this flush is reported, too
    except (UserError, FloatingPointError) as error:
      _undo.close()  # while the lock on the folder is held
      _fail(str(error))
    except OSError as error:
      if not error.errno:
        raise
      # For example a full disk, or a pipe that its reader closed.
      _fail(f'{error.filename or "output"}: {os.strerror(error.errno)}')
    except KeyboardInterrupt:
      _fail('interrupted', code=130)
    finally:
      _locks.close()

  for stream in (sys.stdout, sys.stderr):
    if hasattr(stream, 'reconfigure'):  # a terminal may only know ASCII
      stream.reconfigure(errors='backslashreplace')
  parse = functools.partial(
    _parse, config_schema=config_schema, default_config=default_config
  )
  app.run(guarded, flags_parser=parse)


def command(launcher: str = '', arguments: Iterable[str] = ()) -> str:
  """Returns a launcher's command line for a report, without local folders.

  Args:
    launcher: name of the launcher; '' for the running one, with its arguments.
    arguments: arguments of the launcher.
  """
  if not launcher:
    launcher, arguments = pathlib.Path(sys.argv[0]).stem, sys.argv[1:]
  words = ['python', '-m', 'specsamp', launcher]
  if home.is_checkout():
    words[1:] = [_path(launcher)]
  for word in arguments:
    if not re.match('--?(workdir|compilation_cache)=', word):
      words.append(word.replace(f'{home.folder()}/', ''))
  return shlex.join(words)


def _path(launcher: str) -> str:
  return home.launchers()[launcher].relative_to(home.folder()).as_posix()


def _is_ours_or_error(record: stdlib_logging.LogRecord) -> bool:
  package = str(pathlib.Path(__file__).parent)
  is_error = record.levelno >= stdlib_logging.ERROR
  return is_error or record.pathname.startswith(package)


def _fail(message: str, code: int = 2) -> None:
  line = ' '.join(message.split())
  _print(f'{pathlib.Path(sys.argv[0]).name}: {line}', sys.stderr)
  raise SystemExit(code)


def _print(text: str, file: TextIO | None = None) -> None:
  try:
    print(text, file=file)
    sys.stderr.flush()
    sys.stdout.flush()
  except OSError:  # nobody reads the stream; Python must not flush it again
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
      os.dup2(null, stream.fileno())


# Flags.


def define_workdir(prefix: str | None = None) -> flags.FlagHolder[str]:
  """Defines the flag --workdir, the folder that a run writes into.

  Args:
    prefix: begins the name of a new folder, which is the default; None if the
      folder must be given.
  """
  help = 'Folder for everything that is written.'
  if prefix is None:
    help += ' An interrupted run resumes. Must be given.'
    return flags.DEFINE_string('workdir', None, help, required=True)
  help += f' If left out, {prefix}-TIME.'
  return flags.DEFINE_string('workdir', prefix + _TIME, help)


def define_mesh(axis: str) -> Callable[[], Mesh | None]:
  """Defines the flag --mesh; returns a function that returns the mesh.

  Args:
    axis: axis that has all devices by default, see `mesh.parse`.
  """
  flag = flags.DEFINE_string(
    'mesh',
    '',
    'Shards of the batch x shards of the models, such as 2x4. If left out, one '
    f'device, or with several processes all devices on the {axis} axis.',
  )
  return lambda: meshes.parse(flag.value, axis)


def define_code_execution() -> flags.FlagHolder[bool]:
  """Defines the flag --allow_code_execution."""
  return flags.DEFINE_bool(
    'allow_code_execution',
    False,
    'Run the programs that models write for HumanEval, each in a subprocess '
    'with limits on time, memory and files. They can read your files and use '
    'the network: use a container for a model that you do not trust.',
  )


def _parse(
  argv: list[str], config_schema: type | None, default_config: str | None
) -> list[str]:
  """Parses all flags; returns the words that are not flags."""
  main = sys.modules['__main__']
  launcher = pathlib.Path(getattr(main, '__file__', argv[0])).stem
  name = default_config
  try:
    if config_schema:
      name, argv = _take_config(argv, default_config)
    if _HELP & set(argv):
      lines = _help(launcher, main.__doc__, config_schema, name, default_config)
      _print('\n'.join(lines))
      raise SystemExit
    if config_schema:
      if name is None:
        names = ', '.join(_configs(launcher))
        raise UserError(f'--config: must be given, expected one of {names}')
      config = load_config(name, config_schema, launcher)
      _check_keys(config, argv)
      config_flags.DEFINE_config_dict(
        'config',
        config,
        lock_config=False,  # it is, except dicts that take any key
        accept_new_attributes=True,
        sys_argv=argv,
      )
    return flags.FLAGS(argv)
  except (flags.Error, ValueError, TypeError, LookupError) as error:
    _fail(str(error))


# Configs.


def load_config(
  name: str, config_schema: type, launcher: str
) -> ml_collections.ConfigDict:
  """Returns the config of a file, with the schema's defaults filled in.

  Args:
    name: FILE or FILE:ARGUMENT, in the working directory, the checkout or the
      installed package. '' is the config of the defaults.
    config_schema: a dataclass whose fields are the keys.
    launcher: name of the launcher that the config is for.

  Raises:
    UserError: the file is missing, fails, or is for another launcher.
  """
  if not name:
    return schema.config_dict(config_schema)
  path, colon, argument = name.partition(':')
  file = pathlib.Path(path)
  if not file.is_file():
    file = home.folder() / path
  if not file.is_file():
    names, others = _configs(launcher), ', or your own file'
    raise UserError(describe_unknown('--config', path, names, others))
  try:
    module = runpy.run_path(str(file))
    owner = module.get('LAUNCHER', launcher)
    if owner != launcher:
      raise UserError(
        f'is a config of {owner}, expected one of {launcher}: '
        f'{", ".join(_configs(launcher))}'
      )
    config = module['get_config'](*([argument] if colon else []))
    return schema.config_dict(config_schema, **config.to_dict())
  except Exception as error:  # any mistake in the user's file
    kind = '' if isinstance(error, UserError) else f'{type(error).__name__}: '
    raise UserError(f'--config={name}: {kind}{error}') from None


def _take_config(
  argv: list[str], default: str | None
) -> tuple[str | None, list[str]]:
  """Returns the value of --config, or the default, and all other words."""
  names, others, words = [], [], iter(argv)
  for word in words:
    flag, equals, value = word.partition('=')
    if flag in ('--config', '-config'):
      names.append(value if equals else next(words, ''))
    else:
      others.append(word)
  if len(names) > 1:
    raise UserError('--config: got two of them, expected one')
  if names == ['']:
    raise UserError("--config: got '', expected a file")
  return [*names, default][0], others


def _configs(launcher: str) -> dict[str, str]:
  """Maps each config of a launcher to the first line of its docstring."""
  titles = {}
  for path in sorted(home.folder().glob('configs/**/*.py')):
    source = path.read_text(encoding='utf-8')
    if f"\nLAUNCHER = '{launcher}'\n" in source:
      docstring = ast.get_docstring(ast.parse(source))
      name = path.relative_to(home.folder()).as_posix()
      titles[name] = docstring.splitlines()[0]
  return titles


def _check_keys(config: ml_collections.ConfigDict, argv: list[str]) -> None:
  """Raises `UserError` for the first --config.KEY that the config lacks."""
  for word in argv:
    match = re.match(r'--?(?:no)?config\.([^=\s]*)', word)
    values, prefix = config, '--config'
    for key in match[1].split('.') if match else ():
      key = key.partition('[')[0]
      if not isinstance(values, ml_collections.ConfigDict):
        raise UserError(f'{prefix}: has no keys, got {word}')
      if key not in values and not values.is_locked:
        break  # the dict takes any key
      if key not in values:
        raise UserError(describe_unknown(f'key of {prefix}', key, values))
      values, prefix = values[key], f'{prefix}.{key}'


# Help.


def _help(
  launcher: str,
  docstring: str,
  config_schema: type | None,
  name: str | None,
  default_config: str | None,
) -> Iterator[str]:
  """Yields the lines of --help: docstring, flags, configs and config keys."""
  if not home.is_checkout():
    docstring = docstring.replace(_path(launcher), f'-m specsamp {launcher}')
  yield from [*docstring.strip().splitlines(), '', 'Flags:']
  if config_schema:
    default = f'If left out, {default_config}.' if default_config else ''
    yield from _entry(
      '--config=..',
      'Experiment, FILE or FILE:ARGUMENT; --config.KEY=VALUE changes a value. '
      + default,
    )
  libraries = ('absl.', 'jax', 'orbax')
  for module, module_flags in flags.FLAGS.flags_by_module_dict().items():
    for flag in () if module.startswith(libraries) else module_flags:
      value = f'={flag.default}'
      if flag.boolean:
        value = f', --no{flag.name}' if flag.default else ''
      elif flag.default in (None, '') or flag.name == 'workdir':
        value = '=..'
      yield from _entry(f'--{flag.name}{value}', flag.help)
  if not config_schema:
    return
  titles = _configs(launcher)
  if titles:
    yield from ['', 'Configs, whose keys --config=FILE --help prints:']
    for path, title in titles.items():
      yield from _entry(path, title)
  name = next(iter(titles)) if name is None else name
  try:
    config = load_config(name, config_schema, launcher)
  except UserError as error:
    yield from ['', str(error)]
    return
  yield from ['', f'Keys and values of {name}:' if name else 'Keys:']
  for key, value, text in schema.describe(config_schema, config.to_dict()):
    start = f'--config.{key}'
    if not isinstance(value, dict):
      value = textwrap.shorten(repr(value), 60, placeholder=' ..')
      start = f'{start}={value}'
    yield from _entry(start, text)


def _entry(name: str, text: str) -> list[str]:
  """Returns help lines: a name, and its text at the right or below."""
  column = 30
  width = max(shutil.get_terminal_size().columns - 1, column + 30)
  indent = ' ' * column
  lines = textwrap.wrap(
    text, width, initial_indent=indent, subsequent_indent=indent
  )
  first = f'  {name}'
  if len(first) < column and lines:
    return [first.ljust(column) + lines[0][column:], *lines[1:]]
  return [first, *lines]


# Workdirs.


def make_workdir(
  path: str, config: ml_collections.ConfigDict, resumes: bool = True
) -> pathlib.Path:
  """Creates a run's folder and writes the config into it as config.json.

  The folder belongs to this run until the process ends. All processes of a run
  must see it. If the run raises a `UserError` before it writes anything else,
  nothing remains of the folder.

  Args:
    path: folder.
    config: config of the run.
    resumes: True if a run of the same config continues in its folder.

  Raises:
    UserError: the folder cannot be written, is in use, or holds files that must
      not be overwritten.
  """
  if not path.strip():
    raise UserError(f'workdir: got {path!r}, expected a folder')
  folder = pathlib.Path(path)
  if path.endswith(_TIME):
    now = time.localtime(distributed.of_first(int(time.time())))
    suffix = time.strftime('-%Y%m%d-%H%M%S', now)
    folder = pathlib.Path(path.removesuffix(_TIME) + suffix)
  text = json.dumps(config.to_dict(), indent=2, sort_keys=True) + '\n'
  try:
    is_new = _is_new(folder, text, resumes)
  except OSError as error:
    raise UserError(f'workdir {folder}: {error.strerror}') from None
  _locks.enter_context(locks.lock(folder))
  if is_new:
    _undo.callback(_remove_own, folder)
  file = folder / 'config.json'
  distributed.first_does(lambda: files.replace(file, text), f'workdir {folder}')
  return folder


def _is_new(folder: pathlib.Path, text: str, resumes: bool) -> bool:
  """Returns True if no run has begun in the folder, False to resume one."""
  file = folder / 'config.json'
  # Hidden files are locks and parts of files. A config without other files is
  # of a run that never began.
  if not folder.exists() or not any(
    other.name != file.name and not other.name.startswith('.')
    for other in folder.iterdir()
  ):
    return True
  content = 'something else'
  with contextlib.suppress(OSError, ValueError, AttributeError):
    old, new = files.read_json(file), json.loads(text)
    if old == new and resumes:
      return False
    keys = [key for key in new if old.get(key) != new[key]]
    content = 'this run'
    if keys:
      content = f'a run of another config (other {", ".join(keys[:3])})'
  raise UserError(
    f'workdir {folder} holds {content} already; name another folder'
  )


def _remove_own(folder: pathlib.Path) -> None:
  """Removes the files of a run that has not begun."""
  # Other processes must not look: the first may have removed the folder.
  if not distributed.is_first():
    return
  own = {'config.json', tokenizers.FILE}
  if not {path.name for path in folder.iterdir()} - own - {locks.LOCK}:
    for name in own:
      (folder / name).unlink(missing_ok=True)
