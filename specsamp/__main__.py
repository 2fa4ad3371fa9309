"""Runs a launcher from any folder: python -m specsamp decode --prompt=.."""

import ast
import runpy
import sys
from importlib import metadata

from specsamp.errors import unknown
from specsamp.utils import home


def main() -> None:
  """Runs the launcher that the first argument names, with the others."""
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
    print('\nspecsamp NAME --help has the flags and configs of each.')
  elif name in launchers:
    sys.argv = [name, *rest]  # the first becomes the path
    runpy.run_path(str(launchers[name]), run_name='__main__')
  else:
    print(f'specsamp: {unknown("launcher", name, launchers)}', file=sys.stderr)
    raise SystemExit(2)


if __name__ == '__main__':
  main()
