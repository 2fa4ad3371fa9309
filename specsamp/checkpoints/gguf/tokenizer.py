"""Tokenizers in the metadata of GGUF files, for the `tokenizers` library.

The rules are those of llama.cpp. Where transformers splits or joins text in
another way than llama.cpp, the tokenizer that the model was published with
decides; comments name these places.
"""

from typing import Any

from specsamp.data import hf_tokenizers, tokenizer_export
from specsamp.data.tokenizer_files import Files
from specsamp.errors import UserError, check_name

_PREFIX = 'tokenizer.ggml.'
# Types of tokens.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_SPACE = '▁'  # a space in pieces of SentencePiece

# Expressions that split a text one after the other; the pieces between matches
# are kept. GPT-2's words:
_WORDS = (
  r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+"
  r'|\s+(?!\S)|\s+'
)
# Words with any one character in front, and at most some digits.
_LATER_WORDS = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
  r'| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)
_GPT2 = (_WORDS,)
_QWEN = (_LATER_WORDS.format(digits=r'\p{N}'),)
_LLAMA3 = (_LATER_WORDS.format(digits=r'\p{N}{1,3}'),)
_UPPER, _LOWER = r'\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}', r'\p{Ll}\p{Lm}\p{Lo}\p{M}'
_TEKKEN = (
  rf'[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+'
  rf'|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*'
  r'|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+',
)
_SPLITS = {
  'default': (r'[\p{P}\$\+<=>\^~\|]+', _WORDS, r'\p{N}+', '[0-9][0-9][0-9]'),
  'gpt-2': _GPT2,
  'smollm': (r'\p{N}', _WORDS),
  'qwen2': _QWEN,
  'deepseek-r1-qwen': _QWEN,
  'llama-bpe': _LLAMA3,
  'llama3': _LLAMA3,
  'llama-v3': _LLAMA3,
  'falcon3': _LLAMA3,
  'tekken': _TEKKEN,
}
_ROLES = dict(bos='bos', eos='eos', unk='unknown', pad='padding')
# Ids that the format's first files leave out.
_LLAMA_IDS = dict(bos=1, eos=2, unknown=0)
_ENDS = ('eos', 'eot', 'eom')  # of a text, a turn, a message
# Many files have the id of one of these ends, such as Gemma 3's <eos> and not
# <end_of_turn>. Like llama.cpp, this module knows the others by their texts.
_END_TEXTS = (
  '<|end_of_text|>',
  '<|eot_id|>',
  '<|eom_id|>',
  '<|endoftext|>',
  '<|im_end|>',
  '<end_of_turn>',
)


def read(values: dict[str, Any]) -> hf_tokenizers.HuggingFace:
  """Returns the tokenizer that a file's metadata describe.

  Raises:
    UserError: a key is missing or not supported, the values do not fit each
      other, or the library is not installed.
  """
  try:
    from tokenizers import AddedToken, processors
  except ImportError:
    raise UserError(
      "needs tokenizers, a library: pip install 'specsamp[gguf]'"
    ) from None
  kind = _need(values, 'model')
  check_name('tokenizer.ggml.model', kind, ('gpt2', 'llama'))
  for key in ('precompiled_charsmap', 'remove_extra_whitespaces'):
    if values.get(_PREFIX + key) is not None:
      raise UserError(f'{_PREFIX}{key} is not supported')
  tokens = list(_need(values, 'tokens'))
  types = values.get(_PREFIX + 'token_type')
  types = [_NORMAL] * len(tokens) if types is None else types.tolist()
  if len(types) != len(tokens):
    raise UserError(f'{len(tokens)} tokens, but {len(types)} token types')
  ids = _ids(values, kind, len(tokens))
  # Rows of the embedding that no text uses.
  while types and types[-1] == _UNUSED and len(types) - 1 not in ids.values():
    types.pop()
    tokens.pop()
  build = _byte_level if kind == 'gpt2' else _sentencepiece
  try:
    backend, adds_bos = build(values, tokens, types)
  except UserError:
    raise
  except Exception as error:  # the library raises no narrower class
    raise UserError(f'tokenizer: {" ".join(str(error).split())}') from None
  added = {True: [], False: []}
  for token, type_ in zip(tokens, types, strict=True):
    if type_ in (_CONTROL, _UNKNOWN, _USER_DEFINED):
      special = type_ != _USER_DEFINED
      added[special].append(
        AddedToken(token, special=special, normalized=False)
      )
  backend.add_special_tokens(added[True])
  backend.add_tokens(added[False])
  named = {
    f'{role}_token': tokens[ids[key]]
    for role, key in _ROLES.items()
    if key in ids
  }
  ends = [ids[key] for key in _ENDS if key in ids]
  ends += [
    i
    for i, (token, type_) in enumerate(zip(tokens, types, strict=True))
    if token in _END_TEXTS and type_ in (_CONTROL, _USER_DEFINED)
  ]
  adds_bos &= 'bos' in ids
  adds_bos = bool(values.get(_PREFIX + 'add_bos_token', adds_bos))
  adds_eos = bool(values.get(_PREFIX + 'add_eos_token', False))
  around = ['$A']
  for role, is_added in (('bos', adds_bos), ('eos', adds_eos)):
    if not is_added:
      continue
    if role not in ids:
      raise UserError(f'add_{role}_token without {role}_token_id')
    token = named[f'{role}_token']
    around = [token, *around] if role == 'bos' else [*around, token]
  if len(around) > 1:
    backend.post_processor = processors.TemplateProcessing(
      single=around,
      special_tokens=[
        (token, tokens.index(token)) for token in around if token != '$A'
      ],
    )
  files = Files(
    named=named,
    stop_ids=tuple(dict.fromkeys(ends)),
    chat_template=values.get('tokenizer.chat_template', ''),
    adds_bos=adds_bos,
    parses=True,
  )
  return hf_tokenizers.HuggingFace(backend.to_str(), files)


