"""A launcher's run: a user's mistake is one line and exit code 2."""

import logging as stdlib_logging
import os
import pathlib
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from typing import TextIO

from absl import app, flags, logging

from specsamp.cli import config_files, help, workdir
from specsamp.cli import flags as own_flags
from specsamp.errors import UserError
from specsamp.utils import compilation_cache, distributed, home


def run(
  main: Callable[..., None],
  distributes: bool = True,
  takes_names: bool = False,
) -> None:
  """Parses the flags and calls `main`; never returns.

  Args:
    main: the launcher's own.
    distributes: whether it may be one of several processes, of which only the
      first one prints to standard output.
    takes_names: whether `main` takes what stands on the command line beside
      the flags.
  """
  cache = flags.DEFINE_string(
    'compilation_cache',
    None,
    'Folder that keeps compiled programs for other runs, at most 1 GiB; empty: '
    f'none are kept. If left out, {compilation_cache.default_folder()}.',
  )

  def guarded(argv):
    if len(argv) > 1 and not takes_names:
      _fail(f'unexpected arguments {argv[1:]}')
    # Bars and reports are for the user; the libraries' own chatter is not.
    logging.set_verbosity(logging.WARNING)
    logging.get_absl_logger().addFilter(_is_own_or_error)
    compilation_cache.enable(cache.value)
    try:
      if distributes:
        distributed.initialize()
        if not distributed.is_first():
          sys.stdout = open(os.devnull, 'w', encoding='utf-8')  # noqa: SIM115
      main(*argv[1:])
      sys.stdout.flush()  # where what it cannot write is still told
    except UserError as error:
      workdir.take_back()  # while the folder is still this run's
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
      workdir.release()

  for name in ('stdout', 'stderr'):
    stream = getattr(sys, name)
    if stream is None:  # it was closed
      null = open(os.devnull, 'w', encoding='utf-8')  # noqa: SIM115
      setattr(sys, name, null)
    elif hasattr(stream, 'reconfigure'):  # a terminal may know ASCII alone
      stream.reconfigure(errors='backslashreplace')
  app.run(guarded, flags_parser=_parse)


def command(launcher: str = '', given: Iterable[str] = ()) -> str:
  """A command as reports have it: without folders of who calls it.

  Args:
    launcher: its name; '' is what was called, with its arguments.
    given: arguments of that launcher.
  """
  if not launcher:
    launcher, given = pathlib.Path(sys.argv[0]).stem, sys.argv[1:]
  words = ['python', '-m', 'specsamp', launcher]
  if home.is_checkout():
    words[1:] = [f'launch/{launcher}.py']
  given = iter(given)
  for text in given:
    name, equals, value = text.partition('=')
    if re.fullmatch('--?(workdir|compilation_cache)', name):
      if not equals:
        next(given, None)
    elif name == '--config' and equals:
      words.append(f'{name}={config_files.Given.parse(value)}')
    else:
      words.append(text)
  return shlex.join(words)


def _is_own_or_error(record) -> bool:
  package = f'{pathlib.Path(__file__).parents[1]}{os.sep}'
  return record.levelno >= stdlib_logging.ERROR or record.pathname.startswith(
    package
  )


def _parse(argv):
  # Loading a config file runs it and applies --config.key=value on the way: it
  # raises whatever its author's mistake raises.
  main = sys.modules['__main__']
  launcher = pathlib.Path(getattr(main, '__file__', argv[0])).stem
  given = None
  try:
    if 'config' in flags.FLAGS:
      default = own_flags.default_config()
      argv, given = config_files.complete(argv, default, launcher)
      sys.argv[:] = argv  # where --config.key is looked for
    if help.ASKED & set(argv[1:]):
      _print(help.text(launcher, main.__doc__, given))
      raise SystemExit
    if given:
      config_files.check_keys(given.load(), argv)
    elif 'config' in flags.FLAGS:
      names = ', '.join(config_files.of(launcher))
      raise UserError(f'--config: got none, expected one of {names}')
    rest = flags.FLAGS(argv)
    own_flags.check_required()
    return rest
  except (flags.Error, UserError) as error:
    _fail(str(error))
  except (ValueError, TypeError, AttributeError, KeyError, OSError) as error:
    _fail(f'--config={given}: {error}')


def _fail(message: str, code: int = 2):
  line = ' '.join(message.split())
  _print(f'{pathlib.Path(sys.argv[0]).name}: {line}', sys.stderr)
  raise SystemExit(code)


def _print(text: str, file: TextIO | None = None) -> None:
  try:
    print(text, file=file)
    sys.stderr.flush()
    sys.stdout.flush()
  except OSError:  # nobody reads it; and nobody reads what else is there
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
      os.dup2(null, stream.fileno())
