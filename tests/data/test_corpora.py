"""Corpora and their held-out parts."""

import sysconfig

import pytest

from specsamp.data import corpora
from specsamp.errors import UserError


def test_the_split_depends_on_a_files_name_alone():
  names = [f'lib/m{i}.py' for i in range(2000)]
  held_out = {name for name in names if corpora.is_held_out(name)}
  assert len(held_out) / len(names) == pytest.approx(0.1, abs=0.02)
  # Another rule would reveal held-out files to models trained before.
  numbers = [i for i in range(60) if f'lib/m{i}.py' in held_out]
  assert numbers == [3, 10, 13, 20, 32, 37]
  files = dict.fromkeys(names, '')
  train, rest = corpora.split(files)
  assert set(rest) == held_out and set(train) == set(names) - held_out
  fewer = dict.fromkeys(names[::3], '')
  assert set(corpora.split(fewer)[1]) == held_out & set(fewer)
  with pytest.raises(UserError, match='1 files to train on and 0 held out'):
    corpora.split({'lib/m0.py': ''})


@pytest.fixture
def folder(tmp_path):
  for name in ('b.py', 'a/c.py', 'a/d.txt', 'tests/e.py', '__pycache__/f.py'):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{name} é', encoding='utf-8')
  (tmp_path / 'latin.py').write_bytes(b'\xe9')
  (tmp_path / 'folder.py').mkdir()
  return tmp_path


def test_folders(folder, monkeypatch):
  files = corpora.read_folder(folder, '[ab]/*.py')
  assert list(files.items()) == [('a/c.py', 'a/c.py é')]
  names = ['__pycache__/f.py', 'a/c.py', 'b.py', 'tests/e.py']
  assert list(corpora.read_folder(folder)) == names
  assert list(corpora.read_folder(folder, '*/*.txt')) == ['a/d.txt']
  # Tests of a library are skipped at any depth.
  (folder / 'a' / 'tests').mkdir()
  (folder / 'a' / 'tests' / 'g.py').write_text('')
  monkeypatch.setattr(sysconfig, 'get_paths', lambda: {'stdlib': str(folder)})
  assert list(corpora.python_library()) == ['a/c.py', 'b.py']


@pytest.mark.parametrize(
  ('folder', 'pattern', 'message'),
  [
    ('nowhere', '*', 'corpus: .*nowhere is not a folder'),
    ('.', '*.rs', r'corpus: no files match \*\.rs in .*'),
    ('.', '', "corpus: bad pattern '': .*"),
    ('.', '/etc/*', "corpus: bad pattern '/etc/.*': .*"),
  ],
)
def test_bad_folders(tmp_path, folder, pattern, message):
  with pytest.raises(UserError, match=f'^{message}$'):
    corpora.read_folder(tmp_path / folder, pattern)


def test_copies_of_held_out_texts_are_removed():
  lines = [f'value_{i} = function_{i}(argument_{i})' for i in range(60)]
  text = lambda chosen: '\n'.join(chosen)
  indented = text(f'    {line}\n\n  x' for line in lines)
  few = text([*(line.upper() for line in lines), *lines[:6]])
  part = text([*(line.upper() for line in lines), *lines[:20]])
  reverse = text(lines[::-1])  # the same lines, but no passage
  texts = [text(lines), indented, few, part, reverse, 'x = 1']
  assert corpora.unlike(texts, [text(lines), '']) == [few, reverse, 'x = 1']
