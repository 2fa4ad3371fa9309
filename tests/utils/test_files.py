"""Files of a user are never lost, whatever is passed, killed or damaged."""

import random
import shutil
import time

import pytest
import safetensors.numpy
from testing import tiny

from specsamp import LanguageModel
from specsamp.checkpoints import convert, model_dir, weights
from specsamp.errors import UserError
from specsamp.utils import files


def _tree(root):
  """Returns all names below a folder, with the contents of files."""
  paths = {path.relative_to(root).as_posix(): path for path in root.rglob('*')}
  return {
    name: path.read_bytes() if path.is_file() else None
    for name, path in paths.items()
  }


def _is_ours(folder):
  return all(path.name == 'ours' for path in folder.iterdir())


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
  path = tmp_path / 'a' / 'b'
  for text in ('first', 'second'):
    with files.replace_folder(path, _is_ours) as folder:
      (folder / 'ours').write_text(text)
    expected = {'a': None, 'a/b': None, 'a/b/ours': text.encode()}
    assert _tree(tmp_path) == expected
  with (
    pytest.raises(KeyboardInterrupt),
    files.replace_folder(path, _is_ours) as folder,
  ):
    (folder / 'ours').write_text('third')
    raise KeyboardInterrupt
  assert _tree(tmp_path) == expected


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path):
  with (
    pytest.raises(UserError, match='holds other files'),
    files.replace_folder(tmp_path / 'a', _is_ours) as folder,
  ):
    (folder / 'ours').write_text('mine')
    (tmp_path / 'a').mkdir()
    (tmp_path / 'a' / 'theirs').write_text('precious')
  assert _tree(tmp_path) == {'a': None, 'a/theirs': b'precious'}


@pytest.fixture(scope='module')
def model_folder(tmp_path_factory, tokenizer):
  model = tiny.model(tokenizer.vocab_size, seed=0)
  folder = tmp_path_factory.mktemp('model') / 'llama'
  model_dir.save(
    LanguageModel(model.transformer, model.params, tokenizer), folder
  )
  return folder


@pytest.mark.parametrize(
  'goal',
  [
    '', ' ', '.', '..', '/', '~', 'file', 'file/x', 'other', 'all', 'all/llama',
    'link', 'all/../all', '\0',
  ],
)  # fmt: skip
def test_goals_that_are_refused(goal, model_folder, tmp_path, monkeypatch):
  """Every goal that holds, or would bury, files of a user."""
  work = tmp_path / 'home' / 'work'
  (work / 'other').mkdir(parents=True)
  monkeypatch.setenv('HOME', str(work.parent))
  monkeypatch.chdir(work)
  (work / 'other' / 'notes').write_text('precious')
  (work / 'file').write_text('precious')
  (work / 'link').symlink_to('other')
  shutil.copytree(model_folder, 'all/llama')
  before = _tree(tmp_path)
  with pytest.raises(UserError) as error:
    convert.convert('all/llama', str(work.parent) if goal == '~' else goal)
  assert '\n' not in str(error.value)
  assert _tree(tmp_path) == before


def test_siblings_of_a_goal_stay(model_folder, tmp_path):
  for name in ('new.old', '.new.partial'):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'notes').write_text('precious')
  before = _tree(tmp_path)
  for form in ('orbax', 'huggingface'):
    convert.convert(model_folder, tmp_path / 'new', form)
    assert weights.is_ours(tmp_path / 'new')
  shutil.rmtree(tmp_path / 'new')
  assert _tree(tmp_path) == before


@pytest.mark.parametrize(
  ('name', 'content'),
  [
    ('notes', ''),
    ('orbax/notes', ''),
    ('config.json', '{"model": "of a plane"}'),
    ('model', ''),
  ],
)
def test_a_changed_folder_is_the_users(model_folder, tmp_path, name, content):
  folder = shutil.copytree(model_folder, tmp_path / 'model')
  assert weights.is_ours(folder)
  (folder / name).parent.mkdir(exist_ok=True)
  (folder / name).write_text(content)
  assert not weights.is_ours(folder)


def test_an_export_that_was_trained_further_is_not_ours(model_folder, tmp_path):
  convert.convert(model_folder, tmp_path / 'hf', 'huggingface')
  path = tmp_path / 'hf' / 'model.safetensors'
  tensors = safetensors.numpy.load_file(path)
  # transformers writes this metadata.
  safetensors.numpy.save_file(tensors, path, {'format': 'pt'})
  assert not weights.is_ours(tmp_path / 'hf')


def _replace_for_ever(goal):
  """Replaces a folder of two files with the same number, again and again."""
  for i in range(10**6):
    with files.replace_folder(goal, _holds_numbers) as folder:
      (folder / 'ours').write_text(f'{i}')
      (folder / 'model').write_text(f'{i}')


def _holds_numbers(folder):
  return {path.name for path in folder.iterdir()} == {'ours', 'model'}


@pytest.mark.integration
def test_kills_at_random_moments(server, tmp_path):
  """The goal is whole after a kill, and its siblings are unchanged."""
  for name in ('a.old', 'a.partial', '.a', 'a.lock', 'b'):
    (tmp_path / name).write_text(name)
  before, goal, rng = _tree(tmp_path), tmp_path / 'a', random.Random(0)
  for _ in range(5):
    writer = server.Process(target=_replace_for_ever, args=(goal,))
    writer.start()
    while not (goal / 'model').exists():
      time.sleep(0.0005)
    time.sleep(rng.uniform(0, 0.02))
    writer.kill()
    writer.join()
    files.clean_up(tmp_path)
    assert _holds_numbers(goal)
    assert (goal / 'ours').read_text() == (goal / 'model').read_text()
    shutil.rmtree(goal)
    assert _tree(tmp_path) == before


def test_a_kill_between_two_renames(tmp_path):
  """The old folder is restored; with a new one in place it is removed."""
  old = tmp_path / '.a.0123456789abcdef.old'
  for text in ('first', 'second'):
    old.mkdir()
    (old / 'ours').write_text(text)
    files.clean_up(tmp_path)
    assert _tree(tmp_path) == {'a': None, 'a/ours': b'first'}
