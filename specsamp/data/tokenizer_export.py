"""SentencePiece models as files that transformers and vLLM read."""

import dataclasses
import json
import pathlib

from sentencepiece import sentencepiece_model_pb2

from specsamp.data import hf_tokenizers
from specsamp.data.tokenizers import SentencePiece
from specsamp.errors import UserError

_Proto = sentencepiece_model_pb2.ModelProto
_Piece = _Proto.SentencePiece
_SPACE = '▁'  # stands for a space in pieces


def export(tokenizer: SentencePiece, folder) -> None:
  """Writes tokenizer.json and tokenizer_config.json.

  Their ids and texts are the model's own, but that control pieces in a text
  are parsed, as transformers does, and that bytes in a row which are not all
  of characters are each shown as U+FFFD.

  Args:
    tokenizer: a BPE model that changes no character but spaces.
    folder: where; it must be there.

  Raises:
    UserError: another kind of model.
  """
  model = _Proto.FromString(tokenizer.proto)
  _check(model)
  silent = {_Piece.CONTROL, _Piece.UNKNOWN}
  special = [i for i, p in enumerate(model.pieces) if p.type in silent]
  symbols = [
    i for i, p in enumerate(model.pieces) if p.type == _Piece.USER_DEFINED
  ]
  prefix = model.normalizer_spec.add_dummy_prefix
  if prefix and symbols:
    raise UserError(
      'tokenizer export: a dummy prefix beside user-defined symbols has no '
      'counterpart in a tokenizer.json'
    )
  spaces = {
    'type': 'Replace', 'pattern': {'String': ' '}, 'content': _SPACE,
  }  # fmt: skip
  first = {'type': 'Prepend', 'prepend': _SPACE}
  decoders = [
    {'type': 'Replace', 'pattern': {'String': _SPACE}, 'content': ' '},
    {'type': 'ByteFallback'},
    {'type': 'Fuse'},
  ]
  if prefix:
    decoders.append({'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0})
  unknown = next(p.piece for p in model.pieces if p.type == _Piece.UNKNOWN)
  values = {
    'version': '1.0',
    'truncation': None,
    'padding': None,
    'added_tokens': [
      {
        'id': i,
        'content': model.pieces[i].piece,
        'single_word': False,
        'lstrip': False,
        'rstrip': False,
        'normalized': i in symbols,  # found where spaces are replaced
        'special': i not in symbols,
      }
      for i in sorted(special + symbols)
    ],
    'normalizer': {
      'type': 'Sequence', 'normalizers': [first] * prefix + [spaces],
    },
    'pre_tokenizer': None,
    'post_processor': _starts_with(tokenizer),
    'decoder': {'type': 'Sequence', 'decoders': decoders},
    'model': {
      'type': 'BPE',
      'dropout': None,
      'unk_token': unknown,
      'continuing_subword_prefix': None,
      'end_of_word_suffix': None,
      'fuse_unk': True,
      'byte_fallback': model.trainer_spec.byte_fallback,
      'ignore_merges': False,
      'vocab': {p.piece: i for i, p in enumerate(model.pieces)},
      'merges': _merges(model),
    },
  }  # fmt: skip
  text = json.dumps(values, indent=1, ensure_ascii=False)
  path = pathlib.Path(folder) / hf_tokenizers.FILE
  path.write_text(text + '\n', encoding='utf-8')
  files = dataclasses.replace(tokenizer.files, parses=True)
  files.naming(unk_token=unknown).write(folder, 'PreTrainedTokenizerFast')


def _check(model: _Proto) -> None:
  trainer, normalizer = model.trainer_spec, model.normalizer_spec
  refused = {
    'a model that is not BPE': trainer.model_type != trainer.BPE,
    f'the normalizer {normalizer.name!r}': normalizer.precompiled_charsmap,
    'a normalizer that removes spaces': normalizer.remove_extra_whitespaces,
    'spaces that stay spaces': not normalizer.escape_whitespaces,
    'spaces as suffixes': trainer.treat_whitespace_as_suffix,
    'unused pieces': any(p.type == _Piece.UNUSED for p in model.pieces),
  }
  for what, found in refused.items():
    if found:
      raise UserError(
        f'tokenizer export: got {what}, expected BPE over unchanged text'
      )


def _merges(model: _Proto) -> list[list[str]]:
  """Pairs that become a piece, the piece with the best score first.

  Only normal pieces are made by merging. Of the pairs of one piece the one
  whose parts have the lower ids comes first.
  """
  ids = {
    p.piece: i for i, p in enumerate(model.pieces) if p.type == _Piece.NORMAL
  }
  merges = []
  for piece in sorted(ids, key=lambda p: (-model.pieces[ids[p]].score, ids[p])):
    pairs = [(piece[:n], piece[n:]) for n in range(1, len(piece))]
    pairs = [(a, b) for a, b in pairs if a in ids and b in ids]
    merges += sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
  return [list(pair) for pair in merges]


def _starts_with(tokenizer: SentencePiece):
  """The post-processor that writes bos, None without one."""
  if tokenizer.bos_id < 0 or not tokenizer.files.adds_bos:
    return None
  bos = tokenizer.pieces()[tokenizer.bos_id]
  text = {'Sequence': {'id': 'A', 'type_id': 0}}
  start = {'SpecialToken': {'id': bos, 'type_id': 0}}
  second = {'Sequence': {'id': 'B', 'type_id': 1}}
  return {
    'type': 'TemplateProcessing',
    'single': [start, text],
    'pair': [start, text, second],
    'special_tokens': {
      bos: {'id': bos, 'ids': [tokenizer.bos_id], 'tokens': [bos]}
    },
  }
