"""SentencePiece tokenizers: text to token ids and back."""

import io
import pathlib
from collections.abc import Iterable, Sequence

import sentencepiece

from specsamp.errors import UserError


class Tokenizer:
  """A SentencePiece model.

  Attributes:
    proto: the serialized model, the bytes of a `.model` file.
    vocab_size: number of pieces.
    bos_id: starts every document; -1 if the model has none.
    eos_id: ends every document; -1 if the model has none.
  """

  def __init__(self, proto: bytes):
    """Raises `UserError` if `proto` is not a SentencePiece model."""
    if not proto:  # which SentencePiece takes for no model at all
      raise UserError('not a SentencePiece model: empty')
    try:
      self._processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    except RuntimeError as error:
      raise UserError(f'not a SentencePiece model: {error}') from None
    self.proto = proto
    self.vocab_size = self._processor.vocab_size()
    self.bos_id = self._processor.bos_id()
    self.eos_id = self._processor.eos_id()

  def __eq__(self, other) -> bool:
    return isinstance(other, Tokenizer) and self.proto == other.proto

  def __hash__(self) -> int:
    return hash(self.proto)

  @classmethod
  def load(cls, path) -> 'Tokenizer':
    try:
      return cls(pathlib.Path(path).read_bytes())
    except OSError as error:
      raise UserError(f'tokenizer {path}: {error.strerror}') from None
    except UserError as error:
      raise UserError(f'tokenizer {path}: {error}') from None

  def save(self, path) -> None:
    pathlib.Path(path).write_bytes(self.proto)

  def encode(self, text: str, bos: bool = True, eos: bool = False) -> list[int]:
    try:
      ids = self._processor.encode(text)
    except (RuntimeError, UnicodeError):
      raise UserError(f'not UTF-8 text: {text[:40]!r}') from None
    if bos and self.bos_id >= 0:
      ids.insert(0, self.bos_id)
    if eos and self.eos_id >= 0:
      ids.append(self.eos_id)
    return ids

  def decode(self, ids: Sequence[int]) -> str:
    return self._processor.decode([int(i) for i in ids])


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
  """Trains a BPE model that keeps every character, white space included.

  Runs of spaces may become one piece and a line break is one, so that source
  code stays short; bytes stand in for characters not seen in training. The one
  exception is U+2581, SentencePiece's own sign for a space: it becomes one.

  Raises:
    UserError: the texts hold too little, or too much, for the vocabulary.
  """
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=(
        line for text in texts for line in text.splitlines() if line
      ),
      model_writer=model,
      model_type='bpe',
      vocab_size=vocab_size,
      character_coverage=0.9999,
      byte_fallback=True,
      normalization_rule_name='identity',
      add_dummy_prefix=False,
      remove_extra_whitespaces=False,
      allow_whitespace_only_pieces=True,
      user_defined_symbols=['\n'],
      max_sentence_length=1 << 16,
      minloglevel=2,
    )
  except RuntimeError as error:
    raise UserError(
      f'tokenizer: {vocab_size} pieces cannot be trained on these texts: '
      + ' '.join(str(error).split())
    ) from None
  return Tokenizer(model.getvalue())