def _need(values: dict[str, Any], key: str) -> Any:
  if _PREFIX + key not in values:
    raise UserError(f'no {_PREFIX}{key}')
  return values[_PREFIX + key]


def _ids(values: dict[str, Any], kind: str, count: int) -> dict[str, int]:
  """Returns role -> id of the tokens with a role."""
  ids = dict(_LLAMA_IDS) if kind == 'llama' else {}
  for key in (*_ROLES.values(), *_ENDS):
    got = values.get(f'{_PREFIX}{key}_token_id')
    if got is not None:
      ids[key] = got
  for key, got in ids.items():
    if not isinstance(got, int) or not 0 <= got < count:
      raise UserError(f'{key}_token_id: got {got!r}, expected below {count}')
  return ids


def _byte_level(values, tokens, types):
  """Returns a byte-level BPE, and True if it adds bos by default."""
  from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
  )

  name = values.get(_PREFIX + 'pre', 'default')
  check_name('tokenizer.ggml.pre', name, _SPLITS)
  splits = _SPLITS[name]
  merges = [tuple(pair.split(' ')) for pair in _need(values, 'merges')]
  backend = Tokenizer(
    models.BPE(
      vocab={token: i for i, token in enumerate(tokens)},
      merges=merges,
      # A word that is a token needs no merges.
      ignore_merges=splits in (_LLAMA3, _TEKKEN),
    )
  )
  if name == 'qwen2':  # the published tokenizers compose; llama.cpp does not
    backend.normalizer = normalizers.NFC()
  backend.pre_tokenizer = pre_tokenizers.Sequence(
    [
      *(pre_tokenizers.Split(Regex(split), 'isolated') for split in splits),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )
  backend.decoder = decoders.ByteLevel()
  return backend, splits == _LLAMA3


def _sentencepiece(values, tokens, types):
  """Returns a BPE with byte fallback whose merges are ordered by scores.

  Changes `tokens` and `types` of runs of spaces to those of normal pieces.
  """
  from tokenizers import Tokenizer, decoders, models, pre_tokenizers
  from tokenizers import normalizers as norms

  scores = _need(values, 'scores').tolist()
  if len(scores) < len(tokens):
    raise UserError(f'{len(tokens)} tokens, but {len(scores)} scores')
  # Gemma's runs of spaces are found before other pieces, shorter ones first:
  # so they are in its tokenizer.json. llama.cpp finds the longest run, which
  # differs for runs longer than all of these.
  for i, token in enumerate(tokens):
    if types[i] == _USER_DEFINED and token and not token.strip(' '):
      tokens[i], types[i] = _SPACE * len(token), _NORMAL
      scores[i] = 1e9 - len(token)
  ids = {t: i for i, t in enumerate(tokens) if types[i] == _NORMAL}
  unknown = values.get(_PREFIX + 'unknown_token_id', _LLAMA_IDS['unknown'])
  backend = Tokenizer(
    models.BPE(
      vocab={token: i for i, token in enumerate(tokens)},
      merges=tokenizer_export.merges(ids, scores),
      unk_token=tokens[unknown],
      fuse_unk=True,
      byte_fallback=_BYTE in types,
    )
  )
  parts = [
    decoders.Replace(_SPACE, ' '),
    decoders.ByteFallback(),
    decoders.Fuse(),
  ]
  if values.get(_PREFIX + 'add_space_prefix', True):
    # Only before the text, as in transformers: llama.cpp adds a space after
    # each special token too.
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
      replacement=_SPACE, prepend_scheme='first', split=False
    )
    parts.append(decoders.Strip(' ', 1, 0))
  else:
    backend.normalizer = norms.Replace(' ', _SPACE)
  backend.decoder = decoders.Sequence(parts)
  return backend, True
