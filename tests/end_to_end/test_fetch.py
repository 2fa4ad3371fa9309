"""Published prompts and models by name, from a server on this machine."""

import hashlib
import itertools
import re

import pytest
from testing import fake_hub, shared_data, tiny
from testing.launching import run_here

from specsamp.checkpoints import model_dir
from specsamp.data import published as data
from specsamp.evaluation import tasks
from specsamp.language_model import LanguageModel
from specsamp.models import published as models

_SENTENCES = b'["Good day", "Good night"]'


class _Raw:
  """Server that answers every request with one file."""

  def __init__(self, status, body):
    self.asked, self.reply = [], (status, {}, body)

  def answer(self, _):
    return self.reply


@pytest.fixture
def wmt(monkeypatch):
  """Makes a set of two sentences published."""
  digest = hashlib.sha256(_SENTENCES).hexdigest()
  published = data.SETS['wmt']._replace(sha256=digest)
  monkeypatch.setitem(data.SETS, 'wmt', published)


def test_without_a_name_all_are_listed():
  listed = run_here('fetch')
  assert listed.code == 0
  for name, item in itertools.chain(data.SETS.items(), models.MODELS.items()):
    line = next(x for x in listed.out.splitlines() if x.startswith(f'{name} '))
    assert item.licence in line and item.repository in line


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('humanevl', "fetch: got 'humanevl', expected one of .*mean humaneval?"),
    ('llama-13b+llama-67m', "fetch: got 'llama-67m', .*mean llama-68m?"),
    ('chinchilla-70b+llama-68m', 'its weights were never published'),
  ],
)
def test_unknown_names(refused, name, message):
  assert re.search(message, refused('fetch', 'humaneval', name))


def test_prompts_are_fetched_once_and_never_replaced(
  wmt, tmp_path, monkeypatch
):
  file = tmp_path / 'mcsd' / 'wmt_ende.json'
  with fake_hub.serving(_Raw(200, _SENTENCES)) as raw:
    monkeypatch.setattr(data, '_GITHUB', raw.url)
    for _ in range(2):
      ended = run_here('fetch', 'wmt', 'wmt', f'--to={tmp_path}')
      assert ended.code == 0, ended
      assert f'wmt: {file} is there' in ended.out
    commit = data.SETS['wmt'].commit
    assert raw.asked == [f'/NJUNLP/MCSD/{commit}/dataset/wmt_ende.json']
    (task,) = tasks.load('wmt', None, 2, 99, str(tmp_path))
    texts = [prompt.text for prompt in task.prompts]
    assert texts == ['Good day', 'Good night']
    file.write_text('["mine"]')
    ended = run_here('fetch', 'wmt', f'--to={tmp_path}')
  assert ended.code == 2 and 'holds something else' in ended.err
  assert file.read_text() == '["mine"]'


@pytest.mark.parametrize(
  ('reply', 'message'),
  [
    ((200, _SENTENCES + b' '), 'wmt: got 27 bytes of SHA-256 .*, expected'),
    ((404, b''), 'HTTP Error 404: Not Found; fetch it by hand and keep it as'),
  ],
)
def test_failed_downloads(wmt, tmp_path, monkeypatch, reply, message):
  with fake_hub.serving(_Raw(*reply)) as raw:
    monkeypatch.setattr(data, '_GITHUB', raw.url)
    ended = run_here('fetch', 'wmt', f'--to={tmp_path}')
  assert ended.code == 2
  assert not list(tmp_path.iterdir())
  assert re.search(message, ended.err.splitlines()[-1])


def test_a_model_of_a_pair_comes_to_the_folder_of_its_name(
  tokenizer, tmp_path, monkeypatch
):
  pytest.importorskip('huggingface_hub')
  made = tiny.model(tokenizer.vocab_size, seed=0)
  model = LanguageModel(made.transformer, made.params, tokenizer)
  model_dir.save(model, tmp_path / 'saved')
  files = {p.name: p.read_bytes() for p in (tmp_path / 'saved').iterdir()}
  listed = models.MODELS['llama-68m']._replace(repository=fake_hub.NAME)
  monkeypatch.setitem(models.MODELS, 'llama-68m', listed)
  with fake_hub.serving(fake_hub.Hub(files)) as hub:
    monkeypatch.setenv('HF_ENDPOINT', hub.url)
    name = f'llama-68m@{hub.commit}'
    ended = run_here('fetch', name, f'--to={tmp_path}/new')
  assert ended.code == 0, ended
  model_dir.load(tmp_path / 'new' / 'llama-68m')


@pytest.mark.parametrize('name', sorted(data.SETS.keys() - {'alpaca'}))
def test_hashes_are_those_of_the_published_files(name):
  folder = shared_data.find('README.md').parent
  file = tasks.task.find(str(folder), name, 'xsum*.jsonl' * (name == 'xsum'))
  assert data.sha256_of(file) == data.SETS[name].sha256
