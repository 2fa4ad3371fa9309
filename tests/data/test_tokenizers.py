"""Tokenizers keep every character, and say what is wrong with a file."""

import pytest

from specsamp.data import tokenizers
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError


@pytest.mark.parametrize(
  'text',
  [
    '',
    ' ',
    '\n',
    '  leading and trailing   ',
    '\t\tx  =\t1\r\n\n\n',
    'def f(x):\n    return  x\n\n\n\nclass A:\n\tpass',
    'null \0, form feed \x0c, next line \x85, separator \u2028.',
    '\ufeffno-break\u00a0space, zero\u200bwidth',
    'decomposed e\u0301, ligature \ufb01, full width \uff21',  # not normalised
    '日本語 и кириллица 🎉👩‍👩‍👧',
    '<s></s><unk><0x41><pad>',  # looks like a control piece
  ],
)
def test_every_character_survives(tokenizer, text):
  for options in (dict(), dict(bos=False), dict(eos=True)):
    assert tokenizer.decode(tokenizer.encode(text, **options)) == text


def test_sources_survive(tokenizer, sources):
  for text in sources.values():
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_text_continues_where_another_ends(tokenizer):
  """A prompt and its completion are tokenized apart and joined."""
  parts = ['def f(', 'x):\n', '    return', ' x', '\n']
  ids = [i for part in parts for i in tokenizer.encode(part, bos=False)]
  assert tokenizer.decode(ids) == ''.join(parts)


def test_ends_of_documents(tokenizer):
  bare = tokenizer.encode('x = 1', bos=False)
  assert not {tokenizer.bos_id, tokenizer.eos_id} & set(bare)
  assert tokenizer.encode('x = 1') == [tokenizer.bos_id, *bare]
  assert tokenizer.encode('x = 1', eos=True)[-1] == tokenizer.eos_id
  assert tokenizer.bos_id >= 0 and tokenizer.eos_id >= 0


def test_indentation_is_short(tokenizer):
  """Runs of spaces are pieces: else code is mostly white space."""
  assert len(tokenizer.encode('        ', bos=False)) <= 2
  assert len(tokenizer.encode('\n\n', bos=False)) == 2


def test_equal_by_content(tokenizer, sources, tmp_path):
  tokenizer.save(tmp_path / 'a.model')
  same = Tokenizer.load(tmp_path / 'a.model')
  assert same == tokenizer and hash(same) == hash(tokenizer)
  other = tokenizers.train(sources.values(), tokenizer.vocab_size - 1)
  assert other != tokenizer and tokenizer != tokenizer.proto


def test_training_is_repeatable(tokenizer, sources):
  again = tokenizers.train(sources.values(), tokenizer.vocab_size)
  assert again == tokenizer


@pytest.mark.parametrize('content', [None, b'', b'no model', 'cut'])
def test_bad_files(tokenizer, tmp_path, content):
  path = tmp_path / 'a.model'
  if content == 'cut':
    content = tokenizer.proto[:-50]
  if content is not None:
    path.write_bytes(content)
  reason = 'No such file' if content is None else 'not a SentencePiece model'
  with pytest.raises(UserError, match=f'^tokenizer .*a.model: {reason}') as e:
    Tokenizer.load(path)
  assert '\n' not in str(e.value)


@pytest.mark.parametrize(
  ('texts', 'size', 'message'),
  [
    (['x = 1\n'] * 9, 5000, 'Vocabulary size too high'),
    (['x = 1\n'] * 9, 40, 'Vocabulary size is smaller'),
    ([], 300, ''),
  ],
)
def test_a_vocabulary_that_does_not_fit_the_texts(texts, size, message):
  with pytest.raises(UserError, match=f'^tokenizer: .*{message}') as error:
    tokenizers.train(texts, size)
  assert '\n' not in str(error.value)
