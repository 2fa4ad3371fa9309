"""Tokenizers of a `tokenizer.json`, read by the `tokenizers` library."""

import dataclasses
import pathlib

from specsamp.data.tokenizer_files import Files
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError

FILE, VOCAB, MERGES = 'tokenizer.json', 'vocab.json', 'merges.txt'
_MAX_IDS = 2**24  # the library counts up to the largest id, and we list all
_END = '<|endoftext|>'  # begins and ends texts of GPT-2, by default


class HuggingFace(Tokenizer):
  """A tokenizer.json: the ids are those of transformers' AutoTokenizer.

  Qwen2's class normalizes where the file does not. Where a class has its own
  normalizer or its own rule for cutting a text in place of the file's (Qwen2's,
  with another tokenizer), the file's is kept.
  """

  def __init__(self, content: str, files: Files):
    """Needs the `tokenizers` library.

    Args:
      content: of a tokenizer.json.
      files: what stands beside it.

    Raises:
      UserError: no tokenizer.json, or the files don't fit it.
    """
    import tokenizers

    try:
      backend = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises nothing narrower
      reason = ' '.join(str(error).split())
      raise UserError(f'not a tokenizer.json: {reason}') from None
    backend.no_truncation()
    backend.no_padding()
    _as_transformers(backend, files)
    try:
      backend.add_tokens(
        [tokenizers.AddedToken(**token) for token in files.added.values()]
      )
    except TypeError as error:
      raise UserError(f'added_tokens_decoder: {error}') from None
    for i, token in files.added.items():
      if (got := backend.token_to_id(token['content'])) != i:
        raise UserError(
          f'added_tokens_decoder: {token["content"]!r} is {got}, expected {i}'
        )
    self._backend = backend
    files = dataclasses.replace(files, parses=True)
    if _kind(files) == 'GPT2Tokenizer' and self._id(_END) is not None:
      files = files.naming(bos_token=_END, eos_token=_END)
    if files.stop_ids:
      eos = backend.id_to_token(files.stop_ids[0])
      files = files.naming(eos_token=eos)
    backend.add_special_tokens(
      [t for t in files.special if self._id(t) is not None]
    )
    size = _size(backend)
    self._content = backend.to_str()
    super().__init__(self._content.encode(), files, size)

  def save(self, folder) -> None:
    path = pathlib.Path(folder) / FILE
    path.write_text(self._content, encoding='utf-8')
    self.files.write(folder, 'PreTrainedTokenizerFast')

  def pieces(self) -> list[str | None]:
    found = [None] * self.vocab_size
    for piece, i in self._backend.get_vocab().items():
      found[i] = piece
    return found

  def _id(self, piece: str) -> int | None:
    return self._backend.token_to_id(piece)

  def _ids(self, text: str, bos: bool) -> list[int]:
    return self._backend.encode(text, add_special_tokens=bos).ids

  def _text(self, ids: list[int]) -> str:
    return self._backend.decode(ids, skip_special_tokens=True)


def _kind(files: Files) -> str | None:
  """The class of transformers that reads such a folder, if it is named."""
  kind = files.raw.get('tokenizer_class')
  if kind is None:
    gpt2 = 'GPT2Tokenizer'
    qwen = 'Qwen2Tokenizer'
    classes = {
      'llama': 'LlamaTokenizer',
      'qwen2': qwen,
      'qwen3': qwen,
      'gpt2': gpt2,
      'opt': gpt2,
    }
    return classes.get(files.raw.get('model_type'))
  return str(kind).removesuffix('Fast')


def _as_transformers(backend, files: Files) -> None:
  """Sets what transformers' classes have in place of the file's.

  Qwen2's normalizes to composed characters. LLaMA's has a pre-tokenizer that
  differs from the file's in texts that begin with a space or hold special
  tokens.
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


def _size(backend) -> int:
  """Returns the highest id + 1; `UserError` if no vocabulary is so large."""
  largest = max(backend.get_vocab().values(), default=-1)
  if largest >= _MAX_IDS:
    raise UserError(f'got the id {largest}, expected below {_MAX_IDS}')
  return largest + 1


def from_merges(folder: pathlib.Path, files: Files) -> HuggingFace:
  """Reads vocab.json and merges.txt, which GPT-2 and OPT have.

  Raises:
    UserError: another model's files, or they are not what they should be.
  """
  import tokenizers
  from tokenizers import decoders, models, pre_tokenizers, processors

  if _kind(files) != 'GPT2Tokenizer':
    raise UserError(
      f'{VOCAB} and {MERGES} of {_kind(files)!r}: expected those of a '
      f"'GPT2Tokenizer', or a {FILE}"
    )
  try:
    model = models.BPE.from_file(str(folder / VOCAB), str(folder / MERGES))
  except Exception as error:  # the library raises nothing narrower
    reason = ' '.join(str(error).split())
    raise UserError(f'{VOCAB} and {MERGES}: {reason}') from None
  backend = tokenizers.Tokenizer(model)
  space = bool(files.raw.get('add_prefix_space'))
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
  backend.decoder = decoders.ByteLevel()
  if files.raw.get('add_bos_token'):
    bos = files.named.get('bos_token', _END)
    if (i := backend.token_to_id(bos)) is None:
      raise UserError(f'bos_token: got {bos!r}, which is not a piece')
    backend.post_processor = processors.TemplateProcessing(
      single=f'{bos} $A', special_tokens=[(bos, i)]
    )
  _size(backend)
  return HuggingFace(backend.to_str(), files)
