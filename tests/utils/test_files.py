"""Nothing of a user's is lost, whatever is given, killed or begun twice."""

import json
import pathlib
import random
import shutil
import time

import numpy as np
import pytest
import safetensors.numpy
from testing import tiny

from specsamp import LanguageModel
from specsamp.checkpoints import convert, model_dir, weights
from specsamp.errors import UserError
from specsamp.utils import files


def _tree(root):
  """Everything below a folder: names, and what files hold."""
  return {
    path.relative_to(root).as_posix(): path.read_bytes()
    if path.is_file()
    else None
    for path in sorted(root.rglob('*'))
  }


def _is_ours(folder):
  return all(path.name == 'ours' for path in folder.iterdir())


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
  path = tmp_path / 'a' / 'b'
  for text in ('first', 'second'):
    with files.replace_folder(path, _is_ours) as folder:
      (folder / 'ours').write_text(text)
    assert _tree(tmp_path) == {
      'a': None,
      'a/b': None,
      'a/b/ours': text.encode(),
    }
  with (
    pytest.raises(KeyboardInterrupt),
    files.replace_folder(path, _is_ours) as folder,
  ):
    (folder / 'ours').write_text('third')
    raise KeyboardInterrupt
  assert _tree(tmp_path)['a/b/ours'] == b'second'
  assert len(_tree(tmp_path)) == 3


def test_without_an_exchange_of_names(tmp_path, monkeypatch):
  monkeypatch.setattr(files, '_EXCHANGES', {})
  for text in ('first', 'second'):
    with files.replace_folder(tmp_path / 'a', _is_ours) as folder:
      (folder / 'ours').write_text(text)
  assert _tree(tmp_path) == {'a': None, 'a/ours': b'second'}


def test_what_comes_meanwhile_is_not_replaced(tmp_path):
  with (
    pytest.raises(UserError, match='holds something else'),
    files.replace_folder(tmp_path / 'a', _is_ours) as folder,
  ):
    (folder / 'ours').write_text('mine')
    (tmp_path / 'a').mkdir()
    (tmp_path / 'a' / 'theirs').write_text('precious')
  assert _tree(tmp_path) == {'a': None, 'a/theirs': b'precious'}


@pytest.fixture(scope='module')
def model_folder(tmp_path_factory, tokenizer):
  made = tiny.model(tokenizer.vocab_size, seed=0)
  folder = tmp_path_factory.mktemp('model') / 'llama'
  model_dir.save(
    LanguageModel(made.transformer, made.params, tokenizer), folder
  )
  return folder


@pytest.mark.parametrize(
  'given',
  [
    '', ' ', '.', '..', '/', '~', 'file', 'file/x', 'other', 'all', 'all/llama',
    'link', 'all/../all', '\0',
  ],
)  # fmt: skip
def test_goals_that_are_refused(given, model_folder, tmp_path, monkeypatch):
  """Every goal that holds, or would bury, something of a user's."""
  home = tmp_path / 'home'
  (home / 'work').mkdir(parents=True)
  monkeypatch.setenv('HOME', str(home))
  monkeypatch.chdir(home / 'work')
  (home / 'work' / 'other').mkdir()
  (home / 'work' / 'other' / 'notes').write_text('precious')
  (home / 'work' / 'file').write_text('precious')
  (home / 'work' / 'link').symlink_to('other')
  model_dir.save(model_dir.load(model_folder), 'all/llama')
  before = _tree(tmp_path)
  if given == '~':
    given = str(home)
  with pytest.raises(UserError) as error:
    convert.convert('all/llama', given)
  assert '\n' not in str(error.value)
  assert _tree(tmp_path) == before


def test_siblings_of_a_goal_stay(model_folder, tmp_path):
  for name in ('new.old', 'new.partial'):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'notes').write_text('precious')
  for _ in range(2):
    convert.convert(model_folder, tmp_path / 'new')
    assert weights.is_ours(tmp_path / 'new')
  for form in ('huggingface', 'orbax'):
    convert.convert(model_folder, tmp_path / 'hf', form)
  for name in ('new.old', 'new.partial'):
    assert (tmp_path / name / 'notes').read_text() == 'precious'
    assert len(list((tmp_path / name).iterdir())) == 1
  assert len(list(tmp_path.iterdir())) == 4


