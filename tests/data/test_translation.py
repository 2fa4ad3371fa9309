"""Meanings of tokens, and tables between two tokenizers."""

import hf_folders
import pytest

from specsamp.data import hf_tokenizers, translation
from specsamp.data.tokenizer_files import Files
from specsamp.data.tokenizers import Meaning

_TEXT = 'def f(x):\n  return "é, ∑, 🙂"  # 12\n'
_END, _TURN = hf_folders.END, hf_folders.TURN


@pytest.fixture(scope='module')
def byte_level(sources):
  pytest.importorskip('tokenizers')
  content = hf_folders.byte_level(sources.values()).to_str()
  files = Files(named={'eos_token': _END, 'bos_token': _TURN})
  return hf_tokenizers.HuggingFace(content, files)


@pytest.fixture(params=['sentencepiece', 'byte_level'])
def either(request, tokenizer):
  if request.param == 'sentencepiece':
    return tokenizer
  return request.getfixturevalue('byte_level')


def test_texts_are_the_bytes_of_their_tokens(either):
  meanings, ids = either.meanings(), either.encode(_TEXT, bos=False)
  assert b''.join(meanings[i].text for i in ids) == _TEXT.encode()
  assert {meanings[i].role for i in ids} == {'text'}
  assert meanings[either.eos_id].role == 'stop'
  assert meanings[either.bos_id].role == 'special'


def _translate(target, draft):
  return translation.translate(
    target, draft, target.vocab_size, draft.vocab_size
  )


def test_tables(tokenizer, byte_level):
  tables = _translate(tokenizer, byte_level)
  meanings, drafted = tokenizer.meanings(), byte_level.meanings()
  shared = [i for i in tables.shared.tolist() if i >= 0]
  assert len(set(shared)) == len(shared) > 300
  assert tables.share == len(shared) / byte_level.vocab_size < 1
  texts = {meaning.text for meaning in drafted if meaning.role == 'text'}
  for meaning, own, read in zip(meanings, *tables[:2], strict=True):
    if own >= 0:
      assert (drafted[own], read) == (meaning, own)
    elif meaning.role == 'text':
      end = drafted[read].text  # of no longer token
      assert meaning.text.endswith(end)
      longer = meaning.text[-len(end) - 1 :]
      assert longer == end or longer not in texts
  # Special tokens of other names.
  assert tables.shared[tokenizer.eos_id] == -1


@pytest.mark.parametrize(
  ('files', 'is_shared'),
  [
    (dict(named={'eos_token': _END}), True),
    (dict(named={'eos_token': _TURN, 'bos_token': _END}), False),
  ],
)
def test_special_tokens(byte_level, sources, files, is_shared):
  """Those of other roles are read by their names, and not drafted."""
  content = hf_folders.byte_level(sources.values()).to_str()
  target = hf_tokenizers.HuggingFace(content, Files(**files))
  tables = _translate(target, byte_level)
  end = byte_level.eos_id
  assert tables.read[end] == end
  assert (tables.shared[end] == end) == is_shared


def test_bytes_and_spaces_of_pieces(tokenizer):
  pieces, meanings = tokenizer.pieces(), tokenizer.meanings()
  for piece, text in (('<0xE9>', b'\xe9'), ('▁self', b' self')):
    assert meanings[pieces.index(piece)] == Meaning(text, 'text')
