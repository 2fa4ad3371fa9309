"""Tokenizers of models' folders; the `tokenizers` library reads their JSON."""

import dataclasses
import functools
import importlib.util
import pathlib
from collections.abc import Collection

from specsamp.data import tokenizer_files, tokenizers
from specsamp.data.tokenizer_files import Files
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError
from specsamp.utils import files as file_utils

FILE, VOCAB, MERGES = 'tokenizer.json', 'vocab.json', 'merges.txt'
_END = '<|endoftext|>'  # GPT-2's default token that begins and ends texts

# Class of transformers that reads a folder which names no class.
_KINDS = {
  'llama': 'LlamaTokenizer',
  'qwen2': 'Qwen2Tokenizer',
  'qwen3': 'Qwen2Tokenizer',
  'gpt2': 'GPT2Tokenizer',
  'opt': 'GPT2Tokenizer',
}


def load(folder) -> Tokenizer:
  """Reads tokenizer.json, tokenizer.model, or vocab.json with merges.txt.

  It uses the first of these files that exists and can be read.

  Raises:
    UserError: the files are missing, invalid, or need a library that is not
      installed.
  """
  folder = pathlib.Path(folder)
  has_json = (folder / FILE).is_file()
  has_merges = (folder / VOCAB).is_file() and (folder / MERGES).is_file()
  has_library = importlib.util.find_spec('tokenizers') is not None
  with file_utils.reading(f'tokenizer {folder}'):
    special = tokenizer_files.read(folder)
    if has_json and has_library:
      return HuggingFace((folder / FILE).read_text(encoding='utf-8'), special)
    if (folder / tokenizers.FILE).is_file():
      proto = (folder / tokenizers.FILE).read_bytes()
      return tokenizers.SentencePiece(proto, special)
    if has_merges and has_library:
      return _from_merges(folder, special)
    if has_json or has_merges:
      raise UserError("needs tokenizers, a library; pip install 'specsamp[hf]'")
    raise UserError(f'no {FILE} and no {tokenizers.FILE} in this folder')


class HuggingFace(Tokenizer):
  """A tokenizer.json with the ids of transformers' AutoTokenizer.

  Qwen2's class adds a normalizer to a file without one. In transformers that
  class also replaces the normalizer and pre-tokenizer in files of other
  tokenizers; here the file's parts are kept.
  """

  def __init__(self, content: str, files: Files):
    """Raises `UserError` if the content is invalid or the files do not fit."""
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend

    try:
      backend = Backend.from_str(content)
    except Exception as error:  # the library raises no narrower class
      reason = ' '.join(str(error).split())
      raise UserError(f'not a tokenizer.json: {reason}') from None
    backend.no_truncation()
    backend.no_padding()
    _apply_class(backend, files)
    backend.add_tokens([AddedToken(**token) for token in files.added.values()])
    for i, token in files.added.items():
      if (got := backend.token_to_id(token['content'])) != i:
        raise UserError(
          f'added_tokens_decoder: {token["content"]!r} is {got}, expected {i}'
        )
    self._backend = backend
    decoder = str(backend.decoder)
    self._is_byte_level = 'ByteLevel' in decoder
    self._has_literals = '▁' not in decoder
    files = dataclasses.replace(files, parses=True)
    if _kind(files) == 'GPT2Tokenizer' and self._id(_END) is not None:
      files = files.naming(bos_token=_END, eos_token=_END)
    if files.stop_ids:
      eos = backend.id_to_token(files.stop_ids[0])
      files = files.naming(eos_token=eos)
    backend.add_special_tokens(
      [t for t in files.special if self._id(t) is not None]
    )
    self._content = backend.to_str()
    size = max(backend.get_vocab().values(), default=-1) + 1
    super().__init__(self._content.encode(), files, size)

  def save(self, folder) -> None:
    path = pathlib.Path(folder) / FILE
    path.write_text(self._content, encoding='utf-8')
    self.files.write(folder, 'PreTrainedTokenizerFast')

  def pieces(self) -> list[str | None]:
    pieces = [None] * self.vocab_size
    for piece, i in self._backend.get_vocab().items():
      pieces[i] = piece
    return pieces

  def _kinds(self) -> tuple[Collection[int], Collection[int]]:
    added = self._backend.get_added_tokens_decoder()
    special = [i for i, token in added.items() if token.special]
    # A decoder that replaces the sign for a space does so in all tokens.
    return special, added if self._has_literals else ()

  def _bytes(self, piece: str) -> bytes:
    alphabet = _byte_alphabet()
    if not self._is_byte_level or not alphabet.keys() >= {*piece}:
      return super()._bytes(piece)
    return bytes(alphabet[letter] for letter in piece)

  def _id(self, piece: str) -> int | None:
    return self._backend.token_to_id(piece)

  def _ids(self, text: str, bos: bool) -> list[int]:
    return self._backend.encode(text, add_special_tokens=bos).ids

  def _text(self, ids: list[int]) -> str:
    return self._backend.decode(ids, skip_special_tokens=True)


