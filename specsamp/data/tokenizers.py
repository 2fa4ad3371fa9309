"""Interface of tokenizers, and tokenizers that wrap a SentencePiece model."""

import abc
import hashlib
import io
import itertools
import os
import pathlib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from specsamp.data import chat
from specsamp.data.tokenizer_files import Files
from specsamp.errors import UserError
from specsamp.utils import files as file_utils

FILE = 'tokenizer.model'


class Meaning(NamedTuple):
  """Meaning of a token, which two tokenizers can share.

  Attributes:
    text: bytes that the token adds to a text; the name of a special token.
    role: 'text'; for special tokens 'special', or 'stop' if a completion ends.
  """

  text: bytes
  role: str


class Tokenizer(abc.ABC):
  """Map from text to token ids and back; a subclass implements a kind of model.

  Two tokenizers are equal if they were read from equal files.

  Attributes:
    files: special tokens and the chat template.
    vocab_size: largest id + 1.
    bos_id: token that begins a document, or -1.
    eos_id: token that ends a document, or -1.
    stop_ids: tokens that end a completion, `eos_id` first.
    digest: hash of the pieces and all of the above.
  """

  def __init__(self, content: bytes, files: Files, vocab_size: int):
    """Sets the attributes; `_id` must already work.

    Raises:
      UserError: a token that begins or ends texts is not a piece.
    """
    self.files = files
    self.vocab_size = vocab_size
    self.bos_id = self._named_id('bos_token', -1)
    self.eos_id = self._named_id('eos_token', next(iter(files.stop_ids), -1))
    if max(files.stop_ids, default=-1) >= vocab_size:
      raise UserError(
        f'eos_token_id: got {max(files.stop_ids)}, expected below {vocab_size}'
      )
    eos = (self.eos_id,) if self.eos_id >= 0 else ()
    self.stop_ids = tuple(dict.fromkeys(eos + files.stop_ids))
    self.digest = hashlib.sha256(
      b'\0'.join([type(self).__name__.encode(), files.to_json(), content])
    ).hexdigest()

  def _named_id(self, name: str, default: int) -> int:
    token = self.files.named.get(name)
    if token is None:
      return default
    i = self._id(token)
    if i is None:
      raise UserError(f'{name}: got {token!r}, which is not a piece')
    return i

  @abc.abstractmethod
  def _id(self, piece: str) -> int | None:
    """Returns the id of a piece, or None."""

  @abc.abstractmethod
  def _ids(self, text: str, bos: bool) -> list[int]:
    """Returns the ids of valid text, without eos; see `encode`."""

  @abc.abstractmethod
  def _text(self, ids: list[int]) -> str:
    """Returns the text of ids, without special tokens."""

  @abc.abstractmethod
  def pieces(self) -> list[str | None]:
    """Returns the pieces by id, [vocab_size]; None for unused ids."""

  @abc.abstractmethod
  def _kinds(self) -> tuple[Collection[int], Collection[int]]:
    """Returns the ids of special tokens, and of other literal pieces."""

  @abc.abstractmethod
  def save(self, folder) -> None:
    """Writes the files that `hf_tokenizers.load` reads."""

  def _bytes(self, piece: str) -> bytes:
    """Returns the bytes that a piece adds to a text."""
    byte = re.fullmatch('<0x([0-9A-F]{2})>', piece)
    return bytes.fromhex(byte[1]) if byte else piece.replace('▁', ' ').encode()

  def meanings(self) -> list[Meaning | None]:
    """Returns the meaning of each token, [vocab_size]; None for unused ids."""
    special, literal = map(frozenset, self._kinds())

    def meaning(i: int, piece: str) -> Meaning:
      if i in special or i in self.stop_ids:
        role = 'stop' if i in self.stop_ids else 'special'
        return Meaning(piece.encode(), role)
      text = piece.encode() if i in literal else self._bytes(piece)
      return Meaning(text, 'text')

    return [
      None if piece is None else meaning(i, piece)
      for i, piece in enumerate(self.pieces())
    ]

  def __eq__(self, other) -> bool:
    return isinstance(other, Tokenizer) and self.digest == other.digest

  def __hash__(self) -> int:
    return hash(self.digest)

  def encode(self, text: str, bos: bool = True, eos: bool = False) -> list[int]:
    """Returns the ids of a text, with the tokens that begin and end documents.

    Special tokens in the text are parsed if the files name them.

    Raises:
      UserError: the text cannot be encoded as UTF-8.
    """
    try:
      text.encode()
    except UnicodeEncodeError:
      raise UserError(f'not UTF-8 text: {text[:40]!r}') from None
    ids = self._ids(text, bos)
    if eos and self.eos_id >= 0:
      ids.append(self.eos_id)
    return ids

  def decode(self, ids: Sequence[int], after: Sequence[int] = ()) -> str:
    """Returns the text that tokens add to that of the tokens before them.

    A completion must be decoded after its prompt: a first token may lose its
    space, and the bytes of a character may belong to two tokens. Special tokens
    add nothing.
    """
    after = [int(i) for i in after]
    text = self._text(after + [int(i) for i in ids])
    # The text before may end in half a character, so its length does not help.
    return text[len(os.path.commonprefix([self._text(after), text])) :]

  def chat(
    self, messages: Sequence[dict[str, Any]], /, **variables: Any
  ) -> str:
    """Returns a conversation as the text before the model's next turn.

    The template writes bos if the model needs it: encode with bos=False. Each
    message has a role and its content. `variables` are further variables of
    the template, such as `enable_thinking=False`. As in transformers, a
    template ignores those that it does not know.

    Raises:
      UserError: a variable is reserved, or the template is missing or refuses
        these messages.
    """
    chat.check_variables(variables)
    if isinstance(messages, str):
      raise UserError(
        f'chat: got the text {messages!r}, expected a list of turns'
      )
    return chat.render(
      self.files.chat_template, messages, self.files.named, **variables
    )


