"""A user's own parts by name: what is found, and what is refused in a line."""

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
  'own_misspelt.py': 'def f(:\n',
  'own_needing.py': 'import no_such_package\n',
  'own_ending.py': 'raise SystemExit(3)\n',
  'own_folder/__init__.py': '',
  'own_folder/inside.py': 'def made(*given):\n  return given\n',
}


@pytest.fixture
def here(tmp_path, monkeypatch):
  """The current folder, with modules in it that nothing else can import."""
  for name, text in _FILES.items():
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', list(sys.path))
  # A launcher's folder comes first, and its files have names as users' have.
  launcher = tmp_path / 'launcher'
  launcher.mkdir()
  (launcher / 'own_whole.py').write_text('')
  sys.path.insert(0, str(launcher))
  before = set(sys.modules)
  yield tmp_path
  for name in set(sys.modules) - before:
    del sys.modules[name]


@pytest.mark.parametrize(
  ('text', 'is_one'),
  [
    ('a:B', True),
    ('a.b_1.c:D', True),
    ('token', False),
    ('a.b', False),
    ('runs/x:y', False),
    ('a:b:c', False),
    ('a:b.c', False),
    ('a:', False),
    ('1a:b', False),
    ('spec_bench/qa', False),
    (3, False),
  ],
)
def test_names(text, is_one):
  assert user_modules.is_name(text) == is_one


def test_what_is_made(here):
  found = user_modules.make('verifier', 'own_whole:Rule')
  assert type(found).__name__ == 'Rule'
  given = user_modules.make('task', 'own_folder.inside:made', a=1, b='x')
  assert given == (1, 'x')
  # Found again, not imported twice.
  assert type(user_modules.make('verifier', 'own_whole:Rule')) is type(found)


@pytest.mark.parametrize(
  ('name', 'line'),
  [
    ('own_nothing:Rule', "verifier: no module 'own_nothing' for own_nothing:R"),
    ('own_folder.gone:f', "verifier: no module 'own_folder.gone' for own_fold"),
    ('own_whole.gone:f', "verifier: no module 'own_whole.gone' for own_whole"),
    (
      'own_whole:Rul',
      "verifier: name in own_whole: got 'Rul', expected one of Rule, Ruler, "
      'failing; did you mean Rule?',
    ),
    ('own_empty:f', "got 'f', expected one of what it defines, and it defines"),
    (
      'own_broken:f',
      'verifier: importing own_broken failed: ZeroDivisionError: division by '
      'zero ({here}/own_broken.py:2)',
    ),
    ('own_misspelt:f', 'importing own_misspelt failed: SyntaxError: '),
    (
      'own_needing:f',
      "importing own_needing failed: ModuleNotFoundError: No module named 'no_"
      "such_package' ({here}/own_needing.py:1)",
    ),
    ('own_ending:f', 'importing own_ending failed: SystemExit: 3'),
    ('own_whole:number', 'verifier: own_whole:number is a int, expected a cla'),
    ('own_whole:Ruler', 'verifier: own_whole:Ruler() failed: TypeError: '),
    (
      'own_whole:failing',
      "own_whole:failing() failed: KeyError: 'gone' ({here}/own_whole.py:12)",
    ),
  ],
)
def test_what_is_refused(here, name, line):
  with pytest.raises(UserError) as error:
    user_modules.make('verifier', name)
  assert line.replace('{here}', str(here)) in str(error.value)
  assert '\n' not in str(error.value)


def test_a_part_is_known_by_its_file(here):
  found = [
    user_modules.make('verifier', name)
    for name in ('own_whole:Rule', 'own_folder.inside:made')
  ]
  rule = user_modules.source_digest(found[0])
  assert rule and rule == user_modules.source_digest(type(found[0]))
  from own_folder import inside

  assert user_modules.source_digest(inside.made) not in ('', rule)
  # The package's own, and what is in no file.
  assert user_modules.source_digest(user_modules.make) == ''
  assert user_modules.source_digest(3) == ''
