"""Tokenizers in the metadata of GGUF files."""

import json

import numpy as np
import pytest
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders, models, pre_tokenizers, trainers

from specsamp.checkpoints.gguf import tokenizer as gguf_tokenizer
from specsamp.data import hf_tokenizers
from specsamp.data.tokenizers import SentencePiece

_END, _TOOL = '<|end|>', '<tool>'
_TEXTS = [
  '', 'a', ' a', 'a ', 'x = 1\n', 'def f(x):\n\treturn x  + 12345\n\n\n  y',
  "I'm we'LL", 'caf\u00e9 cafe\u0301', '日本語 12', '🙂\x00', '\r\n ',
  f'a{_END} b{_TOOL}c',
]  # fmt: skip
_P = 'tokenizer.ggml.'


def _read(**values):
  """Returns the tokenizer of metadata; lists of numbers become arrays."""
  numbers = ('token_type', 'scores')
  return gguf_tokenizer.read(
    {
      _P + key: np.array(value) if key in numbers else value
      for key, value in values.items()
    }
  )


def _bytes(**values):
  """Returns a byte-level BPE that merges only ab."""
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  tokens = [*alphabet, 'ab', 'abc', _END, _TOOL]
  types = [1] * (len(tokens) - 2) + [3, 4]
  return _read(
    **dict(model='gpt2', tokens=tokens, token_type=types, merges=['a b'])
    | values
  )


@pytest.mark.parametrize('pre', ['gpt-2', 'smollm'])
def test_trained_pieces(pre, sources):
  """Ids and texts are those of the library's tokenizer that was trained."""
  made = tokenizers.Tokenizer(models.BPE())
  made.decoder = decoders.ByteLevel()
  words = pre_tokenizers.ByteLevel(add_prefix_space=False)
  digits = pre_tokenizers.Digits(individual_digits=True)
  made.pre_tokenizer = (
    words if pre == 'gpt-2' else pre_tokenizers.Sequence([digits, words])
  )
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  trainer = trainers.BpeTrainer(
    vocab_size=600, show_progress=False, initial_alphabet=alphabet
  )
  texts = [*sources.values(), *(f'{i:05}' for i in range(3000))]
  made.train_from_iterator(texts, trainer)
  made.add_special_tokens([_END])
  made.add_tokens([_TOOL])
  vocab = sorted(made.get_vocab(), key=made.token_to_id)
  merges = json.loads(made.to_str())['model']['merges']
  ours = _read(
    model='gpt2',
    pre=pre,
    tokens=vocab,
    token_type=[1] * (len(vocab) - 2) + [3, 4],
    merges=[' '.join(pair) for pair in merges],
    eos_token_id=len(vocab) - 2,
  )
  assert ours.pieces() == vocab and ours.bos_id == -1
  for text in [*_TEXTS, *(text[:2000] for text in sources.values())]:
    ids = made.encode(text).ids
    assert ours.encode(text) == ids, text
    assert ours.decode(ids) == made.decode(ids)


# The rule, a text, and its words with spaces as Ġ and line breaks as Ċ.
@pytest.mark.parametrize(
  ('pre', 'text', 'words'),
  [
    ('gpt-2', "a b  12345.x'S\n\n c", "a|Ġb|Ġ|Ġ12345|.|x|'|S|ĊĊ|Ġc"),
    ('smollm', 'a  12 b\n\n1', 'a|ĠĠ|1|2|Ġb|ĊĊ|1'),
    ('default', 'a 12345+b==c', 'a|Ġ|123|45|+|b|==|c'),
    ('qwen2', "a(b 12'S\n\n c!\n", "a|(b|Ġ|1|2|'S|ĊĊ|Ġc|!Ċ"),
    ('deepseek-r1-qwen', ' 123', 'Ġ|1|2|3'),
    ('llama-bpe', "(a 12345'LL  b?\n\n1", "(a|Ġ|123|45|'LL|Ġ|Ġb|?ĊĊ|1"),
    ('llama3', '1234', '123|4'),
    ('llama-v3', '1234', '123|4'),
    ('falcon3', '1234', '123|4'),
    ('tekken', 'someCamelCase 12 a/b/\n', 'some|Camel|Case|Ġ|1|2|Ġa|/b|/Ċ'),
  ],
)
def test_words(pre, text, words):
  parts = _bytes(pre=pre)._backend.pre_tokenizer.pre_tokenize_str(text)
  assert [word for word, _ in parts] == words.split('|')


