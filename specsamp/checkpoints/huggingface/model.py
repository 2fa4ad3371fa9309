"""Models in the format of transformers and vLLM: load and save."""

import dataclasses
import pathlib
from typing import Any

import numpy as np
from jax.sharding import Mesh

from specsamp.checkpoints import (
  dtypes,
  folders,
  layouts,
  tensor_files,
  weights,
)
from specsamp.checkpoints.huggingface import families, tensor_export
from specsamp.checkpoints.huggingface.families.family import Family
from specsamp.checkpoints.layouts import Layout
from specsamp.checkpoints.tensor_files import Stored
from specsamp.data import tokenizer_dir, tokenizer_export
from specsamp.data.tokenizers import SentencePiece
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, TransformerConfig, param_shapes
from specsamp.models.config import Dtype
from specsamp.sharding import mesh as meshes
from specsamp.sharding.rules import MODEL
from specsamp.utils import distributed, files

_HEAD = 'lm_head.weight'
_ROWS = 4096  # of matrices that are compared, at a time


def load(
  path,
  mesh: Mesh | None = None,
  dtype: Dtype | None = None,
) -> LanguageModel:
  """Reads a folder with a config.json, safetensors and a tokenizer.

  The families are LLaMA 1 to 3 and Vicuna, Mistral, Qwen2 and 3, OPT and GPT-2.
  A sliding window bounds the length of sequences. Rows of the embedding without
  a piece of the tokenizer have probability 0. Each device reads only its slices
  of the tensors.

  Args:
    path: folder.
    mesh: devices to place the model on; None is one device.
    dtype: to compute in. None is float32 on CPUs and for 32-bit weights, else
      bfloat16. On GPUs without bfloat16 it is float16, or float32 if a weight
      exceeds float16; the log has which.

  Raises:
    UserError: a file is missing, truncated or corrupt, or a pickle; the
      architecture or a value of the config is not supported; tensors are
      missing, unused or of other shapes; the model does not divide into the
      mesh's shards; dtype is float16 and a weight exceeds it.
  """
  path = pathlib.Path(path)
  what = f'model {path}'
  _, family, config = read_config(path)
  tokenizer = tokenizer_dir.load(path)
  tensors = tensor_files.in_folder(path)
  tensors = {
    name: tensors[stored] for name, stored in family.rename(tensors).items()
  }
  if _HEAD in tensors and config.tied_embeddings:
    config = _resolve_tied(config, family.layout(config), tensors)
  layout = family.layout(config)
  is_missing = _HEAD not in tensors and not config.tied_embeddings
  layouts.check(
    what + ': tie_word_embeddings is false' * is_missing,
    layout,
    _sizes(param_shapes(Transformer(config))),
    tensors,
  )
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
  sizes = _sizes(shapes)
  read = lambda name, index: layouts.read(
    tensors, layout[name], sizes[name], index
  )
  config, params, stored_as = dtypes.read_in_range(
    what,
    config,
    dtype is not None,
    lambda dtype: weights.place(shapes, dtype, mesh, read),
  )
  return LanguageModel(Transformer(config), params, tokenizer, stored_as)


def save(model: LanguageModel, path) -> None:
  """Writes a folder that transformers and vLLM load.

  A folder that holds only a model of specsamp is replaced by a rename. All
  processes of a run must call this, and the first one writes. Tensors have the
  dtype that the model computes in; padded rows of the vocabulary are left out.

  Args:
    model: the model.
    path: folder.

  Raises:
    UserError: no architecture of transformers computes the same function, or
      the tokenizer cannot be written as a tokenizer.json.
  """
  config = model.config
  values = families.write(config)
  layout = families.of(values).layout(config)
  dtype = np.dtype(config.dtype)
  params = weights.flat(model.params)
  sizes = _sizes(model.params)
  for name, source in layout.items():
    sizes[name] = tuple(
      config.num_tokens if axis == 'v' else size
      for axis, size in zip(source.axes, sizes[name], strict=True)
    )

  def fetch(name: str) -> np.ndarray:
    value = meshes.fetch(params[name]).astype(dtype)
    return value[tuple(map(slice, sizes[name]))]

  values |= _special_tokens(model) | {'dtype': dtype.name}
  with weights.new_folder(path, values) as folder:
    if distributed.is_first():
      if isinstance(model.tokenizer, SentencePiece):
        tokenizer_export.export(model.tokenizer, folder)
      else:
        model.tokenizer.save(folder)
    tensor_export.write(folder, layout, sizes, dtype, fetch)


def read_config(
  path: pathlib.Path,
) -> tuple[dict[str, Any], Family, TransformerConfig]:
  """Returns the values of a folder's config.json, the family and the config.

  Raises:
    UserError: the file is missing, or its architecture or a value is not
      supported.
  """
  values = folders.read_config('model', path)
  with files.reading(f'model {path / folders.CONFIG}'):
    family = families.of(values)
    return values, family, family.read(values)


def _resolve_tied(
  config: TransformerConfig, layout: Layout, tensors: dict[str, Stored]
) -> TransformerConfig:
  """Returns the config of a tied model whose files have an LM head.

  The tensors decide, as in transformers: an LM head that equals the embedding,
  or replaces it, is the embedding; another one is not tied.
  """
  key = layout['embedding'].slices[0].key
  if key in tensors and not _equal(tensors[key], tensors[_HEAD]):
    return dataclasses.replace(config, tied_embeddings=False)
  tensors.setdefault(key, tensors[_HEAD])
  del tensors[_HEAD]
  return config


def _equal(a: Stored, b: Stored) -> bool:
  """Returns True if two matrices are equal, reading some rows at a time."""
  if a.shape != b.shape:
    return False
  starts = range(0, a.shape[0], _ROWS)
  return all(
    np.array_equal(a.read(rows), b.read(rows))
    for rows in ((slice(i, min(i + _ROWS, a.shape[0])),) for i in starts)
  )


def _special_tokens(model: LanguageModel) -> dict[str, Any]:
  tokenizer = model.tokenizer
  stop_ids = list(tokenizer.stop_ids)
  return {
    'bos_token_id': tokenizer.bos_id if tokenizer.bos_id >= 0 else None,
    'eos_token_id': stop_ids[0] if len(stop_ids) == 1 else stop_ids or None,
  }


def _sizes(params: Any) -> dict[str, tuple[int, ...]]:
  return {name: array.shape for name, array in weights.flat(params).items()}
