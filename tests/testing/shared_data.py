"""Files that are too large or not ours to keep: beside the repository."""

import pathlib

import pytest

_ROOT = pathlib.Path(__file__).parents[3] / 'shared' / 'data'


def find(name: str) -> pathlib.Path:
  """A file of ../shared/data; a test that calls this is skipped without it."""
  path = _ROOT / name
  if not path.is_file():
    pytest.skip(f'no ../shared/data/{name} beside the repository')
  return path
