"""A model as a folder: config.json, model.safetensors, tokenizer.model.

Weights are stored in float32, or matrices in 8 bits with a float32 scale for
every output channel; large models in several files. On a mesh a process reads
the parts that it holds.
"""

import dataclasses
import functools
import json
import pathlib
import shutil
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util
from jax.sharding import Mesh

from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, TransformerConfig
from specsamp.sharding import distributed, rules
from specsamp.sharding import mesh as meshes

CONFIG, WEIGHTS, TOKENIZER = (
  'config.json',
  'model.safetensors',
  'tokenizer.model',
)
_MANY = 'model-{}.safetensors'  # of a model that is too large for one file
_SCALE = ':scale'
# A file is closed at the first tensor past this size, and another begun.
_FILE_BYTES = 2**32


def save(
  model: LanguageModel,
  path,
  storage: Literal['float32', 'int8'] = 'float32',
) -> None:
  """Writes the folder; one that is there is replaced by a rename.

  Of several processes all must call this, and the first one writes.

  Args:
    model: what to write.
    path: folder.
    storage: of matrices; all else is float32.
  """
  path = pathlib.Path(path)
  partial = path.with_name(path.name + '.partial')
  if not distributed.is_first():
    for value in _flat(model.params).values():
      meshes.fetch(value)  # hands over its shards, one after the other
    distributed.wait('saved')
    return
  shutil.rmtree(partial, ignore_errors=True)
  partial.mkdir(parents=True)
  config = {'model': dataclasses.asdict(model.config)}
  (partial / CONFIG).write_text(json.dumps(config, indent=2) + '\n')
  model.tokenizer.save(partial / TOKENIZER)
  for name, tensors in _weight_files(model.params, storage):
    # `save_file` would leave a file that only its owner can read.
    (partial / name).write_bytes(safetensors.numpy.save(tensors))
  old = path.with_name(path.name + '.old')
  shutil.rmtree(old, ignore_errors=True)
  if path.exists():
    path.rename(old)
  partial.rename(path)
  shutil.rmtree(old, ignore_errors=True)
  distributed.wait('saved')


def _weight_files(params, storage: str):
  """Yields (file name, tensors), a file's worth at a time on this host."""
  tensors, size, count = {}, 0, 0
  for name, value in _flat(params).items():
    value = meshes.fetch(value).astype(np.float32)
    if storage == 'int8' and is_matrix(name, value):
      tensors[name], tensors[name + _SCALE] = _quantize(name, value)
    else:
      tensors[name] = value
    size += tensors[name].nbytes
    if size > _FILE_BYTES:
      yield _MANY.format(f'{count:05}'), tensors
      tensors, size, count = {}, 0, count + 1
  if tensors:
    yield _MANY.format(f'{count:05}') if count else WEIGHTS, tensors


def load(path, mesh: Mesh | None = None) -> LanguageModel:
  """Reads what `save` wrote.

  Matrices get the dtype that the model computes in, all else is float32.

  Args:
    path: folder.
    mesh: where to lay the model; each process then reads its own shards and
      no more. None is one device.

  Raises:
    UserError: a file is missing, truncated or corrupt, the tensors are not
      the ones that the config calls for, or the model does not divide into the
      mesh's shards.
  """
  path = pathlib.Path(path)
  if not path.is_dir():
    raise UserError(f'model {path}: no such folder')
  try:
    values = json.loads((path / CONFIG).read_text())['model']
    config = TransformerConfig.from_dict(values)
  except OSError as error:
    raise UserError(f'model {path / CONFIG}: {error.strerror}') from None
  except (ValueError, KeyError, TypeError) as error:
    raise UserError(
      f'model {path / CONFIG}: not a model config: {error}'
    ) from None
  transformer = Transformer(config)
  tensors = _open(path)
  shapes = jax.eval_shape(transformer.init_params, jax.random.key(0))
  _check(path, _flat(shapes), tensors)
  tokenizer = Tokenizer.load(path / TOKENIZER)
  if tokenizer.vocab_size != config.vocab_size:
    raise UserError(
      f'model {path}: the tokenizer has {tokenizer.vocab_size} pieces, the '
      f'model {config.vocab_size}'
    )
  dtypes = {
    name: config.dtype if is_matrix(name, shape) else 'float32'
    for name, shape in _flat(shapes).items()
  }
  read = lambda name, index: _read(tensors, name, index).astype(dtypes[name])
  if mesh is None:
    params = {name: jnp.asarray(read(name, ())) for name in dtypes}
  else:
    params = {
      name: jax.make_array_from_callback(
        shape.shape, where, functools.partial(read, name)
      )
      for (name, shape), where in zip(
        _flat(shapes).items(),
        _flat(rules.param_formats(shapes, mesh)).values(),
        strict=True,
      )
    }
  params = traverse_util.unflatten_dict(params, sep='.')
  return LanguageModel(transformer, params, tokenizer)


