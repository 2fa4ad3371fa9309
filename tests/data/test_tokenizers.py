"""SentencePiece tokenizers keep every character; bad files are refused."""

import json
import re

import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2
from testing import shared_data

from specsamp.data import hf_tokenizers, tokenizers
from specsamp.data.tokenizers import SentencePiece
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


def test_equal_by_content(tokenizer, sources, tmp_path):
  tokenizer.save(tmp_path)
  same = SentencePiece.load(tmp_path / 'tokenizer.model')
  assert same == tokenizer and hash(same) == hash(tokenizer)
  other = tokenizers.train(sources.values(), tokenizer.vocab_size - 1)
  assert other != tokenizer and tokenizer != tokenizer.proto


@pytest.mark.parametrize('content', [None, b'', b'no model', 'cut'])
def test_bad_files(tokenizer, tmp_path, content):
  path = tmp_path / 'a.model'
  if content == 'cut':
    content = tokenizer.proto[:-50]
  if content is not None:
    path.write_bytes(content)
  reason = 'No such file' if content is None else 'not a SentencePiece model'
  with pytest.raises(UserError, match=f'^tokenizer .*a.model: {reason}') as e:
    SentencePiece.load(path)
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


@pytest.fixture(scope='module')
def prefixed(tokenizer):
  """A model that adds a space before a text and removes it, as LLaMA's."""
  model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.proto)
  model.normalizer_spec.add_dummy_prefix = True
  return SentencePiece(model.SerializeToString())


@pytest.mark.parametrize('kind', ['tokenizer', 'prefixed', 'mistral'])
def test_the_text_that_a_completion_adds(kind, request):
  if kind == 'mistral':
    path = shared_data.find('tokenizers/mistral_tokenizer.model.v1')
    made = SentencePiece.load(path)
  else:
    made = request.getfixturevalue(kind)
  text = 'def  f(x): return  x is not 日本 🎉  \n'
  ids = made.encode(text)
  for cut in range(len(ids) + 1):
    head = made.decode(ids[:cut]).rstrip('\ufffd')  # half a character
    assert head + made.decode(ids[cut:], after=ids[:cut]) == text
  assert made.decode(np.asarray(ids)) == text
  space = made.pieces().index('▁')
  assert made.decode([space], after=[ids[0]]) == (
    '' if kind != 'tokenizer' else ' '
  )
  assert made.decode([space], after=ids) == ' '


def test_special_tokens_have_no_text(tokenizer):
  bos, eos, a = tokenizer.bos_id, tokenizer.eos_id, tokenizer.encode('a')[-1]
  pieces = tokenizer.pieces()
  assert tokenizer.decode([bos, a, pieces.index('<unk>'), eos, a, eos]) == 'aa'
  assert tokenizer.stop_ids == (eos,)
  assert len(pieces) == tokenizer.vocab_size == len(set(pieces))
  assert pieces[eos] == '</s>' and {'\n', '<0x00>', '▁'} <= set(pieces)


def test_tokenizers_that_disagree(tokenizer, sources):
  other = tokenizers.train(
    [text[::-1] for text in sources.values()], tokenizer.vocab_size
  )
  both = list(zip(tokenizer.pieces(), other.pieces(), strict=True))
  differ = [i for i, (a, b) in enumerate(both) if a != b]
  a, b = both[differ[0]]
  wanted = f'{len(differ)} tokens differ, the first is {differ[0]}: {b!r} of th'
  with pytest.raises(UserError, match=re.escape(wanted)) as error:
    tokenizers.check_agree(tokenizer, other)
  assert repr(a) in str(error.value) and '\n' not in str(error.value)


def test_a_folder_names_special_tokens(prefixed, tmp_path):
  """They are parsed then; a text has a dummy space only at its beginning."""
  size = prefixed.vocab_size
  added = {str(size): {'content': '<b>'}, '2': {'content': '</s>'}}
  added[str(size + 1)] = {'content': '<b>c', 'special': True}
  config = {'added_tokens_decoder': added, 'eos_token': '</s>'}
  prefixed.save(tmp_path)
  assert hf_tokenizers.load(tmp_path) == prefixed
  config_file = tmp_path / 'tokenizer_config.json'
  config_file.write_text(json.dumps(config))
  loaded = hf_tokenizers.load(tmp_path)
  assert loaded.vocab_size == size + 2 == len(loaded.pieces())
  assert loaded != prefixed
  tokenizers.check_agree(loaded, prefixed)
  ids = loaded.encode('def</s>def<b>c<b> d')
  head = prefixed.encode('def')
  assert ids[: len(head) + 1] == [*head, loaded.eos_id]
  assert [i for i in ids if i >= size] == [size + 1, size]
  assert loaded.decode(ids) == 'defdef<b> d'
  # The old kind puts a space before each part.
  config_file.write_text(json.dumps(config | {'legacy': True}))
  assert hf_tokenizers.load(tmp_path).encode('def</s>def')[-len(head) :] == [
    loaded.eos_id, *head[1:]
  ]  # fmt: skip
  config_file.write_text(json.dumps(config | {'add_bos_token': False}))
  assert hf_tokenizers.load(tmp_path).encode('def') == head[1:]
  del added[str(size)]
  config_file.write_text(json.dumps(config))
  with pytest.raises(UserError, match=f'expected them to follow the {size}'):
    hf_tokenizers.load(tmp_path)
