"""User-defined parts by name: calls, and mistakes reported in one line."""

import sys

import pytest

from specsamp.errors import UserError
from specsamp.utils import user_modules

_FILES = {
  'own_whole.py': """
import json

class Rule:
  pass

class Ruler:
  def __init__(self, size):
    self.size = size

def failing():
  return {}['gone']

number = 3
""",
  'own_empty.py': '',
  'own_broken.py': 'x = 1\ny = 1 / 0\n',
  'own_needing.py': 'import no_such_package\n',
  'own_folder/__init__.py': '',
  'own_folder/inside.py': 'def echo(*values):\n  return values\n',
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """The current folder, with modules that nothing else can import."""
  for name, text in _FILES.items():
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', list(sys.path))
  # The launcher's folder comes first, with a file of the same name.
  launcher = tmp_path / 'launcher'
  launcher.mkdir()
  (launcher / 'own_whole.py').write_text('')
  sys.path.insert(0, str(launcher))
  before = set(sys.modules)
  yield tmp_path
  for name in set(sys.modules) - before:
    del sys.modules[name]


def test_calls(folder):
  rule = user_modules.make('verifier', 'own_whole:Rule')
  assert type(rule).__name__ == 'Rule'
  values = user_modules.make('task', 'own_folder.inside:echo', a=1, b='x')
  assert values == (1, 'x')
  # The module is not imported twice.
  assert type(user_modules.make('verifier', 'own_whole:Rule')) is type(rule)


@pytest.mark.parametrize(
  ('name', 'line'),
  [
    ('own_nothing:Rule', "verifier: no module 'own_nothing' for own_nothing:R"),
    ('own_folder.gone:f', "verifier: no module 'own_folder.gone' for own_fold"),
    (
      'own_whole:Rul',
      "verifier: name in own_whole: got 'Rul', expected one of Rule, Ruler, "
      'failing; did you mean Rule?',
    ),
    (
      'own_empty:f',
      "got 'f', expected one of its definitions, but it has none",
    ),
    (
      'own_broken:f',
      'verifier: importing own_broken failed: ZeroDivisionError: division by '
      'zero ({folder}/own_broken.py:2)',
    ),
    (
      'own_needing:f',
      "importing own_needing failed: ModuleNotFoundError: No module named 'no_"
      "such_package' ({folder}/own_needing.py:1)",
    ),
    ('own_whole:number', 'verifier: own_whole:number is a int, expected a cla'),
    ('own_whole:Ruler', 'verifier: own_whole:Ruler() failed: TypeError: '),
    (
      'own_whole:failing',
      "own_whole:failing() failed: KeyError: 'gone' ({folder}/own_whole.py:12)",
    ),
  ],
)
def test_mistakes(folder, name, line):
  with pytest.raises(UserError) as error:
    user_modules.make('verifier', name)
  assert line.replace('{folder}', str(folder)) in str(error.value)
  assert '\n' not in str(error.value)


def test_a_part_is_identified_by_its_file(folder):
  rule = user_modules.make('verifier', 'own_whole:Rule')
  digest = user_modules.source_digest(rule)
  assert digest and digest == user_modules.source_digest(type(rule))
  user_modules.make('task', 'own_folder.inside:echo')
  echo = sys.modules['own_folder.inside'].echo
  assert user_modules.source_digest(echo) not in ('', digest)
  # Parts of the package, and parts without a file.
  assert user_modules.source_digest(user_modules.make) == ''
  assert user_modules.source_digest(3) == ''
