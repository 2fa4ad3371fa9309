"""Names of the hub in place of folders, and models that are fetched from it."""

import socket
import sys

import numpy as np
import pytest
from testing import fake_hub, tiny

import specsamp
from specsamp.checkpoints import drafter_dir, folders, model_dir
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel

_NEEDED = ['config.json', 'model.safetensors', 'tokenizer.model']


@pytest.fixture(scope='module')
def model(tokenizer):
  made = tiny.model(tokenizer.vocab_size, seed=0)
  return LanguageModel(made.transformer, made.params, tokenizer)


@pytest.fixture
def hub(model, tmp_path, monkeypatch):
  """A hub with the model and other files; the local cache is empty."""
  constants = pytest.importorskip('huggingface_hub.constants')
  model_dir.save(model, tmp_path / 'saved')
  files = {
    path.name: path.read_bytes() for path in (tmp_path / 'saved').iterdir()
  }
  assert sorted(files) == _NEEDED
  files |= dict.fromkeys(('pytorch_model.bin', 'x/model.safetensors'), b'x')
  monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path / 'cache'))
  monkeypatch.setattr(constants, 'HF_TOKEN_PATH', str(tmp_path / 'token'))
  monkeypatch.delenv('HF_TOKEN', raising=False)
  monkeypatch.chdir(tmp_path)
  with fake_hub.serving(fake_hub.Hub(files)) as hub:
    monkeypatch.setenv('HF_ENDPOINT', hub.url)
    yield hub


def _refused(name, *messages, load=specsamp.load):
  with pytest.raises(UserError) as error:
    load(name)
  assert '\n' not in str(error.value)
  for message in messages:
    assert message in str(error.value)


def test_a_name_is_loaded_and_kept_for_when_there_is_no_network(
  hub, model, monkeypatch
):
  loaded = specsamp.load(fake_hub.NAME)
  assert hub.downloads() == _NEEDED
  with socket.socket() as bound:
    bound.bind(('127.0.0.1', 0))  # and does not listen
    port = bound.getsockname()[1]
  monkeypatch.setenv('HF_ENDPOINT', f'http://127.0.0.1:{port}')
  for again in (loaded, specsamp.load(f'{fake_hub.NAME}@main')):
    np.testing.assert_array_equal(again.params['head'], model.params['head'])
  _refused('org/other', 'model org/other: no such folder', 'cannot be reached')


def test_a_drafter_has_a_name_too(hub, model, tmp_path):
  drafter_dir.save(tiny.trained(model, 'medusa'), tmp_path / 'drafter')
  hub.files |= {
    path.name: path.read_bytes() for path in (tmp_path / 'drafter').iterdir()
  }
  assert drafter_dir.load(fake_hub.NAME).target == model.fingerprint
  _refused('org/other', 'drafter org/other: no', load=drafter_dir.load)


def test_a_folder_goes_before_the_hub(hub, tmp_path):
  (tmp_path / 'saved').rename(tmp_path / 'tiny')
  (tmp_path / 'org').mkdir()
  _refused(fake_hub.NAME, 'no such folder', 'as org is a folder here')
  (tmp_path / 'tiny').rename(tmp_path / 'org/tiny')
  specsamp.load(fake_hub.NAME)
  _refused('org/tony', 'no such folder; did you mean org/tiny?')
  # Names in the folder where configs keep models are paths, existing or not.
  _refused('MODELS/tiny', 'model MODELS/tiny: no such folder')
  command = 'specsamp fetch llama-68m'
  _refused('MODELS/llama-68m', f'no such folder; {command} fetches it')
  _refused('../llama-68m', f'no such folder; {command} --to=.. fetches it')
  assert not hub.asked


def test_refusals_of_the_hub(hub):
  hub.is_gated = True
  _refused(fake_hub.NAME, 'is gated; accept its terms', 'HF_TOKEN')
  hub.is_gated = False
  del hub.files['model.safetensors']
  hub.commit = 'b' * 40
  _refused(fake_hub.NAME, 'has no model.safetensors', '@refs/pr/NUMBER')
  _refused(f'{fake_hub.NAME}@gone', 'has no revision gone')
  _refused('org/none', 'org/none does not exist, or is private')
  _refused('org/a--b', 'is not a name of a repository')
  hub.is_down = True
  _refused('org/none', 'org/none answers 503')


def test_without_the_library(monkeypatch):
  monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
  _refused('org/name', 'org/name: no such folder', "'specsamp[hf]'")


def test_a_model_is_fetched_once_and_never_replaced(hub, tmp_path):
  hub.files['LICENSES/MIT.txt'] = b'terms'
  folder = tmp_path / 'new' / 'tiny'
  folders.fetch('tiny', fake_hub.NAME, folder)
  assert hub.downloads() == ['LICENSES/MIT.txt', *_NEEDED]
  assert (folder / 'LICENSES/MIT.txt').read_bytes() == b'terms'
  assert [path.name for path in folder.parent.iterdir()] == ['tiny']
  specsamp.load(folder)
  folders.fetch('tiny', fake_hub.NAME, folder)
  assert not hub.downloads()
  content = (folder / 'model.safetensors').read_bytes()
  (folder / 'model.safetensors').write_bytes(content[::-1])
  with pytest.raises(UserError, match='model.safetensors is not the file of'):
    folders.fetch('tiny', fake_hub.NAME, folder)
  assert (folder / 'model.safetensors').read_bytes() == content[::-1]
  (folder / 'model.safetensors').write_bytes(content)
  (folder / 'tokenizer.model').unlink()
  with pytest.raises(UserError, match='tokenizer.model is not the file of'):
    folders.fetch('tiny', fake_hub.NAME, folder)


def test_a_damaged_download_is_repeated(hub, tmp_path):
  hub.spoilt.add('model.safetensors')
  folder = tmp_path / 'tiny'
  message = 'the downloaded model.safetensors is not the file'
  with pytest.raises(UserError, match=message):
    folders.fetch('tiny', fake_hub.NAME, folder)
  assert hub.downloads() == _NEEDED
  assert not folder.exists()
  hub.spoilt.clear()
  folders.fetch('tiny', fake_hub.NAME, folder)
  assert hub.downloads() == ['model.safetensors']
  specsamp.load(folder)
