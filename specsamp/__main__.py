"""The command `specsamp`: runs a launcher from any folder."""

import ast
import runpy
import sys
from importlib import metadata

from specsamp.errors import describe_unknown
from specsamp.utils import home


def main() -> None:
  """Runs the launcher named by the first argument with the other arguments."""
  launchers = home.launchers()
  name, *rest = sys.argv[1:] or ['--help']
  if name == '--version':
    print(f'specsamp {metadata.version("specsamp")}')
    return
  if name in ('--help', '-h', 'help'):
    print('specsamp NAME --FLAG=.., where NAME is one of\n')
    for name, path in launchers.items():
      docstring = ast.get_docstring(ast.parse(path.read_text(encoding='utf-8')))
      print(f'  {name:16}{docstring.splitlines()[0]}')
    print('\nspecsamp NAME --help prints its flags and configs.')
  elif name in launchers:
    sys.argv = [name, *rest]  # run_path replaces the first by the path
    runpy.run_path(str(launchers[name]), run_name='__main__')
  else:
    print(
      f'specsamp: {describe_unknown("launcher", name, launchers)}',
      file=sys.stderr,
    )
    raise SystemExit(2)


if __name__ == '__main__':
  main()