@functools.cache
def _byte_alphabet() -> dict[str, int]:
  """Returns the byte of each letter in the pieces of a byte-level BPE.

  Printable characters of Latin-1 are their byte. The other bytes follow from
  256 on, in ascending order.
  """
  printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = [byte for byte in range(256) if byte not in printable]
  letters = [*printable, *range(256, 256 + len(others))]
  return dict(zip(map(chr, letters), printable + others, strict=True))


def _kind(files: Files) -> str | None:
  """Returns the class of transformers that reads these files, if known."""
  kind = files.raw.get('tokenizer_class')
  if kind is None:
    return _KINDS.get(files.raw.get('model_type'))
  return str(kind).removesuffix('Fast')


def _apply_class(backend, files: Files) -> None:
  """Replaces the parts of a tokenizer that transformers' class overrides.

  Qwen2's class composes characters. LLaMA's pre-tokenizer differs from the
  file's for texts that begin with a space or contain special tokens.
  """
  from tokenizers import normalizers, pre_tokenizers

  kind = _kind(files)
  if kind == 'Qwen2Tokenizer' and backend.normalizer is None:
    backend.normalizer = normalizers.NFC()
  if (
    kind != 'LlamaTokenizer'
    or files.raw.get('model_type') not in (None, 'llama')
    or 'ByteLevel' in f'{backend.pre_tokenizer}{backend.decoder}'  # LLaMA 3
  ):
    return
  scheme = 'always' if files.legacy else 'first'
  if files.raw.get('add_prefix_space') is False:
    scheme = 'never'
  backend.normalizer = None
  backend.pre_tokenizer = pre_tokenizers.Metaspace(
    replacement='▁', prepend_scheme=scheme, split=False
  )


def _from_merges(folder: pathlib.Path, files: Files) -> HuggingFace:
  """Reads vocab.json and merges.txt of GPT-2 and OPT."""
  from tokenizers import Tokenizer as Backend
  from tokenizers import decoders, models, pre_tokenizers, processors

  if _kind(files) != 'GPT2Tokenizer':
    raise UserError(
      f'{VOCAB} and {MERGES} of {_kind(files)!r}: expected those of a '
      f"'GPT2Tokenizer', or a {FILE}"
    )
  try:
    model = models.BPE.from_file(str(folder / VOCAB), str(folder / MERGES))
  except Exception as error:  # the library raises no narrower class
    reason = ' '.join(str(error).split())
    raise UserError(f'{VOCAB} and {MERGES}: {reason}') from None
  backend = Backend(model)
  prefix = bool(files.raw.get('add_prefix_space'))
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
  backend.decoder = decoders.ByteLevel()
  if files.raw.get('add_bos_token'):
    bos = files.named.get('bos_token', _END)
    backend.post_processor = processors.TemplateProcessing(
      single=f'{bos} $A', special_tokens=[(bos, backend.token_to_id(bos))]
    )
  return HuggingFace(backend.to_str(), files)
