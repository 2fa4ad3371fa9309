"""Files next to the repository, too large for it or of another licence."""

import pathlib

import pytest

_ROOT = pathlib.Path(__file__).parents[3] / 'shared' / 'data'


def find(name: str) -> pathlib.Path:
  """Returns a file of ../shared/data; skips the calling test without it."""
  path = _ROOT / name
  if not path.is_file():
    pytest.skip(f'no ../shared/data/{name} next to the repository')
  return path