def _open(path: pathlib.Path) -> dict[str, Any]:
  """Slices of every tensor of a folder, read from its files where taken."""
  files = sorted(path.glob(_MANY.format('?????'))) or [path / WEIGHTS]
  if files != [path / WEIGHTS] and (path / WEIGHTS).exists():
    raise UserError(f'model {path}: got both {WEIGHTS} and {files[0].name}')
  tensors = {}
  for file in files:
    try:
      opened = safetensors.safe_open(file, framework='numpy')
      for name in opened.keys():  # noqa: SIM118
        tensors[name] = opened.get_slice(name)
    except OSError as error:
      raise UserError(f'model {file}: {error}') from None
    except safetensors.SafetensorError as error:
      raise UserError(f'model {file}: corrupt: {error}') from None
  return tensors


def is_matrix(name: str, value) -> bool:
  """Whether this parameter is a matmul's weight: no norm's scale, no bias."""
  return value.ndim > 1 and not name.endswith('bias')


def _flat(params: Any) -> dict[str, Any]:
  return traverse_util.flatten_dict(params, sep='.')


def _check(path, shapes, tensors) -> None:
  """Refuses tensors of other names, shapes or types than a model's."""
  expected = {name: tuple(shape.shape) for name, shape in shapes.items()}
  got = {name: tuple(tensor.get_shape()) for name, tensor in tensors.items()}
  weights = {n: s for n, s in got.items() if not n.endswith(_SCALE)}
  wrong = sorted(
    name
    for name in expected.keys() | weights.keys()
    if expected.get(name) != weights.get(name)
  )
  if wrong:
    name = wrong[0]
    raise UserError(
      f'model {path}: {len(wrong)} tensors do not fit the config, first '
      f'{name}: got {weights.get(name)}, expected {expected.get(name)}'
    )
  for name, full in expected.items():
    kind, scale = tensors[name].get_dtype(), got.get(name + _SCALE)
    if scale is None and kind != 'F32':
      raise UserError(
        f'model {path}: {name}: got {kind} without a scale, expected F32'
      )
    axes = _input_axes(name)
    shape = tuple(1 if i in axes else n for i, n in enumerate(full))
    if scale is not None and scale != shape:
      raise UserError(
        f'model {path}: {name}{_SCALE}: got {scale}, expected {shape}'
      )


def _read(tensors, name: str, index) -> np.ndarray:
  """Float32 of a part of a tensor; () is all of it."""
  value = tensors[name][index or ...]
  if name + _SCALE not in tensors:
    return value
  scale = tensors[name + _SCALE][...]
  # Along an axis that the scales share, they have one entry.
  at = tuple(
    part if size > 1 else slice(None)
    for part, size in zip(index, scale.shape, strict=False)
  )
  return value.astype(np.float32) * scale[at]


def _input_axes(name: str) -> tuple[int, ...]:
  """Axes that a matmul with this weight sums over; channels are the rest."""
  return {'embedding': (1,), 'o': (0, 1)}.get(name.rpartition('.')[2], (0,))


def _quantize(name: str, value: np.ndarray):
  scale = np.abs(value).max(axis=_input_axes(name), keepdims=True) / 127
  scale = np.maximum(scale, np.finfo(np.float32).tiny).astype(np.float32)
  return np.rint(value / scale).astype(np.int8), scale