def test_words_that_are_tokens():
  """In LLaMA 3 a word that is a token needs no merges."""
  pieces = _bytes().pieces()
  for pre, expected in (('llama-bpe', ['abc']), ('qwen2', ['ab', 'c'])):
    made = _bytes(pre=pre, bos_token_id=0)
    ids = made.encode('abc', bos=False)
    assert [pieces[i] for i in ids] == expected
    # LLaMA 3 begins texts with bos unless the file says otherwise.
    assert made.encode('', bos=True) == [0] * (pre == 'llama-bpe')
    never = _bytes(pre=pre, bos_token_id=0, add_bos_token=False)
    assert never.encode('') == []
  composed = _bytes(pre='qwen2').encode('e\u0301')
  assert composed == _bytes(pre='qwen2').encode('\u00e9')
  assert composed != _bytes(pre='llama-bpe').encode('e\u0301')


def test_roles_of_tokens(tmp_path):
  made = gguf_tokenizer.read(
    {
      _P + 'model': 'gpt2',
      _P + 'tokens': ['a', '<s>', '</s>', '<eot>', '<eom>', _TOOL, '#', '##'],
      _P + 'token_type': np.array([1, 3, 3, 3, 3, 4, 5, 5]),
      _P + 'merges': [],
      _P + 'bos_token_id': 1,
      _P + 'eos_token_id': 2,
      _P + 'eot_token_id': 3,
      _P + 'eom_token_id': 4,
      _P + 'padding_token_id': 6,
      _P + 'add_bos_token': True,
      _P + 'add_eos_token': True,
      'tokenizer.chat_template': '{{ bos_token }}{{ messages[0].content }}',
    }
  )
  assert made.vocab_size == 7  # without the row that nothing uses
  assert made.encode('a<eot>a' + _TOOL) == [1, 0, 3, 0, 5, 2]
  assert made.encode('a', bos=False) == [0]
  assert made.decode([1, 0, 3, 0, 5, 2]) == 'aa' + _TOOL
  assert (made.bos_id, made.stop_ids) == (1, (2, 3, 4))
  assert made.chat([dict(role='user', content='a')]) == '<s>a'
  made.save(tmp_path)
  assert hf_tokenizers.load(tmp_path) == made


@pytest.mark.parametrize(
  ('text', 'type_', 'stop_ids'),
  [
    ('<end_of_turn>', 3, (1, 2)),
    ('<|eot_id|>', 4, (1, 2)),
    ('<|im_end|>', 1, (1,)),  # a piece of plain text
  ],
)
def test_ends_without_an_id(text, type_, stop_ids):
  """Files of Gemma 3 name <eos> alone, which no turn of a chat ends with."""
  made = _bytes(
    tokens=['a', '<eos>', text],
    token_type=np.array([1, 3, type_]),
    merges=[],
    eos_token_id=1,
  )
  assert made.stop_ids == stop_ids


def _pieces(proto) -> dict:
  """Returns the metadata of a SentencePiece model."""
  model = sentencepiece_model_pb2.ModelProto.FromString(proto)
  return dict(
    model='llama',
    tokens=[piece.piece for piece in model.pieces],
    scores=[piece.score for piece in model.pieces],
    token_type=[piece.type for piece in model.pieces],
    add_space_prefix=model.normalizer_spec.add_dummy_prefix,
  )


@pytest.mark.parametrize('prefix', [False, True])
def test_sentencepiece(prefix, tokenizer, sources):
  """Ids and texts are those of the SentencePiece model."""
  model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.proto)
  model.normalizer_spec.add_dummy_prefix = prefix
  theirs = SentencePiece(model.SerializeToString())
  ours = _read(**_pieces(theirs.proto))
  assert (ours.bos_id, ours.eos_id) == (1, 2)
  for text in [*_TEXTS, *(text[:2000] for text in sources.values())]:
    if prefix and (text.startswith(' ') or '\n' in text):
      continue  # transformers adds no second space, and none after '\n'
    ids = theirs.encode(text)
    assert ours.encode(text) == ids, text
    if '\x00' not in text:
      assert ours.decode(ids) == theirs.decode(ids)
  assert ours.encode('a', bos=False) == theirs.encode('a', bos=False)
  assert ours.encode('a</s>')[-1] == 2  # special tokens are parsed


def test_runs_of_spaces():
  """Gemma's are user-defined, and pieces of its published tokenizer."""
  made = _read(
    model='llama',
    tokens=['<unk>', '<s>', '</s>', '   ', '  ', '▁', 'a', '▁a', '\n\n'],
    scores=[0.0, 0, 0, -1000, -1000, -2, -3, -1, -1000],
    token_type=[2, 3, 3, 4, 4, 1, 1, 1, 4],
    add_space_prefix=False,
    add_bos_token=False,
  )
  assert made.pieces()[3:5] == ['▁▁▁', '▁▁']
  assert made.encode('a   a a\n\n  ') == [6, 3, 6, 7, 8, 4]
  assert made.decode([6, 3, 6, 7, 8, 4]) == 'a   a a\n\n  '
  assert made.encode('    ') == [4, 4]  # the shortest first
  assert made.encode('é') == [0]
