"""Tokenizers of a `tokenizer.json`, read by the `tokenizers` library."""

import dataclasses
import pathlib

from specsamp.data.tokenizer_files import Files
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError

FILE, VOCAB, MERGES = 'tokenizer.json', 'vocab.json', 'merges.txt'


class HuggingFace(Tokenizer):
  """A tokenizer.json: the ids are those of transformers' AutoTokenizer."""

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
    backend.add_special_tokens(
      [t for t in files.special if backend.token_to_id(t) is not None]
    )
    self._backend = backend
    files = dataclasses.replace(files, parses=True).naming(
      bos_token=self._piece(files.bos_id),
      eos_token=self._piece(next(iter(files.stop_ids), -1)),
    )
    self._content = backend.to_str()
    size = max(backend.get_vocab().values(), default=-1) + 1
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

  def _piece(self, i: int) -> str | None:
    return self._backend.id_to_token(i) if i >= 0 else None

  def _id(self, piece: str) -> int | None:
    return self._backend.token_to_id(piece)

  def _ids(self, text: str, bos: bool) -> list[int]:
    return self._backend.encode(text, add_special_tokens=bos).ids

  def _text(self, ids: list[int]) -> str:
    return self._backend.decode(ids, skip_special_tokens=True)


def _as_transformers(backend, files: Files) -> None:
  """transformers gives LLaMA's tokenizers a pre-tokenizer of its own.

  It differs from the file's in texts that begin with a space or hold special
  tokens.
  """
  from tokenizers import pre_tokenizers

  kind, model = files.raw.get('tokenizer_class'), files.raw.get('model_type')
  if kind is None and model == 'llama':
    kind = 'LlamaTokenizer'
  if (
    kind not in ('LlamaTokenizer', 'LlamaTokenizerFast')
    or model not in (None, 'llama')
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


def from_merges(folder: pathlib.Path, files: Files) -> HuggingFace:
  """Reads vocab.json and merges.txt, which GPT-2 and OPT have.

  Raises:
    UserError: another model's files, or they are not what they should be.
  """
  import tokenizers
  from tokenizers import decoders, models, pre_tokenizers, processors

  kind = files.raw.get('tokenizer_class') or 'GPT2Tokenizer'
  if kind.removesuffix('Fast') != 'GPT2Tokenizer':
    raise UserError(
      f'{VOCAB} and {MERGES} of {kind!r}: expected GPT-2, or a {FILE}'
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
  end = '<|endoftext|>'
  if backend.token_to_id(end) is not None:
    files = files.naming(bos_token=end, eos_token=end)
  bos = files.named.get('bos_token')
  if files.raw.get('add_bos_token') and bos is not None:
    if (i := backend.token_to_id(bos)) is None:
      raise UserError(f'bos_token: got {bos!r}, which is not a piece')
    backend.post_processor = processors.TemplateProcessing(
      single=f'{bos} $A', special_tokens=[(bos, i)]
    )
  return HuggingFace(backend.to_str(), files)
