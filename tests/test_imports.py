"""The rooms of the package, each of which builds on those before it alone."""

import ast
import pathlib

import specsamp

_ROOMS = (
  'errors', 'user_modules', 'flow', 'sharding', 'progress', 'files', 'locks',
  'compilation_cache', 'data', 'models', 'fingerprint', 'language_model',
  'sampling', 'drafting', 'verification', 'decoding', 'conformance',
  'checkpoints', 'zoo', 'training', 'evaluation', 'planning', 'serving', 'jobs',
  'cli', '__main__',
)  # fmt: skip
_ROOT = pathlib.Path(specsamp.__file__).parent


def _imported(path):
  """Names of all that a file imports of the package, `specsamp.x.y`."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, path
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def test_no_room_imports_a_later_one():
  order = {room: i for i, room in enumerate(_ROOMS)}
  seen = set()
  for path in sorted(_ROOT.rglob('*.py')):
    room = path.relative_to(_ROOT).with_suffix('').parts[0]
    if room == '__init__':  # the public interface
      continue
    seen.add(room)
    for name in _imported(path):
      package, *parts = name.split('.')
      if package == 'specsamp':
        assert order[parts[0]] <= order[room], f'{path} imports {name}'
  assert seen == order.keys()


def test_no_function_is_too_long():
  for path in sorted(_ROOT.rglob('*.py')):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        length = node.end_lineno - node.lineno + 1
        assert length <= 80, f'{path}: {node.name} has {length} lines'
