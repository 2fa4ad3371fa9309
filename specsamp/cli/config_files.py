"""Config files: where they lie, what their keys are for, what is wrong."""

import ast
import io
import pathlib
import re
import runpy
import tokenize
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import ml_collections
from absl import flags

from specsamp.errors import UserError, describe_unknown
from specsamp.utils import home


class Given(NamedTuple):
  """What --config names.

  Attributes:
    path: of the file.
    arg: for its `get_config`; None if there is none.
  """

  path: str
  arg: str | None

  @classmethod
  def parse(cls, text: str) -> 'Given':
    path, colon, arg = text.partition(':')
    return cls(path, arg if colon else None)

  def __str__(self) -> str:
    return (
      self.flag().removeprefix('--config=').removeprefix(f'{home.folder()}/')
    )

  def flag(self) -> str:
    """On a command line."""
    arg = '' if self.arg is None else f':{self.arg}'
    return f'--config={self.path}{arg}'

  def found(self, launcher: str) -> 'Given':
    """The same, with the path of a file that is there.

    What the working directory does not have is looked for beside the launchers.

    Args:
      launcher: whose config it must be, or whose are named if there is none.

    Raises:
      UserError: there is none, or it is another launcher's.
    """
    path = pathlib.Path(self.path)
    if not path.is_file() and (home.folder() / path).is_file():
      path = home.folder() / path
    if not path.is_file():
      others = ', or a file of your own'
      raise UserError(
        describe_unknown('--config', self.path, of(launcher), others)
      )
    found = self._replace(path=str(path))
    runs = _launchers(path)
    if runs and launcher not in runs:
      raise UserError(
        f'--config={found}: got a config of {", ".join(runs)}, expected one of '
        f'{launcher}: {", ".join(of(launcher))}'
      )
    return found

  def load(self) -> ml_collections.ConfigDict:
    """The config as the file has it.

    Raises:
      UserError: whatever its author's mistake, or an argument's, raises.
    """
    args = () if self.arg is None else (self.arg,)
    try:
      config = runpy.run_path(self.path)['get_config'](*args)
    except KeyError as error:
      raise UserError(f'--config={self}: has no {error}') from None
    except ValueError as error:
      raise UserError(f'--config={self}: {error}') from None
    except Exception as error:
      raise UserError(
        f'--config={self}: {type(error).__name__}: {error}'
      ) from None
    if not isinstance(config, ml_collections.ConfigDict):
      kind = type(config).__name__
      raise UserError(
        f'--config={self}: get_config returned a {kind}, expected a ConfigDict'
      )
    return config


def load_paper(name: str, arg: str) -> ml_collections.ConfigDict:
  """The config of a paper's table or figure.

  Args:
    name: of its file below configs/papers, such as `mcsd/table2`.
    arg: of its `get_config`; '' is none.

  Raises:
    UserError: see `Given.found` and `Given.load`.
  """
  path = f'configs/papers/{name}.py'
  return Given(path, arg or None).found('evaluate').load()


def of(launcher: str) -> list[str]:
  """The configs with a command in their docstring that this launcher runs."""
  root = home.folder()
  return [
    path.relative_to(root).as_posix()
    for path in sorted(root.glob('configs/**/*.py'))
    if launcher in _launchers(path)
  ]


def _launchers(path: pathlib.Path) -> list[str]:
  """Those that the commands in a config's docstring give this config to."""
  source = path.read_text(encoding='utf-8', errors='replace')
  _, *commands = source.split('python launch/')
  return sorted(
    {command.split('.py')[0] for command in commands if path.name in command}
  )


