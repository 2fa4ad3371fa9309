"""Writes SentencePiece models as files that transformers and vLLM read."""

import dataclasses
import pathlib
from collections.abc import Sequence

from sentencepiece import sentencepiece_model_pb2

from specsamp.data import hf_tokenizers
from specsamp.data.tokenizers import SentencePiece
from specsamp.errors import UserError

_Proto = sentencepiece_model_pb2.ModelProto
_Piece = _Proto.SentencePiece
_SPACE = '▁'  # a space in pieces


def export(tokenizer: SentencePiece, folder) -> None:
  """Writes tokenizer.json and tokenizer_config.json.

  Ids and texts are the model's, with two exceptions: control pieces in a text
  are parsed, as in transformers, and each of several consecutive bytes that are
  not characters becomes one U+FFFD.

  Raises:
    UserError: the model is of another kind, or the tokenizers library is not
      installed.
  """
  model = _Proto.FromString(tokenizer.proto)
  _check(model)
  try:
    import tokenizers
    from tokenizers import decoders, models, normalizers, processors
  except ImportError:
    raise UserError(
      'tokenizer export: needs the tokenizers library; pip install '
      "'specsamp[hf]'"
    ) from None
  unknown = next(p.piece for p in model.pieces if p.type == _Piece.UNKNOWN)
  ids = {
    p.piece: i for i, p in enumerate(model.pieces) if p.type == _Piece.NORMAL
  }
  backend = tokenizers.Tokenizer(
    models.BPE(
      vocab={p.piece: i for i, p in enumerate(model.pieces)},
      merges=merges(ids, [p.score for p in model.pieces]),
      unk_token=unknown,
      fuse_unk=True,
      byte_fallback=model.trainer_spec.byte_fallback,
    )
  )
  prefix = model.normalizer_spec.add_dummy_prefix
  backend.normalizer = normalizers.Sequence(
    [normalizers.Prepend(_SPACE)] * prefix + [normalizers.Replace(' ', _SPACE)]
  )
  backend.decoder = decoders.Sequence(
    [
      decoders.Replace(_SPACE, ' '),
      decoders.ByteFallback(),
      decoders.Fuse(),
      *[decoders.Strip(' ', 1, 0)] * prefix,
    ]
  )
  if tokenizer.bos_id >= 0 and tokenizer.files.adds_bos:
    bos = tokenizer.pieces()[tokenizer.bos_id]
    backend.post_processor = processors.TemplateProcessing(
      single=[bos, '$A'],
      pair=[bos, '$A', '$B:1'],
      special_tokens=[(bos, tokenizer.bos_id)],
    )

  def tokens(*types, special: bool) -> list[tokenizers.AddedToken]:
    return [
      tokenizers.AddedToken(p.piece, special=special, normalized=not special)
      for p in model.pieces
      if p.type in types
    ]

  silent = tokens(_Piece.CONTROL, _Piece.UNKNOWN, special=True)
  backend.add_special_tokens(silent)
  # Symbols are found after spaces are replaced.
  backend.add_tokens(tokens(_Piece.USER_DEFINED, special=False))
  backend.save(str(pathlib.Path(folder) / hf_tokenizers.FILE))
  files = dataclasses.replace(tokenizer.files, parses=True)
  files.naming(unk_token=unknown).write(folder, 'PreTrainedTokenizerFast')


def _check(model: _Proto) -> None:
  trainer, normalizer = model.trainer_spec, model.normalizer_spec
  kinds = {p.type for p in model.pieces}
  if (
    trainer.model_type != trainer.BPE
    or trainer.treat_whitespace_as_suffix
    or normalizer.precompiled_charsmap
    or normalizer.remove_extra_whitespaces
    or not normalizer.escape_whitespaces
    or _Piece.UNUSED in kinds
    or (normalizer.add_dummy_prefix and _Piece.USER_DEFINED in kinds)
  ):
    raise UserError(
      'tokenizer export: expected a BPE model over unchanged text, without '
      'unused pieces or user-defined symbols after a dummy prefix'
    )


def merges(
  ids: dict[str, int], scores: Sequence[float]
) -> list[tuple[str, str]]:
  """Returns the pairs that become a piece, by the piece's score.

  If several pairs become one piece, the pair with the lower ids comes first.

  Args:
    ids: the normal pieces, from which and to which pairs are merged.
    scores: scores by id.
  """
  result = []
  for piece in sorted(ids, key=lambda p: (-scores[ids[p]], ids[p])):
    pairs = [(piece[:n], piece[n:]) for n in range(1, len(piece))]
    pairs = [(a, b) for a, b in pairs if a in ids and b in ids]
    result += sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
  return result