def test_what_is_mounted_in_a_goal(tmp_path, monkeypatch):
  (tmp_path / 'a b' / 'c').mkdir(parents=True)
  mounts = tmp_path / 'mountinfo'
  line = '36 35 98:0 /x {} rw,noatime - ext3 /dev/root rw\n'
  name = str(tmp_path / 'a b' / 'c').replace(' ', '\\040')
  mounts.write_text(line.format('/') + line.format(name))
  monkeypatch.setattr(files, '_MOUNTS', mounts)
  for goal in ('a b', 'a b/c'):
    with pytest.raises(UserError, match='is mounted there'):
      files.check_replaceable(tmp_path / goal, lambda folder: True)
  files.check_replaceable(tmp_path / 'a b' / 'd', lambda folder: True)


def _spoil(folder, name, content=''):
  (folder / name).parent.mkdir(exist_ok=True)
  (folder / name).write_text(content)


@pytest.mark.parametrize(
  'change',
  [
    lambda folder: None,
    lambda folder: _spoil(folder, 'notes'),
    lambda folder: _spoil(folder, 'orbax/notes'),
    lambda folder: _spoil(folder, 'config.json', '{"model": "of a plane"}'),
    lambda folder: _spoil(folder, 'model'),
  ],
)
def test_whose_a_folder_is(model_folder, tmp_path, change):
  """Whatever a user changed in a model's folder makes it the user's."""
  shutil.copytree(model_folder, tmp_path / 'model')
  change(tmp_path / 'model')
  is_whole = _tree(tmp_path / 'model') == _tree(model_folder)
  assert weights.is_ours(tmp_path / 'model') == is_whole


def test_an_export_that_was_trained_further_is_not_ours(model_folder, tmp_path):
  convert.convert(model_folder, tmp_path / 'hf', 'huggingface')
  path = tmp_path / 'hf' / 'model.safetensors'
  assert weights.is_ours(tmp_path / 'hf')
  tensors = safetensors.numpy.load_file(path)
  # As transformers writes it.
  safetensors.numpy.save_file(tensors, path, {'format': 'pt'})
  assert not weights.is_ours(tmp_path / 'hf')


# What stands around a goal, and in it, in the trees below.
_NAMES = ('a', 'a.old', 'a.partial', '.a', 'a.lock', 'b', 'model', 'ours')


def _random_tree(root, chance):
  """Some files and folders with their kind of names."""
  for _ in range(chance.randrange(8)):
    parts = [chance.choice(_NAMES) for _ in range(chance.randint(1, 3))]
    path = root.joinpath(*parts)
    try:
      path.parent.mkdir(parents=True, exist_ok=True)
      if chance.random() < 0.7:
        path.write_text(str(chance.random()))
      else:
        path.mkdir()
    except OSError:  # a file where a folder would be, or the reverse
      continue


def _write_for_ever(goal):
  """Replaces a folder of two files of one number, again and again."""
  for i in range(10**6):
    with files.replace_folder(goal, _holds_numbers) as folder:
      (folder / 'ours').write_text(f'{i}')
      (folder / 'model').write_text(f'{i}')


def _holds_numbers(folder):
  return {path.name for path in folder.iterdir()} == {'ours', 'model'}


@pytest.mark.integration
@pytest.mark.parametrize(
  'part', [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))]
)
def test_kills_at_random_moments(part, server, tmp_path):
  """Outside of the goal nothing changes, and what is in it is whole, always.

  50 trees of each part; in half of them a writer is killed somewhere in its
  work.
  """
  chance = random.Random(part)
  written = 0
  for i in range(50):
    root = tmp_path / str(i)
    root.mkdir()
    _random_tree(root, chance)
    goal = root / chance.choice(_NAMES)
    before = _tree(root)
    if i % 2:
      try:
        with files.replace_folder(goal, _holds_numbers) as folder:
          for name in ('ours', 'model'):
            (folder / name).write_text('0')
      except UserError:
        assert _tree(root) == before
        continue
    elif goal.is_dir() and list(goal.iterdir()) or goal.is_file():
      with pytest.raises(UserError):
        files.check_replaceable(goal, _holds_numbers)
      continue
    else:
      writer = server.Process(target=_write_for_ever, args=(goal,))
      writer.start()
      while not goal.exists() or not list(goal.iterdir()):
        time.sleep(0.0005)
      time.sleep(chance.uniform(0, 0.02))
      writer.kill()
      writer.join()
    name = goal.name
    after = _tree(root)
    left = lambda path: files.is_left_over(path.split('/')[0])
    own = {p for p in after if p == name or p.startswith(f'{name}/') or left(p)}
    numbers = {after[f'{name}/ours'], after[f'{name}/model']}
    assert len(numbers) == 1 and _holds_numbers(goal)
    before.pop(name, None)
    assert {p: after[p] for p in after.keys() - own} == before
    written += 1
  assert written > 10


