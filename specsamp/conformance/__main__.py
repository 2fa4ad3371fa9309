"""Command `python -m specsamp.conformance KIND FILE.py:FUNCTION`.

Prints the report of `check_decoder` or `check_rule`. The exit code is 0 if no
error was found, 1 if the code is not lossless, and 2 for invalid input.
"""

import argparse
import importlib.util
import pathlib
import sys
from collections.abc import Callable, Sequence

from specsamp.conformance.kit import check_decoder, check_rule
from specsamp.errors import UserError
from specsamp.utils import user_modules


class _Parser(argparse.ArgumentParser):
  """Parser whose errors are one line."""

  def error(self, message):
    raise UserError(message)


def _parser() -> argparse.ArgumentParser:
  parser = _Parser(
    prog='python -m specsamp.conformance',
    description='Checks that a sampler is lossless. See docs/conformance.md.',
  )
  kinds = parser.add_subparsers(dest='kind', required=True, metavar='KIND')
  decoder = kinds.add_parser('decoder', help='a decoding loop')
  decoder.add_argument(
    '--skip', default='', help='scenarios to leave out, such as top-k,batch'
  )
  rule = kinds.add_parser('rule', help='a verification rule')
  rule.add_argument('--parents', help='tree of the draft, such as 0,0,1')
  rule.add_argument('--draws', default='iid', help='iid, distinct or top')
  for kind in (decoder, rule):
    kind.add_argument('function', metavar='FILE.py:FUNCTION')
    kind.add_argument(
      '--samples', type=int, default=10_000, help='number per scenario'
    )
  return parser


def _load(name: str) -> Callable:
  """Returns the function FILE.py:FUNCTION."""
  file, _, attribute = name.rpartition(':')
  path = pathlib.Path(file)
  if not attribute.isidentifier() or path.suffix != '.py':
    raise UserError(f'function: got {name!r}, expected FILE.py:FUNCTION')
  if not path.is_file():
    raise UserError(f'function: no file {file}')
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  sys.path.insert(0, str(path.parent))
  try:
    spec.loader.exec_module(module)
  except (Exception, SystemExit) as error:
    raise UserError(f'{file}: {user_modules.describe(error)}') from error
  function = getattr(module, attribute, None)
  if not callable(function):
    raise UserError(f'{file}: {attribute} is not a function of this file')
  return function


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command and returns its exit code."""
  try:
    flags = _parser().parse_args(argv)
    function = _load(flags.function)
    if flags.kind == 'decoder':
      skip = [name for name in flags.skip.split(',') if name]
      report = check_decoder(function, skip=skip, num_samples=flags.samples)
    else:
      parents = flags.parents
      try:
        parents = parents and [int(parent) for parent in parents.split(',')]
      except ValueError:
        raise UserError(
          f'parents: got {parents!r}, expected numbers such as 0,0,1'
        ) from None
      report = check_rule(
        function,
        parents=parents,
        draws=flags.draws,
        num_samples=flags.samples,
      )
  except UserError as error:
    print(f'specsamp.conformance: {error}', file=sys.stderr)
    return 2
  print(report)
  return 0 if report.is_lossless else 1


if __name__ == '__main__':
  sys.exit(main())
