"""Tokenizers of model folders: ids and texts equal those of transformers."""

import json

import hf_folders as folders
import pytest
from testing import deadline, shared_data

from specsamp.data import hf_tokenizers, tokenizer_dir
from specsamp.data.tokenizers import SentencePiece, check_agree
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
  return tokenizer_dir.load(folder)


@pytest.fixture(scope='module')
def reference(folder):
  import transformers

  return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parity
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('text', _TEXTS)
def test_ids_and_texts_of_transformers(loaded, reference, text):
  for bos in (True, False):
    ids = loaded.encode(text, bos=bos)
    assert ids == reference.encode(text, add_special_tokens=bos)
    assert loaded.decode(ids) == reference.decode(ids, skip_special_tokens=True)


@pytest.mark.parity
@pytest.mark.filterwarnings('ignore')
def test_special_tokens_of_transformers(loaded, reference):
  assert loaded.vocab_size == max(reference.get_vocab().values()) + 1
  bos = reference.bos_token_id
  assert loaded.bos_id == (-1 if bos is None else bos)
  assert loaded.eos_id == reference.eos_token_id == loaded.stop_ids[0]


def test_saved_is_loaded(loaded, tmp_path):
  loaded.save(tmp_path)
  again = tokenizer_dir.load(tmp_path)
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
  loaded = tokenizer_dir.load(folder)
  assert isinstance(loaded, SentencePiece) and loaded.vocab_size == 32002
  (tmp_path / 'b').mkdir()
  loaded.save(tmp_path / 'b')
  assert tokenizer_dir.load(tmp_path / 'b') == loaded
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


_COMPOSED = ('e\u0301 \u212b', 'o\u0308o\u0308 \u1100\u1161', 'plain é')


@pytest.mark.parity
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(
  ('kind', 'model_type'),
  [
    ('Qwen2Tokenizer', 'qwen2'),
    ('Qwen2TokenizerFast', 'llama'),
    (None, 'qwen3'),
    ('PreTrainedTokenizerFast', 'qwen3'),
    (None, 'llama'),
  ],
)
def test_a_normalizer_that_the_class_adds(sources, tmp_path, kind, model_type):
  import transformers

  folder = folders.qwen(tmp_path / 'model', sources.values())
  file = folder / 'tokenizer.json'
  file.write_text(
    json.dumps(json.loads(file.read_text()) | {'normalizer': None})
  )
  folders.write(
    folder,
    tokenizer_config={'tokenizer_class': kind} if kind else {},
    config={'model_type': model_type},
  )
  reference = transformers.AutoTokenizer.from_pretrained(folder)
  loaded = tokenizer_dir.load(folder)
  for text in (*_TEXTS, *_COMPOSED):
    assert loaded.encode(text) == reference.encode(text)


def test_ids_beyond_any_vocabulary(sources, tmp_path):
  """The library takes time for all ids up to the largest."""
  folders.gpt2(tmp_path / 'json', sources.values())
  file = tmp_path / 'json' / 'tokenizer.json'
  values = json.loads(file.read_text())
  values['model']['vocab']['far'] = 2**31
  file.write_text(json.dumps(values))
  folders.opt(tmp_path / 'merges', sources.values())
  file = tmp_path / 'merges' / 'vocab.json'
  file.write_text(json.dumps(json.loads(file.read_text()) | {'far': 2**31}))
  for name in ('json', 'merges'):
    with pytest.raises(UserError, match='got the id 2147483648, expected bel'):
      deadline.call(tokenizer_dir.load, tmp_path / name)


def test_eos_may_be_many(sources, tmp_path):
  loaded = tokenizer_dir.load(folders.llama3(tmp_path, sources.values()))
  end, turn = (loaded.pieces().index(t) for t in (folders.END, folders.TURN))
  assert loaded.stop_ids == (turn, end)
  assert loaded.encode('x', eos=True)[-1] == turn
  folders.write(tmp_path, generation_config={'eos_token_id': end})
  assert tokenizer_dir.load(tmp_path).stop_ids == (turn, end)
  folders.write(tmp_path, generation_config={'eos_token_id': [turn]})
  assert tokenizer_dir.load(tmp_path).stop_ids == (turn,)
  assert tokenizer_dir.load(tmp_path) != loaded


def test_added_tokens(sources, tmp_path):
  """In both formats; decoded text has those that are not special."""
  folders.qwen(tmp_path, sources.values())
  size = tokenizer_dir.load(tmp_path).vocab_size
  added = {'<a>': size, '<b>': size + 1}
  folders.write(
    tmp_path,
    added_tokens=added,
    special_tokens_map={'additional_special_tokens': ['<b>']},
  )
  loaded = tokenizer_dir.load(tmp_path)
  assert loaded.vocab_size == size + 2 == len(loaded.pieces())
  assert loaded.encode('<a>x<b>')[::2] == [size, size + 1]
  assert loaded.decode(loaded.encode('<a>x<b>')) == '<a>x'
  config = json.loads((tmp_path / 'tokenizer_config.json').read_text())
  config['added_tokens_decoder'] = {
    str(size): {'content': '<a>'},
    str(size + 1): {'content': '<b>', 'special': True},
  }
  (tmp_path / 'added_tokens.json').unlink()
  folders.write(tmp_path, tokenizer_config=config)
  again = tokenizer_dir.load(tmp_path)
  assert again.pieces() == loaded.pieces()
  assert again.decode(again.encode('<a>x<b>')) == '<a>x'
  config['added_tokens_decoder'] = {str(size + 5): {'content': '<a>'}}
  folders.write(tmp_path, tokenizer_config=config)
  with pytest.raises(UserError, match=f"'<a>' is {size}, expected {size + 5}"):
    tokenizer_dir.load(tmp_path)


