"""Loads the tokenizer of a model's folder, of any kind."""

import importlib.util
import pathlib

from specsamp.data import hf_tokenizers, tokenizer_files, tokenizers
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError
from specsamp.utils import files


def load(folder) -> Tokenizer:
  """Reads tokenizer.json, tokenizer.model, or vocab.json with merges.txt.

  Args:
    folder: of a model; the first of these that exists and can be read counts.

  Raises:
    UserError: there is no such file, it is invalid, or it needs a library that
      is not installed.
  """
  folder = pathlib.Path(folder)
  with files.reading(f'tokenizer {folder}'):
    return _load(folder)


def _load(folder: pathlib.Path) -> Tokenizer:
  has = lambda name: (folder / name).is_file()
  special = tokenizer_files.read(folder)
  has_merges = has(hf_tokenizers.VOCAB) and has(hf_tokenizers.MERGES)
  has_library = importlib.util.find_spec('tokenizers') is not None
  if has(hf_tokenizers.FILE) and has_library:
    content = tokenizer_files.read_text(folder / hf_tokenizers.FILE)
    return hf_tokenizers.HuggingFace(content, special)
  if has(tokenizers.FILE):
    proto = (folder / tokenizers.FILE).read_bytes()
    return tokenizers.SentencePiece(proto, special)
  if has_merges and has_library:
    return hf_tokenizers.from_merges(folder, special)
  if has(hf_tokenizers.FILE) or has_merges:
    raise UserError("needs the tokenizers library; pip install 'specsamp[hf]'")
  raise UserError(
    f'no {hf_tokenizers.FILE} and no {tokenizers.FILE} in this folder'
  )