def complete(
  argv: Sequence[str], default: str | None, launcher: str
) -> tuple[list[str], Given | None]:
  """The command line with the path of a config that is there.

  Args:
    argv: as it was given.
    default: the config of a command line without one.
    launcher: see `Given.found`.

  Returns:
    The command line; and what it names, None if it names none.

  Raises:
    UserError: there is no such file.
  """
  argv = list(argv)
  ended = argv.index('--') if '--' in argv else len(argv)
  for i, text in enumerate(argv[1:ended], 1):
    match = re.fullmatch(r'--?config(=.*)?', text, re.DOTALL)
    if match:
      apart = match[1] is None  # --config FILE
      if apart and i + 1 == ended:
        return argv, None
      value = argv[i + 1] if apart else match[1][1:]
      given = Given.parse(value).found(launcher)
      rest = argv[i + 1 + apart : ended]
      if any(re.match(r'--?config(=|$)', text) for text in rest):
        raise UserError('--config: got two of them, expected one')
      argv[i : i + 1 + apart] = [given.flag()]
      return argv, given
  if default is None:
    return argv, None
  given = Given.parse(default).found(launcher)
  return [argv[0], given.flag(), *argv[1:]], given


def check_keys(config: ml_collections.ConfigDict, argv: Sequence[str]) -> None:
  """Raises `UserError` for the first --config.KEY that the config has not."""
  for text in argv[1:]:
    match = re.match(r'--?(?:no)?config\.([^=\s]*)', text)
    if match:
      values, names = config, match[1].split('.')
      for i, name in enumerate(names):
        where = '.'.join(['--config', *names[:i]])
        name, *_ = name.split('[')
        if not isinstance(values, ml_collections.ConfigDict):
          raise UserError(f'{where}: has no keys, got {text}')
        if name not in values:
          raise UserError(describe_unknown(f'key of {where}', name, values))
        values = values[name]
      _check_value(text, values)


# As ml_collections reads them.
_KINDS = {
  bool: (flags.BooleanParser(), 'true or false'),
  int: (flags.IntegerParser(), 'an integer'),
  float: (flags.FloatParser(), 'a number'),
}


def _check_value(text: str, default: Any) -> None:
  """Raises `UserError` where --config.KEY=VALUE has no value of its kind."""
  name, equals, value = text.partition('=')
  parser, expected = _KINDS.get(type(default), (None, ''))
  if parser and equals:
    try:
      parser.parse(value)
    except (ValueError, TypeError):
      raise UserError(f'{name}: got {value!r}, expected {expected}') from None


def flat(
  config: ml_collections.ConfigDict, prefix: str = ''
) -> Iterator[tuple[str, Any]]:
  """Each key with its value, those of nested configs as `outer.inner`."""
  for name, value in config.items():
    if isinstance(value, ml_collections.ConfigDict):
      yield from flat(value, f'{prefix}{name}.')
    else:
      yield f'{prefix}{name}', value


def comments(source: str) -> dict[str, str]:
  """What the comments above and behind the keys of a config say.

  Args:
    source: of the file, with `dict(key=value, ..)` calls.

  Returns:
    Key -> text, nested ones as `outer.inner`.
  """
  alone, behind = {}, {}  # by line
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.type == tokenize.COMMENT:
      is_alone = not token.line[: token.start[1]].strip()
      text = token.string.lstrip('# ')
      (alone if is_alone else behind)[token.start[0]] = text
  found = {}

  def read(call: ast.Call, prefix: str) -> None:
    for keyword in call.keywords:
      if keyword.arg is None:
        continue
      first = keyword.lineno
      while first - 1 in alone and keyword.lineno > call.lineno:
        first -= 1
      texts = [alone[line] for line in range(first, keyword.lineno)]
      nested = isinstance(keyword.value, ast.Call)
      # A comment behind a nested call belongs to its last key.
      end = keyword.lineno if nested else keyword.end_lineno
      lines = {keyword.lineno, end}
      texts += [behind[line] for line in sorted(lines) if line in behind]
      found.setdefault(prefix + keyword.arg, ' '.join(texts))
      if nested:
        read(keyword.value, f'{prefix}{keyword.arg}.')

  for node in ast.walk(ast.parse(source)):
    if (
      isinstance(node, ast.Call)
      and isinstance(node.func, ast.Name)
      and node.func.id == 'dict'
      and len(node.keywords) > 5  # a config, not a value in it
    ):
      read(node, '')
  return found
