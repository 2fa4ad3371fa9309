"""SentencePiece models exported as a tokenizer.json: equal ids and texts."""

import random

import pytest
from testing import shared_data

from specsamp import zoo
from specsamp.data import corpora, hf_tokenizers, tokenizer_export, tokenizers
from specsamp.data.tokenizers import SentencePiece
from specsamp.errors import UserError

_TEXTS = [
  '',
  ' ',
  '  two spaces, then\n\n\n  a tab\t\r\n',
  'The quick brown fox jumps over the lazy dog, 1234567890 times.',
  'Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.',
  '日本語 и кириллица 🎉👩‍👩‍👧 e\u0301 \ufb01 \uff21 \ufeff\u00a0\u200b',
  'null \0, form feed \x0c, next line \x85, separator \u2028.',
  '<0x41><pad>== ==== ------- ________ aaaaaaaa',
]


@pytest.fixture(scope='module', params=['pycode', 'mistral'])
def original(request):
  if request.param == 'pycode':
    return zoo.load('pycode').target.tokenizer
  path = shared_data.find('tokenizers/mistral_tokenizer.model.v1')
  return SentencePiece.load(path)


@pytest.fixture(scope='module')
def texts(original):
  """Unusual texts, held-out files, and runs with many possible merges."""
  files = corpora.held_out_library()
  control = ('<s>', '</s>', '<unk>')  # parsed after the export
  plain = [t for t in files.values() if not any(c in t for c in control)]
  rng = random.Random(0)
  parts = ['a', ' ', '   ', '\n', '=', '--', '.', '_', '0', 'é', '🎉', '日']
  parts += rng.sample([p for p in original.pieces() if '<' not in p], 50)
  mixed = [''.join(rng.choices(parts, k=30)) for _ in range(300)]
  return _TEXTS + plain[:8] + mixed


@pytest.fixture(scope='module')
def folder(original, tmp_path_factory):
  folder = tmp_path_factory.mktemp('exported')
  tokenizer_export.export(original, folder)
  return folder


def test_ids_and_texts(original, folder, texts):
  exported = hf_tokenizers.load(folder)
  assert type(exported) is not type(original)
  assert exported.pieces() == original.pieces()
  assert exported.vocab_size == original.vocab_size
  assert exported.stop_ids == original.stop_ids
  tokenizers.check_agree(original, exported)
  for text in texts:
    for bos in (True, False):
      ids = original.encode(text, bos=bos)
      assert exported.encode(text, bos=bos) == ids
    assert exported.decode(ids) == original.decode(ids)
  # A model may emit spaces, control pieces and half characters anywhere.
  rng, pieces = random.Random(1), original.pieces()
  for _ in range(100):
    ids = rng.choices(range(original.vocab_size), k=8)
    ids = [i for i in ids if not pieces[i].startswith('<0x')]
    ids.insert(rng.randrange(8), pieces.index('<0xE2>'))
    assert exported.decode(ids) == original.decode(ids)
    cut = exported.decode(ids[4:], after=ids[:4])
    assert cut == original.decode(ids[4:], after=ids[:4])


@pytest.mark.parity
@pytest.mark.filterwarnings('ignore')
def test_transformers(original, folder, texts):
  import transformers

  reference = transformers.AutoTokenizer.from_pretrained(folder)
  assert reference.bos_token_id == original.bos_id
  assert reference.eos_token_id == original.eos_id
  for text in texts:
    ids = original.encode(text)
    assert reference.encode(text) == ids
    decoded = reference.decode(ids, skip_special_tokens=True)
    assert decoded == original.decode(ids)


def test_other_models_are_refused(tmp_path):
  path = shared_data.find('tokenizers/sentencepiece_test_model.model')
  unigram = SentencePiece.load(path)
  with pytest.raises(UserError, match='expected a BPE model') as error:
    tokenizer_export.export(unigram, tmp_path)
  assert '\n' not in str(error.value) and not list(tmp_path.iterdir())