_SHAPE = {'id': str, 'n': [int], 'x': float, 'y': (None, {'z': bool})}
_GOOD = {'id': 'a', 'n': [1, 2], 'x': 1, 'y': {'z': True}, 'more': None}


@pytest.mark.parametrize(
  'change',
  [
    dict(id=1), dict(n=1), dict(n=[1.0]), dict(n=[True]), dict(x='1'),
    dict(x=float('nan')), dict(x=float('inf')), dict(x=True), dict(x=10**400),
    dict(n=[2**63]), dict(y={}), dict(y={'z': 1}), dict(y=0),
  ],
  ids=repr,
)  # fmt: skip
def test_shapes(change):
  assert files.has_shape(_GOOD, _SHAPE)
  assert files.has_shape(_GOOD | {'y': None}, _SHAPE)
  assert not files.has_shape(_GOOD | change, _SHAPE)


def _read(path):
  return files.read_lines(
    path, lambda v: files.has_shape(v, _SHAPE), key=lambda v: v['id']
  )


def test_lines_of_others_are_set_aside(tmp_path, capsys):
  path = tmp_path / 'lines.jsonl'
  own = [json.dumps(_GOOD | {'id': str(i)}).encode() for i in range(3)]
  others = [
    b'{}', b'5', b'null', b'"x"', b'\xff\xfe', b'[' * 10**5, b'{"id": ', b'nan',
    b'9' * 5000, json.dumps(_GOOD | {'n': 'x'}).encode(),
    json.dumps(_GOOD | {'id': '0', 'x': 7}).encode(),
  ]  # fmt: skip
  path.write_bytes(b'\n'.join([own[0], *others[:5], own[1], b'', *others[5:],
                               own[2], own[0][:9]]))  # fmt: skip
  found = _read(path)
  assert [line['id'] for line in found.kept] == ['0', '1', '2']
  found.rewrite(found.kept)
  assert path.read_bytes() == b'\n'.join([*own, b''])
  aside = tmp_path / 'lines.jsonl.set-aside'
  assert aside.read_bytes().split(b'\n')[:-1] == others
  assert '11 lines are not of this run, the first is line 2' in (
    capsys.readouterr().err
  )
  path.write_bytes(own[0] + b'\n\x00\xff')
  assert len(_read(path).aside) == 1
  # A last line that is whole but for its end counts.
  path.write_bytes(b'\n'.join(own))
  assert len(_read(path).kept) == 3


def test_random_bytes_are_never_a_traceback(tmp_path):
  """And a whole line among them is never lost."""
  rng = np.random.default_rng(0)
  path = tmp_path / 'lines.jsonl'
  for i in range(300):
    own = json.dumps(_GOOD | {'id': str(i)}).encode()
    noise = [rng.bytes(rng.integers(40)) for _ in range(rng.integers(4))]
    text = b'\n'.join([*noise, own, *noise, b''])
    path.write_bytes(text)
    found = _read(path)
    assert [line['id'] for line in found.kept] == [str(i)]
    kept = [own, *(line for _, line in found.aside)]
    wanted = [line for line in text.split(b'\n') if line.strip()]
    assert sorted(kept) == sorted(wanted)


def test_a_file_that_is_set_aside_overwrites_nothing(tmp_path):
  for _ in range(3):
    (tmp_path / 'a.npy').write_text('x')
    files.set_aside(tmp_path / 'a.npy', 'is no array')
  assert sorted(path.name for path in pathlib.Path(tmp_path).iterdir()) == [
    'a.npy.set-aside',
    'a.npy.set-aside1',
    'a.npy.set-aside2',
  ]
