"""Tokenizers of model folders: ids and texts equal those of transformers."""

import importlib.util
import itertools
import json

import hf_folders as folders
import pytest
from testing import shared_data

from specsamp.data import hf_tokenizers
from specsamp.data.tokenizers import SentencePiece
from specsamp.errors import UserError

_TEXTS = [
  '',
  'def f(x):\n    return  x\n\n\n',
  ' leading space',
  'Grüße, 日本語 🎉👩‍👩‍👧 e\u0301',
  '<|turn|>user <|endoftext|> </s><s>[INST] hi [/INST] yo </s><s>[INST]x',
  'a<think>b</s> <pad> <unk>c',
  '\t\x00\r\n',
]
_FORMS = ['gpt2', 'llama3', 'qwen', 'opt', 'llama2', 'llama1', 'mistral']


@pytest.fixture(scope='module', params=_FORMS)
def folder(request, sources, tmp_path_factory):
  folder = tmp_path_factory.mktemp('folders') / request.param
  if request.param in ('gpt2', 'llama3', 'qwen', 'opt'):
    return getattr(folders, request.param)(folder, sources.values())
  path = shared_data.find('tokenizers/mistral_tokenizer.model.v1')
  config = {
    'llama2': {},
    'llama1': {'legacy': True},
    'mistral': {'model_type': 'mistral'},
  }[request.param]
  return folders.llama(folder, SentencePiece.load(path), **config)


@pytest.fixture(scope='module')
def loaded(folder):
  return hf_tokenizers.load(folder)


@pytest.fixture(scope='module')
def reference(folder):
  import transformers

  return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parity
@pytest.mark.filterwarnings('ignore')
def test_ids_and_texts_of_transformers(loaded, reference):
  for text, bos in itertools.product(_TEXTS, (True, False)):
    ids = loaded.encode(text, bos=bos)
    assert ids == reference.encode(text, add_special_tokens=bos)
    assert loaded.decode(ids) == reference.decode(ids, skip_special_tokens=True)
  assert loaded.vocab_size == max(reference.get_vocab().values()) + 1
  bos = reference.bos_token_id
  assert loaded.bos_id == (-1 if bos is None else bos)
  assert loaded.eos_id == reference.eos_token_id == loaded.stop_ids[0]


def test_saved_is_loaded(loaded, tmp_path):
  loaded.save(tmp_path)
  again = hf_tokenizers.load(tmp_path)
  assert again == loaded and hash(again) == hash(loaded)
  assert again.stop_ids == loaded.stop_ids
  for text in _TEXTS:
    assert again.encode(text) == loaded.encode(text)


@pytest.mark.parity
@pytest.mark.filterwarnings('ignore')
def test_saved_is_loaded_by_transformers(loaded, tmp_path):
  import transformers

  loaded.save(tmp_path)
  reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
  assert reference.eos_token_id == loaded.eos_id
  for text in _TEXTS:
    assert reference.encode(text) == loaded.encode(text)


@pytest.mark.parity
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('legacy', [False, True])
def test_a_folder_with_tokenizer_model_alone(tmp_path, legacy):
  """transformers deviates from the model itself for consecutive spaces."""
  import transformers

  path = shared_data.find('tokenizers/mistral_tokenizer.model.v1')
  folder = folders.vicuna(tmp_path / 'a', path.read_bytes(), legacy)
  loaded = hf_tokenizers.load(folder)
  assert isinstance(loaded, SentencePiece) and loaded.vocab_size == 32002
  (tmp_path / 'b').mkdir()
  loaded.save(tmp_path / 'b')
  assert hf_tokenizers.load(tmp_path / 'b') == loaded
  for path in (folder, tmp_path / 'b'):
    reference = transformers.AutoTokenizer.from_pretrained(path)
    assert loaded.stop_ids == (reference.eos_token_id,)
    for text in (
      '',
      'def f(x):\n return x\t',
      'Grüße, 日本語 🎉👩‍👩‍👧 e\u0301',
      '<s>[INST] hi [/INST] yo</s><s>[INST]x',
      'a<think>b</s><pad><unk>c d',
    ):
      ids = loaded.encode(text)
      assert ids == reference.encode(text)
      assert loaded.encode(text, bos=False) == ids[1:]
      decoded = reference.decode(ids, skip_special_tokens=True)
      assert loaded.decode(ids) == decoded


@pytest.mark.parity
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('kind', ['Qwen2TokenizerFast', None])
def test_a_normalizer_that_the_class_adds(sources, tmp_path, kind):
  import transformers

  folders.qwen(tmp_path, sources.values())
  file = tmp_path / 'tokenizer.json'
  values = json.loads(file.read_text()) | {'normalizer': None}
  file.write_text(json.dumps(values))
  folders.write(
    tmp_path,
    tokenizer_config={'tokenizer_class': kind} if kind else {},
    config={'model_type': 'llama' if kind else 'qwen3'},
  )
  reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
  loaded = hf_tokenizers.load(tmp_path)
  for text in ('e\u0301 \u212b', 'o\u0308o\u0308 \u1100\u1161', 'plain é'):
    assert loaded.encode(text) == reference.encode(text)