def test_agreement(loaded):
  longer = json.loads(loaded._content)
  longer['added_tokens'].append(
    {'id': loaded.vocab_size, 'content': '<more>', 'special': True}
    | dict.fromkeys(['single_word', 'lstrip', 'rstrip', 'normalized'], False)
  )
  make = lambda values: hf_tokenizers.HuggingFace(
    json.dumps(values), loaded.files
  )
  more = make(longer)
  assert more.vocab_size == loaded.vocab_size + 1 and more != loaded
  check_agree(more, loaded)
  check_agree(loaded, more)
  vocab = longer['model']['vocab']
  a, b = sorted(vocab, key=vocab.get)[-9:-7]
  longer['model']['vocab'] = vocab | {a: vocab[b], b: vocab[a]}
  with pytest.raises(UserError) as error:
    check_agree(loaded, make(longer))
  for part in (f'is {vocab[a]}:', '2 tokens differ', repr(a), repr(b)):
    assert part in str(error.value)
  assert '\n' not in str(error.value)


def test_a_character_of_many_tokens_comes_whole(loaded):
  text = 'so 🎉 é 日本 \n x'
  ids = loaded.encode(text)
  for cut in range(1, len(ids)):
    head = loaded.decode(ids[:cut]).rstrip('\ufffd')
    tail = loaded.decode(ids[cut:], after=ids[:cut])
    # Half a character is decoded once it is whole.
    assert (head + tail).startswith('so')
    assert head + tail == text


_BAD = [
  ('tokenizer.json', b'{', 'not a tokenizer.json'),
  ('tokenizer.json', b'{}', 'not a tokenizer.json'),
  ('tokenizer.json', b'\xff\xfe', 'not UTF-8'),
  ('tokenizer.json', None, 'no tokenizer.json and no tokenizer.model'),
  ('tokenizer_config.json', b'[]', 'got a list, expected a JSON object'),
  ('tokenizer_config.json', b'{', 'not valid JSON'),
  ('tokenizer_config.json', b'{"eos_token": 5}', 'eos_token: got 5'),
  ('tokenizer_config.json', b'{"eos_token": "<no>"}', "'<no>', which is not"),
  ('tokenizer_config.json', b'{"chat_template": 5}', 'got a int, expected a t'),
  ('tokenizer_config.json', b'{"extra_special_tokens": 5}', 'expected a list'),
  ('tokenizer_config.json', b'{"added_tokens_decoder": [1]}', 'tokens by id'),
  (
    'tokenizer_config.json',
    b'{"added_tokens_decoder": {"1": {"content": "a", "lstrip": "b"}}}',
    'added_tokens_decoder: .*bool',
  ),
  ('generation_config.json', b'{"eos_token_id": "2"}', "got '2', expected an"),
  ('generation_config.json', b'{"eos_token_id": [1, 9999]}', 'got 9999'),
  ('config.json', b'{"eos_token_id": -2}', 'got -2, expected an id'),
  ('special_tokens_map.json', b'{"bos_token": {"a": 1}}', 'bos_token: got'),
]


@pytest.mark.parametrize(('name', 'content', 'message'), _BAD)
def test_bad_files(sources, tmp_path, name, content, message):
  folder = tmp_path / 'model'
  folders.gpt2(folder, sources.values())
  (folder / name).unlink(missing_ok=True)
  if content is not None:
    (folder / name).write_bytes(content)
  with pytest.raises(UserError, match=f'^tokenizer .*{message}') as error:
    tokenizer_dir.load(folder)
  assert '\n' not in str(error.value) and 'model' in str(error.value)


def test_merges_of_another_model(sources, tmp_path):
  folders.opt(tmp_path, sources.values())
  (tmp_path / 'merges.txt').write_text('#version: 0.2\nno pair\n')
  with pytest.raises(UserError, match='vocab.json and merges.txt: '):
    tokenizer_dir.load(tmp_path)
  folders.write(
    tmp_path, tokenizer_config={'tokenizer_class': 'Qwen2Tokenizer'}
  )
  with pytest.raises(UserError, match="'Qwen2Tokenizer': expected those"):
    tokenizer_dir.load(tmp_path)


def test_without_the_library(sources, tokenizer, tmp_path, monkeypatch):
  find = tokenizer_dir.importlib.util.find_spec
  monkeypatch.setattr(
    tokenizer_dir.importlib.util,
    'find_spec',
    lambda name: None if name == 'tokenizers' else find(name),
  )
  for form in ('gpt2', 'opt'):
    folder = getattr(folders, form)(tmp_path / form, sources.values())
    with pytest.raises(UserError, match=r"pip install 'specsamp\[hf\]'"):
      tokenizer_dir.load(folder)
  (folder / 'tokenizer_config.json').unlink()
  (folder / 'config.json').unlink()
  (folder / 'tokenizer.model').write_bytes(tokenizer.proto)
  assert tokenizer_dir.load(folder) == tokenizer
