"""The tokenizer of a model folder, of whichever kind it is."""

import importlib.util
import pathlib

from specsamp.data import hf_tokenizers, tokenizer_files, tokenizers
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError


def load(folder) -> Tokenizer:
  """Reads tokenizer.json, tokenizer.model or vocab.json with merges.txt.

  Args:
    folder: of a model; the first of these that is there and can be read.

  Raises:
    UserError: there is none, it needs a library that is not installed, or a
      file is not what it should be.
  """
  folder = pathlib.Path(folder)
  try:
    return _load(folder)
  except OSError as error:
    raise UserError(f'tokenizer {error.filename}: {error.strerror}') from None
  except UnicodeDecodeError:
    raise UserError(
      f'tokenizer {folder / hf_tokenizers.FILE}: not UTF-8 text'
    ) from None
  except UserError as error:
    raise UserError(f'tokenizer {folder}: {error}') from None


def _load(folder: pathlib.Path) -> Tokenizer:
  has = lambda name: (folder / name).is_file()
  files = tokenizer_files.read(folder)
  merges = has(hf_tokenizers.VOCAB) and has(hf_tokenizers.MERGES)
  library = importlib.util.find_spec('tokenizers') is not None
  if has(hf_tokenizers.FILE) and library:
    path = folder / hf_tokenizers.FILE
    return hf_tokenizers.HuggingFace(path.read_text(encoding='utf-8'), files)
  if has(tokenizers.FILE):
    path = folder / tokenizers.FILE
    return tokenizers.SentencePiece(path.read_bytes(), files)
  if merges and library:
    return hf_tokenizers.from_merges(folder, files)
  if has(hf_tokenizers.FILE) or merges:
    raise UserError("needs the tokenizers library; pip install 'specsamp[hf]'")
  raise UserError(
    f'no {hf_tokenizers.FILE} and no {tokenizers.FILE} in this folder'
  )