def test_eos_may_be_many(sources, tmp_path):
  loaded = hf_tokenizers.load(folders.llama3(tmp_path, sources.values()))
  end, turn = (loaded.pieces().index(t) for t in (folders.END, folders.TURN))
  assert loaded.stop_ids == (turn, end)
  assert loaded.encode('x', eos=True)[-1] == turn
  folders.write(tmp_path, generation_config={'eos_token_id': end})
  assert hf_tokenizers.load(tmp_path).stop_ids == (turn, end)
  folders.write(tmp_path, generation_config={'eos_token_id': [turn]})
  assert hf_tokenizers.load(tmp_path).stop_ids == (turn,)
  # As in transformers, its null counts although config.json has a token. The
  # tokenizer's own end of a text stays.
  (tmp_path / 'config.json').write_text(json.dumps({'eos_token_id': end}))
  folders.write(tmp_path, generation_config={'eos_token_id': None})
  assert hf_tokenizers.load(tmp_path).stop_ids == (turn,)
  assert hf_tokenizers.load(tmp_path) != loaded


def test_added_tokens(sources, tmp_path):
  """Decoded text has those that are not special."""
  folders.qwen(tmp_path, sources.values())
  size = hf_tokenizers.load(tmp_path).vocab_size
  config = json.loads((tmp_path / 'tokenizer_config.json').read_text())

  def load(added):
    added = {'added_tokens_decoder': added}
    folders.write(tmp_path, tokenizer_config=config | added)
    return hf_tokenizers.load(tmp_path)

  special = {'content': '<b>', 'special': True}
  loaded = load({str(size): {'content': '<a>'}, str(size + 1): special})
  assert loaded.vocab_size == size + 2 == len(loaded.pieces())
  assert loaded.encode('<a>x<b>')[::2] == [size, size + 1]
  assert loaded.decode(loaded.encode('<a>x<b>')) == '<a>x'
  with pytest.raises(UserError, match=f"'<a>' is {size}, expected {size + 5}"):
    load({str(size + 5): {'content': '<a>'}})


def test_a_character_of_many_tokens_comes_whole(loaded):
  text = 'so 🎉 é 日本 \n x'
  ids = loaded.encode(text)
  for cut in range(1, len(ids)):
    head = loaded.decode(ids[:cut]).rstrip('\ufffd')
    tail = loaded.decode(ids[cut:], after=ids[:cut])
    # Half a character is decoded once it is whole.
    assert (head + tail).startswith('so')
    assert head + tail == text


@pytest.mark.parametrize(
  ('name', 'content', 'message'),
  [
    ('tokenizer.json', b'{', 'not a tokenizer.json'),
    ('tokenizer.json', b'\xff\xfe', 'not UTF-8'),
    ('tokenizer.json', None, 'no tokenizer.json and no tokenizer.model'),
    ('tokenizer_config.json', b'[]', 'got a list, expected a JSON object'),
    ('tokenizer_config.json', b'{', 'not valid JSON'),
    ('tokenizer_config.json', b'{"eos_token": "<no>"}', "'<no>', which is not"),
    ('tokenizer_config.json', b'{"extra_special_tokens": 5}', 'not iterable'),
    ('tokenizer_config.json', b'{"added_tokens_decoder": [1]}', 'added_tokens'),
    ('generation_config.json', b'{"eos_token_id": "2"}', "got '2', expected"),
    ('generation_config.json', b'{"eos_token_id": [1, 9999]}', 'got 9999'),
    ('special_tokens_map.json', b'{"bos_token": {"a": 1}}', 'no content'),
  ],
)
def test_bad_files(sources, tmp_path, name, content, message):
  folder = tmp_path / 'model'
  folders.gpt2(folder, sources.values())
  (folder / name).unlink(missing_ok=True)
  if content is not None:
    (folder / name).write_bytes(content)
  with pytest.raises(UserError, match=f'^tokenizer .*{message}') as error:
    hf_tokenizers.load(folder)
  assert '\n' not in str(error.value) and 'model' in str(error.value)


def test_merges_of_another_model(sources, tmp_path):
  folders.opt(tmp_path, sources.values())
  (tmp_path / 'merges.txt').write_text('#version: 0.2\nno pair\n')
  with pytest.raises(UserError, match='vocab.json and merges.txt: '):
    hf_tokenizers.load(tmp_path)
  folders.write(
    tmp_path, tokenizer_config={'tokenizer_class': 'Qwen2Tokenizer'}
  )
  with pytest.raises(UserError, match="'Qwen2Tokenizer': expected those"):
    hf_tokenizers.load(tmp_path)


def test_without_the_library(sources, tmp_path, monkeypatch):
  for form in ('gpt2', 'opt'):
    folder = getattr(folders, form)(tmp_path / form, sources.values())
    with monkeypatch.context() as patch:
      patch.setattr(importlib.util, 'find_spec', lambda name: None)
      with pytest.raises(UserError, match=r"pip install 'specsamp\[hf\]'"):
        hf_tokenizers.load(folder)