class SentencePiece(Tokenizer):
  """A SentencePiece model; `proto` has the bytes of its `*.model` file."""

  def __init__(self, proto: bytes, files: Files | None = None):
    """Wraps a model; without files no text is parsed as a special token.

    Raises:
      UserError: the model is invalid, or the files do not fit it.
    """
    if not proto:  # SentencePiece would take it for an argument left out
      raise UserError('not a SentencePiece model: empty')
    try:
      self._processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    except RuntimeError as error:
      raise UserError(f'not a SentencePiece model: {error}') from None
    self.proto = proto
    files = files or Files()
    size = self._processor.vocab_size()
    self._added = {
      i: token['content'] for i, token in files.added.items() if i >= size
    }
    if sorted(self._added) != list(range(size, size + len(self._added))):
      raise UserError(
        f'added tokens: got ids {sorted(self._added)}, expected them to follow '
        f'the {size} pieces'
      )
    self._added_ids = {token: i for i, token in self._added.items()}
    files = files.naming(
      bos_token=self._piece(self._processor.bos_id()),
      eos_token=self._piece(self._processor.eos_id()),
    )
    special = {self._id(token) for token in files.special} - {None}
    added = {self._id(token['content']) for token in files.added.values()}
    self._silent = special | {
      i
      for i in range(size)
      if self._processor.is_control(i) or self._processor.is_unknown(i)
    }
    self._parsed = {}
    if files.parses:
      self._parsed = {self._piece(i): i for i in special | added - {None}}
      # Longest first: a token may begin with another.
      longest = sorted(self._parsed, key=len, reverse=True)
      self._pattern = re.compile(f'({"|".join(map(re.escape, longest))})')
      model = sentencepiece_model_pb2.ModelProto.FromString(proto)
      model.normalizer_spec.add_dummy_prefix = False
      self._later = sentencepiece.SentencePieceProcessor(
        model_proto=model.SerializeToString()
      )
    super().__init__(proto, files, size + len(self._added))

  @classmethod
  def load(cls, path) -> 'SentencePiece':
    """Reads a `*.model` file without the files next to it."""
    with file_utils.reading(f'tokenizer {path}'):
      return cls(pathlib.Path(path).read_bytes())

  def save(self, folder) -> None:
    (pathlib.Path(folder) / FILE).write_bytes(self.proto)
    self.files.write(folder, 'LlamaTokenizer')

  def pieces(self) -> list[str | None]:
    return [self._piece(i) for i in range(self.vocab_size)]

  def _kinds(self) -> tuple[Collection[int], Collection[int]]:
    return self._silent, self._added

  def _piece(self, i: int) -> str | None:
    if i < 0:
      return None
    return self._added.get(i) or self._processor.id_to_piece(i)

  def _id(self, piece: str) -> int | None:
    if piece in self._added_ids:
      return self._added_ids[piece]
    i = self._processor.piece_to_id(piece)  # the unknown piece's if missing
    return i if self._processor.id_to_piece(i) == piece else None

  def _ids(self, text: str, bos: bool) -> list[int]:
    bos = bos and self.files.adds_bos and self.bos_id >= 0
    ids = [self.bos_id] if bos else []
    if not self._parsed:
      return ids + self._processor.encode(text)
    # Only the first part of a text gets the model's dummy space, except in
    # legacy files.
    processor = self._processor
    for i, part in enumerate(self._pattern.split(text)):
      if i % 2:
        ids.append(self._parsed[part])
      elif part:
        ids += processor.encode(part)
      if not self.files.legacy:
        processor = self._later
    return ids

  def _text(self, ids: list[int]) -> str:
    text = ''
    visible = [i for i in ids if i not in self._silent]
    for is_added, run in itertools.groupby(visible, lambda i: i in self._added):
      if is_added:
        text += ''.join(self._added[i] for i in run)
      else:
        processor = self._later if text else self._processor
        text += processor.decode(list(run))
    return text


def train(texts: Iterable[str], vocab_size: int) -> SentencePiece:
  """Trains a BPE model that keeps every character, including white space.

  Runs of spaces may become one piece and a line break is one, so that source
  code takes few tokens. Bytes replace characters that are not in the texts. The
  only exception is U+2581, SentencePiece's sign for a space: it becomes one.

  Raises:
    UserError: the texts are too small or too large for the vocabulary.
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
  return SentencePiece(model.getvalue())


def _differing(
  target: Tokenizer, draft: Tokenizer
) -> list[tuple[int, str, str]]:
  """Returns the ids with different pieces, and both pieces."""
  if target == draft:
    return []
  pairs = zip(target.pieces(), draft.pieces(), strict=False)
  return [
    (i, *pair)
    for i, pair in enumerate(pairs)
    if pair[0] != pair[1] and None not in pair
  ]


def agree(target: Tokenizer, draft: Tokenizer) -> bool:
  """Returns True if `check_agree` accepts a pair."""
  return not _differing(target, draft)


def check_agree(target: Tokenizer, draft: Tokenizer) -> None:
  """Checks that a draft's token ids mean the same pieces as its target's.

  Either may have ids that the other lacks.

  Raises:
    UserError: an id has different pieces.
  """
  different = _differing(target, draft)
  if different:
    i, wanted, got = different[0]
    raise UserError(
      f'draft and target must share a tokenizer; {len(different)} tokens '
      f'differ, the first is {i}: {got!r} of the draft, {wanted!r} of the '
      'target; LanguageModel.translated_for makes such a draft fit'
    )
