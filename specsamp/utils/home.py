"""Locates the folders `launch` and `configs`, in a checkout and in a wheel."""

import pathlib

_PACKAGE = pathlib.Path(__file__).parents[1]


def folder() -> pathlib.Path:
  """Returns the checkout, or the package itself if a wheel installed it."""
  return _PACKAGE.parent if is_checkout() else _PACKAGE


def is_checkout() -> bool:
  """Returns True if launchers run as `python launch/NAME.py`."""
  return not (_PACKAGE / 'launch').is_dir()


def launchers() -> dict[str, pathlib.Path]:
  """Returns name -> path of every launcher."""
  paths = (folder() / 'launch').rglob('*.py')
  return {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}
