"""Packages import those before them; public names are imported when used."""

import ast
import pathlib
import subprocess
import sys
import types

import pytest

import specsamp

_PACKAGES = (
  'errors', 'utils', 'sharding', 'data', 'models', 'file_order', 'fingerprint',
  'language_model', 'sampling', 'drafting', 'verification', 'decoding',
  'conformance', 'checkpoints', 'zoo', 'evaluation', 'training', 'planning',
  'serving', 'experiments', 'cli', '__main__',
)  # fmt: skip
_ROOT = pathlib.Path(specsamp.__file__).parent


def _imported(path):
  """Yields the names that a file imports, such as `specsamp.x.y`."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, path
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def test_no_package_imports_a_later_one():
  order = {package: i for i, package in enumerate(_PACKAGES)}
  seen = set()
  for path in sorted(_ROOT.rglob('*.py')):
    package = path.relative_to(_ROOT).with_suffix('').parts[0]
    if package == '__init__':  # the public interface
      continue
    seen.add(package)
    for name in _imported(path):
      root, *parts = name.split('.')
      if root == 'specsamp':
        assert order[parts[0]] <= order[package], f'{path} imports {name}'
  assert seen == order.keys()


_WITHOUT_JAX = """
import sys
import specsamp
from specsamp.__main__ import main
sys.argv = ['specsamp', '--help']
main()
assert 'jax' not in sys.modules and 'numpy' not in sys.modules
"""
_PUBLIC = """
import sys
import specsamp
assert set(specsamp.__all__) <= set(dir(specsamp))
assert callable(specsamp.generate) and callable(specsamp.load)
specsamp.zoo.load, specsamp.verification.make, specsamp.data.tokenizers
from specsamp import *
assert (generate, Engine) == (specsamp.generate, specsamp.Engine)
assert zoo is sys.modules['specsamp.zoo']
"""


@pytest.mark.parametrize('program', [_WITHOUT_JAX, _PUBLIC])
def test_public_names_are_imported_when_first_used(program):
  subprocess.run([sys.executable, '-c', program], check=True)


def test_editors_see_the_public_names_that_there_are():
  """Imports under TYPE_CHECKING and the table are two lists of the same."""
  tree = ast.parse((_ROOT / '__init__.py').read_text())
  (block,) = (node for node in tree.body if isinstance(node, ast.If))
  seen = {
    alias.name: node.module for node in block.body for alias in node.names
  }
  modules = [
    name
    for name in seen
    if isinstance(getattr(specsamp, name), types.ModuleType)
  ]
  assert {*seen, 'UserError'} == set(specsamp.__all__)
  assert {
    name: f'specsamp.{module}' for name, module in specsamp._MODULES.items()
  } == {name: seen[name] for name in seen if name not in modules}
  with pytest.raises(AttributeError, match="no attribute 'generat'"):
    specsamp.generat  # noqa: B018
