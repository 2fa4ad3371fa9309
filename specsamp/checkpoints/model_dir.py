"""A model as a folder: config.json, model.safetensors and a tokenizer."""

import dataclasses
import pathlib
from typing import Any, get_args

from jax.sharding import Mesh

from specsamp.checkpoints import dtypes, folders, tensor_files
from specsamp.checkpoints import weights as weight_files
from specsamp.checkpoints.gguf import model as gguf
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.data import hf_tokenizers
from specsamp.errors import UserError, check_name
from specsamp.language_model import LanguageModel
from specsamp.models import (
  Transformer,
  TransformerConfig,
  param_shapes,
  quantized,
)
from specsamp.models.config import Dtype
from specsamp.utils import distributed, files

CONFIG, WEIGHTS = folders.CONFIG, weight_files.FILE


def save(
  model: LanguageModel, path, storage: weight_files.Storage = 'float32'
) -> None:
  """Writes a model to a folder; `storage` is that of `weights.save`.

  A folder that holds only such a model is replaced by a rename. All processes
  of a run must call this, and the first one writes.

  Raises:
    UserError: the folder cannot be written, or holds other files.
  """
  model.check_untranslated(f'model {path}')
  config = {'model': dataclasses.asdict(model.config)}
  with weight_files.new_folder(path, config) as folder:
    if distributed.is_first():
      model.tokenizer.save(folder)
    weight_files.save(model.params, folder, storage)


def load(
  path,
  mesh: Mesh | None = None,
  dtype: Dtype | None = None,
  weights: quantized.Kind | None = None,
) -> LanguageModel:
  """Reads a folder of `save` or of Hugging Face's libraries, or a GGUF file.

  `huggingface.families.FAMILIES` has the architectures of folders. GGUF files
  hold LLaMA, Mistral, Qwen2, Qwen3 or Gemma 3; quantized weights are
  dequantized. Matrices get the dtype that the model computes in, other
  parameters float32.

  Args:
    path: folder, GGUF file, or a name of the Hugging Face hub; see
      `folders.find`.
    mesh: devices to place the model on; each process reads only its shards.
      None is one device.
    dtype: dtype to compute in. None is the folder's. In the other formats it is
      float32 on CPUs and for 32-bit weights, else bfloat16. On GPUs
      without bfloat16 it becomes float16, or float32 if a weight exceeds
      float16; the log reports the choice.
    weights: 'int8' rounds each weight of a product to 8 bits with a scale per
      output channel, as it is read (from orbax, after all are). The model is
      then another distribution. Weights stored in int8 keep their integers.
      'w8a8' also rounds activations, with a scale per token. None keeps
      floats.

  Raises:
    UserError: a file is missing, truncated or corrupt, or a pickle; the
      architecture or a value of the config is not supported; the tensors do not
      fit the config; the model does not divide into the mesh's shards; dtype is
      float16 and a weight exceeds it; or weights is another word.
  """
  if weights is not None:
    check_name('weights', weights, get_args(quantized.Kind))
  kind = weights or ''
  path = folders.find('model', path)
  if not path.is_dir():
    return gguf.load(path, mesh, dtype, kind)
  values = folders.read_config('model', path)
  if 'model' not in values:
    return huggingface.load(path, mesh, dtype, kind)
  config = _config_of(path, values)
  config = dataclasses.replace(
    config, dtype=dtypes.choose(f'model {path}', dtype, config.dtype, mesh)
  )
  tokenizer = hf_tokenizers.load(path)  # before the weights, which take longer
  shapes = param_shapes(Transformer(config))
  config, params, stored_as = dtypes.read_in_range(
    f'model {path}',
    config,
    dtype is not None,
    lambda dtype: weight_files.stream(path, shapes, dtype, mesh, bool(kind)),
    kind,
  )
  if tokenizer.vocab_size < config.num_tokens:
    raise UserError(
      f'model {path}: the tokenizer has {tokenizer.vocab_size} pieces, the '
      f'model {config.num_tokens}'
    )
  return LanguageModel(Transformer(config), params, tokenizer, stored_as)


def stored_dtype(path) -> str:
  """Returns the dtype in a folder's config, or that of the largest tensor."""
  path = folders.find('model', path)
  if not path.is_dir():
    return gguf.stored_dtype(path)
  values = folders.read_config('model', path)
  if 'model' in values:
    return _config_of(path, values).dtype
  return dtypes.stored_dtype(tensor_files.in_folder(path).values())


def _config_of(path: pathlib.Path, values: dict[str, Any]) -> TransformerConfig:
  with files.reading(f'model {path / CONFIG}'):
    return TransformerConfig.from_dict(values['model'])
