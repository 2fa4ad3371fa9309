"""Models in the format of transformers and vLLM: load and save."""

import dataclasses
import pathlib
from types import ModuleType
from typing import Any

import numpy as np
from jax.sharding import Mesh

from specsamp.checkpoints import dtypes, folders, layouts, tensor_files, weights
from specsamp.checkpoints.huggingface import families
from specsamp.data import hf_tokenizers, tokenizer_export
from specsamp.data.tokenizers import SentencePiece, Tokenizer
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, TransformerConfig, param_shapes
from specsamp.models.config import Dtype
from specsamp.sharding import mesh as meshes
from specsamp.sharding.rules import MODEL
from specsamp.utils import distributed, files

_HEAD = 'lm_head.weight'


def load(
  path, mesh: Mesh | None = None, dtype: Dtype | None = None, kind: str = ''
) -> LanguageModel:
  """Reads a folder of transformers; see `model_dir.load`.

  Embedding rows that have no piece in the tokenizer get probability 0. Of a
  multimodal model only the text model is read; `heads` reads modules of
  multi-token prediction. Each device reads only its slices of the tensors.
  """
  path = pathlib.Path(path)
  what = f'model {path}'
  values, family, config = read_config(path)
  tokenizer = hf_tokenizers.load(path)
  tensors = tensor_files.in_folder(path)
  if families.TEXT in values:
    tensors = families.text_tensors(tensors)
  if drafters := families.mtp_prefixes(values, config.num_layers):
    tensors = {
      name: stored
      for name, stored in tensors.items()
      if not name.startswith(drafters)
    }
  if not any(name.startswith(family.BASE) for name in tensors):
    # Files of the bare model lack the prefix.
    tensors = {
      name if name == _HEAD else family.BASE + name: stored
      for name, stored in tensors.items()
    }
  layout = family.layout(config)
  if _HEAD in tensors and config.tied_embeddings:
    # The tensors decide, as in transformers: an LM head that equals the
    # embedding, or replaces it, is the embedding; another one is not tied.
    key = layout['embedding'].slices[0].key
    lm_head = tensors[_HEAD]
    if key not in tensors or np.array_equal(
      tensors[key].read(), lm_head.read()
    ):
      tensors[key] = tensors.pop(_HEAD)
    else:
      config = dataclasses.replace(config, tied_embeddings=False)
      layout = family.layout(config)
  is_missing = _HEAD not in tensors and not config.tied_embeddings
  layouts.check(
    what + ': tie_word_embeddings is false' * is_missing,
    layout,
    weights.sizes(param_shapes(Transformer(config))),
    tensors,
  )
  return from_tensors(
    what, config, layout, tensors, tokenizer, mesh, dtype, kind
  )


def from_tensors(
  what: str,
  config: TransformerConfig,
  layout: layouts.Layout,
  tensors: dict[str, tensor_files.Stored],
  tokenizer: Tokenizer,
  mesh: Mesh | None,
  dtype: Dtype | None,
  kind: str = '',
) -> LanguageModel:
  """Reads the tensors of a layout; see `model_dir.load`.

  Embedding rows that have no piece in the tokenizer are padding. `what` begins
  errors and warnings.
  """
  # The vocabulary is padded to a multiple of the shards.
  shards = mesh.shape[MODEL] if mesh else 1
  rows = -(-config.vocab_size // shards) * shards
  default = dtypes.default_dtype(tensors.values())
  config = dataclasses.replace(
    config,
    vocab_size=rows,
    padding=rows - min(config.vocab_size, tokenizer.vocab_size),
    dtype=dtypes.choose(what, dtype, default, mesh),
  )
  shapes = param_shapes(Transformer(config))
  sizes = weights.sizes(shapes)
  read = lambda name, index: layouts.read(
    tensors, layout[name], sizes[name], index
  )
  config, params, stored_as = dtypes.read_in_range(
    what,
    config,
    dtype is not None,
    lambda dtype: weights.place(shapes, dtype, mesh, read),
    kind,
  )
  return LanguageModel(Transformer(config), params, tokenizer, stored_as)


def save(model: LanguageModel, path) -> None:
  """Writes a folder that transformers and vLLM load.

  A folder that holds only a model of specsamp is replaced by a rename. All
  processes of a run must call this, and the first one writes. Tensors have the
  dtype that the model computes in; padded rows of the vocabulary are omitted.

  Raises:
    UserError: no architecture of transformers computes the same function, the
      weights are quantized, or the tokenizer cannot be written as a
      tokenizer.json.
  """
  model.check_untranslated(f'model {path}')
  config = model.config
  if model.weights:
    raise UserError(
      f'model: its weights are {model.weights}; transformers reads floats, '
      'which another load of the model has'
    )
  values = families.write(config)
  layout = families.of(values).layout(config)
  dtype = np.dtype(config.dtype)
  params = weights.flat(model.params)
  sizes = weights.sizes(model.params)
  for name, source in layout.items():
    sizes[name] = tuple(
      config.num_tokens if axis == 'v' else size
      for axis, size in zip(source.words, sizes[name], strict=True)
    )

  def fetch(name: str) -> np.ndarray:
    return meshes.fetch(params[name])[tuple(map(slice, sizes[name]))]

  bos, stop_ids = model.tokenizer.bos_id, list(model.tokenizer.stop_ids)
  values |= {
    'bos_token_id': bos if bos >= 0 else None,
    'eos_token_id': stop_ids[0] if len(stop_ids) == 1 else stop_ids or None,
    'pad_token_id': None,  # some classes have a default beyond a small table
    'dtype': dtype.name,
  }
  with weights.new_folder(path, values) as folder:
    if distributed.is_first():
      if isinstance(model.tokenizer, SentencePiece):
        tokenizer_export.export(model.tokenizer, folder)
      else:
        model.tokenizer.save(folder)
    layouts.export(folder, layout, sizes, fetch, dtype)


def read_config(
  path: pathlib.Path,
) -> tuple[dict[str, Any], ModuleType, TransformerConfig]:
  """Returns the values of a folder's config.json, the family and the config."""
  values = folders.read_config('model', path)
  with files.reading(f'model {path / folders.CONFIG}'):
    text = families.text_config(values)
    family = families.of(text)
    return values, family, family.read(text)
