"""What --help prints: the launcher, its flags, and its config's keys."""

import ast
import pathlib
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from typing import get_args

from absl import flags

from specsamp import verification
from specsamp.cli import config_files
from specsamp.cli.config_files import Given
from specsamp.drafting.draft import Law
from specsamp.errors import UserError
from specsamp.utils import home, user_modules

# The names that a key takes, by the last part of the key.
_NAMES = {
  'verifier': [*verification.VERIFIERS, user_modules.FORM],
  'law': get_args(Law),
}
ASKED = {'--help', '-help', '-h', '--helpfull', '--helpshort', '-?'}


def text(launcher: str, docstring: str, given: Given | None) -> str:
  """All of it.

  Args:
    launcher: its name.
    docstring: of its file.
    given: the config on the command line.
  """
  width = shutil.get_terminal_size().columns
  if not home.is_checkout():
    own = f'launch/{launcher}.py'
    docstring = docstring.replace(own, f'-m specsamp {launcher}')
  lines = [*docstring.strip().splitlines(), '', 'Flags:']
  for flag in _own_flags():
    lines += _entry(f'--{flag.name}{_default(flag)}', flag.help, width)
  configs = config_files.of(launcher)
  if 'config' in flags.FLAGS and configs:
    lines += ['', 'Configs, whose keys --config=FILE --help shows:']
    for name in configs:
      source = (home.folder() / name).read_text(encoding='utf-8')
      title = ast.get_docstring(ast.parse(source)).splitlines()[0]
      lines += _entry(name, title, width)
    lines += _of_config(given or Given(configs[0], None).found(launcher), width)
  return '\n'.join(lines)


def _own_flags() -> Iterator[flags.Flag]:
  """Those of this package and of its launcher, each once, in their order."""
  libraries = ('absl.', 'jax', 'orbax')
  for module, defined in flags.FLAGS.flags_by_module_dict().items():
    if not module.startswith(libraries):
      # --config.KEY is a flag too, once it was given.
      yield from (flag for flag in defined if '.' not in flag.name)


def _default(flag: flags.Flag) -> str:
  if flag.boolean:
    return f', --no{flag.name}' if flag.default else ''
  if flag.default in (None, '') or flag.name in ('config', 'workdir'):
    return '=..'
  return f'={flag.default}'


def _of_config(given: Given, width: int) -> Iterator[str]:
  """What `--config.KEY=VALUE` may change of this config, in its order."""
  try:
    source = pathlib.Path(given.path).read_text(encoding='utf-8')
    about = ast.get_docstring(ast.parse(source)) or ''
    yield from ['', f'{given}', '', *about.splitlines(), '']
    config = given.load()
  except (UserError, OSError, SyntaxError, UnicodeDecodeError) as error:
    yield str(error)
    return
  yield 'Its keys and values:'
  values = dict(config_files.flat(config))
  comments = config_files.comments(source)
  for name in _in_order(values, comments):
    begin = f'--config.{name}'
    if name in values:
      value = textwrap.shorten(repr(values[name]), 60, placeholder=' ..')
      begin = f'{begin}={value}'
    names = ', '.join(_NAMES.get(name.rpartition('.')[2], ()))
    about = ': '.join(filter(None, (comments.get(name), names)))
    yield from _entry(begin, about, width)


def _in_order(values: Iterable[str], comments: Iterable[str]) -> list[str]:
  """The names of keys as the file has them, those of a preset behind theirs."""
  rest = [name for name in values if name not in comments]
  names = []
  for name in comments:
    below = [other for other in rest if other.startswith(f'{name}.')]
    nested = any(other.startswith(f'{name}.') for other in values)
    if name in values or nested:
      names += [name, *below]
  return [*names, *(name for name in rest if name not in names)]


def _entry(name: str, about: str, width: int) -> list[str]:
  """A name, and what it is about, beside it or below it if it is long."""
  indent, column = '  ', 30
  if not about:
    return [f'{indent}{name}']
  first = f'{indent}{name}'.ljust(column - 1) + ' '
  wrap = lambda start: textwrap.wrap(
    about,
    max(width - 1, column + 30),
    initial_indent=start,
    subsequent_indent=' ' * column,
  )
  if len(first) > column:
    return [first.rstrip(), *wrap(' ' * column)]
  return wrap(first)
