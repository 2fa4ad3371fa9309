"""A model as transformers and vLLM write and read it: load and save."""

import dataclasses
import json
import pathlib
from typing import Any, Literal

import numpy as np
from jax.sharding import Mesh

from specsamp.checkpoints import dtypes, layouts, tensor_files, weights
from specsamp.checkpoints.huggingface import families, tensor_export
from specsamp.checkpoints.huggingface.families.family import Family
from specsamp.checkpoints.tensor_files import Stored
from specsamp.data import tokenizer_dir, tokenizer_export
from specsamp.data.tokenizers import SentencePiece, Tokenizer
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, TransformerConfig, param_shapes
from specsamp.models.config import Dtype
from specsamp.sharding import mesh as meshes
from specsamp.sharding.rules import MODEL
from specsamp.utils import distributed, files

_CONFIG, _HEAD = 'config.json', 'lm_head.weight'
_ROWS = 4096  # of two matrices that are compared


def load(
  path,
  mesh: Mesh | None = None,
  dtype: Dtype | None = None,
) -> LanguageModel:
  """Reads a folder with a config.json, safetensors and a tokenizer.

  LLaMA 1 to 3 and Vicuna, Mistral, Qwen2 and 3, OPT, GPT-2. Where attention is
  to a sliding window, texts may not be longer than the window. Rows of the
  embedding that the tokenizer has no piece for are no tokens: their probability
  is 0. Any part of a tensor is read straight to the device that holds it.

  Args:
    path: folder.
    mesh: where to place the model; None is one device.
    dtype: what to compute in. None is float32 on CPUs and for weights of 32
      bits, else bfloat16; on GPUs without it float16, or float32 of a model
      that float16 does not hold, and the log has which.

  Raises:
    UserError: a file is missing, truncated or corrupt, or a pickle; the config
      is of another architecture or asks for what is not supported; tensors are
      missing, left over or of other shapes; the model does not divide into the
      mesh's shards; float16 was asked for and does not hold the model.
  """
  path = pathlib.Path(path)
  _, family, config = read_config(path)
  tokenizer = tokenizer_dir.load(path)
  tensors = tensor_files.of_folder(path)
  names = family.rename(tensors)
  tensors = {name: tensors[stored] for name, stored in names.items()}
  if _HEAD in tensors and config.tied_embeddings:
    # Tied or not is what the weights are, as transformers has it.
    embedding = family.layout(config)['embedding'].parts[0].key
    if embedding not in tensors:
      tensors[embedding] = tensors.pop(_HEAD)
    elif _same(tensors[embedding], tensors[_HEAD]):
      del tensors[_HEAD]
    else:
      config = dataclasses.replace(config, tied_embeddings=False)
  layout = family.layout(config)
  sizes = _sizes(param_shapes(Transformer(config)))
  what = f'model {path}'
  if _HEAD not in tensors and not config.tied_embeddings:
    what += ': tie_word_embeddings is false'
  layouts.check(what, layout, sizes, tensors)
  # A vocabulary that divides into shards, whose last rows are no tokens.
  shards = mesh.shape[MODEL] if mesh else 1
  rows = -(-config.vocab_size // shards) * shards
  config = dataclasses.replace(
    config,
    vocab_size=rows,
    padding=rows - min(config.vocab_size, tokenizer.vocab_size),
    dtype=dtype
    or dtypes.dtype_on(
      f'model {path}',
      dtypes.default_dtype(tensors.values()),
      dtypes.device_of(mesh),
    ),
  )
  shapes = param_shapes(Transformer(config))
  sizes = _sizes(shapes)
  read = lambda name, index: layouts.read(
    tensors, layout[name], sizes[name], index
  )
  config, params, stored_as = dtypes.read_in_range(
    f'model {path}',
    config,
    dtype is not None,
    lambda dtype: weights.place(shapes, dtype, mesh, read),
  )
  return LanguageModel(Transformer(config), params, tokenizer, stored_as)


def save(
  model: LanguageModel,
  path,
  dtype: Literal['float32', 'bfloat16'] | None = None,
  keep=None,
) -> None:
  """Writes a folder that transformers and vLLM load.

  A model of ours that is there is replaced by a rename. Of several processes
  all must call this, and the first one writes. Rows of the vocabulary that are
  no tokens are left out.

  Args:
    model: what to write.
    path: folder.
    dtype: of the tensors; the one that the model computes in if left out.
    keep: a folder that may not be replaced; None is none.

  Raises:
    UserError: no architecture of transformers computes what the model does, or
      its tokenizer is of a kind that has no tokenizer.json.
  """
  config = model.config
  values = families.write(config)
  layout = families.of(values).layout(config)
  dtype = np.dtype(dtype or config.dtype)
  params = weights.flat(model.params)
  sizes = _sizes(model.params)
  for name, source in layout.items():
    if 'v' in source.axes:
      at = source.axes.index('v')
      shape = list(sizes[name])
      shape[at] = config.num_tokens
      sizes[name] = tuple(shape)

  def fetch(name: str) -> np.ndarray:
    value = meshes.fetch(params[name]).astype(dtype)
    return value[tuple(map(slice, sizes[name]))]

  with files.replace_folder(path, weights.is_ours, keep) as folder:
    if distributed.is_first():
      values |= _special_tokens(model) | {'dtype': dtype.name}
      (folder / _CONFIG).write_text(json.dumps(values, indent=2) + '\n')
      _save_tokenizer(model.tokenizer, folder)
    tensor_export.write(folder, layout, sizes, dtype, fetch)


def read_config(
  path: pathlib.Path,
) -> tuple[dict[str, Any], Family, TransformerConfig]:
  """The config.json of a folder: its values, and what they mean.

  Raises:
    UserError: it is missing, of another architecture or asks for what is not
      supported.
  """
  file = path / _CONFIG
  try:
    values = files.read_json(file)
    family = families.of(values)
    return values, family, family.read(values)
  except OSError as error:
    raise UserError(f'model {file}: {error.strerror}') from None
  except KeyError as error:
    raise UserError(f'model {file}: no {error.args[0]}') from None
  except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
    raise UserError(f'model {file}: {error}') from None


def _save_tokenizer(tokenizer: Tokenizer, folder: pathlib.Path) -> None:
  if isinstance(tokenizer, SentencePiece):
    tokenizer_export.export(tokenizer, folder)
  else:
    tokenizer.save(folder)


def _same(one: Stored, other: Stored) -> bool:
  """Returns True if two matrices are equal, read some rows at a time."""
  if one.shape != other.shape:
    return False
  starts = range(0, one.shape[0], _ROWS)
  return all(
    np.array_equal(one.read(rows), other.read(rows))
    for rows in ((slice(i, min(i + _ROWS, one.shape[0])),) for i in starts)
  )


def _special_tokens(model: LanguageModel) -> dict[str, Any]:
  tokenizer = model.tokenizer
  named = {
    'bos_token_id': [tokenizer.bos_id] if tokenizer.bos_id >= 0 else [],
    'eos_token_id': list(tokenizer.stop_ids),
  }
  return {
    name: ids[0] if len(ids) == 1 else ids or None
    for name, ids in named.items()
  }


def _sizes(params: Any) -> dict[str, tuple[int, ...]]:
  return {name: array.shape for name, array in weights.flat(params).items()}
