"""Parameters as safetensors files, or as an orbax checkpoint, in a folder.

safetensors hold float32, or matrices in 8 bits with a float32 scale for every
output channel; large models take several files. An orbax checkpoint keeps 16
bits and is read and written in parallel. On a mesh a process reads only the
shards that it holds.
"""

import contextlib
import functools
import json
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import safetensors
import safetensors.numpy
from flax import traverse_util
from jax.sharding import Mesh, SingleDeviceSharding

from specsamp import file_order
from specsamp.checkpoints import folders, tensor_files
from specsamp.checkpoints.tensor_files import Stored
from specsamp.errors import UserError, check_name
from specsamp.models.float16 import is_matrix
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules
from specsamp.utils import distributed, files

FILE = tensor_files.SINGLE
_MANY = 'model-{}.safetensors'  # names of several files
_SCALE = ':scale'
_ORBAX = 'orbax'  # the folder of an orbax checkpoint

Storage = Literal['float32', 'int8', 'orbax']
# A file ends with the tensor that exceeds this size.
_FILE_BYTES = 2**32

# All files that `model_dir`, `drafter_dir` and `huggingface` write, and those
# that orbax writes into its folder.
_NAMES = re.compile(
  r'(generation_)?config\.json|tokenizer(_config)?\.json|tokenizer\.model|'
  r'model(-\d{5}(-of-\d{5})?)?\.safetensors|model\.safetensors\.index\.json'
)
_ORBAX_NAMES = re.compile(
  r'_CHECKPOINT_METADATA|_METADATA|_sharding|array_metadatas|d|'
  r'commit_success\.txt|manifest\.ocdbt|ocdbt\.process_\d+'
)
# Metadata of files for other libraries, which do not copy it to their files.
EXPORTED = {'format': 'pt', 'written_by': 'specsamp'}


def is_ours(folder: pathlib.Path) -> bool:
  """Returns True if a folder holds only a model or drafter of specsamp.

  Such a folder may be replaced by another one.
  """
  names = {path.name for path in folder.iterdir()}
  orbax = folder / _ORBAX
  if orbax.is_dir():
    names.discard(_ORBAX)
    parts = {path.name for path in orbax.iterdir()}
    if '_METADATA' not in parts or not all(map(_ORBAX_NAMES.fullmatch, parts)):
      return False
  if not all(map(_NAMES.fullmatch, names)):
    return False
  try:
    match files.read_json(folder / folders.CONFIG):
      case {'model': {'vocab_size': int(), 'width': int()}}:
        return True
    stored = min(folder.glob('model*.safetensors'))
    with safetensors.safe_open(stored, framework='numpy') as opened:
      return (opened.metadata() or {}).items() >= EXPORTED.items()
  except (OSError, ValueError, safetensors.SafetensorError):
    return False


@contextlib.contextmanager
def new_folder(path, config: dict[str, Any]) -> Iterator[pathlib.Path]:
  """Yields a folder with a config.json; see `files.replace_folder`."""
  with files.replace_folder(path, is_ours) as folder:
    if distributed.is_first():
      text = json.dumps(config, indent=2) + '\n'
      (folder / folders.CONFIG).write_text(text)
    yield folder


def save(params: Any, folder, storage: Storage = 'float32') -> None:
  """Writes parameters into an existing folder without other weights.

  All processes of a run must call this. The first one writes safetensors; each
  one writes its shards of an orbax checkpoint.

  Args:
    params: nested dicts of arrays.
    folder: the destination.
    storage: format of matrices, others being float32; orbax keeps all dtypes.
  """
  check_name('storage', storage, get_args(Storage))
  if storage == 'orbax':
    with ocp.StandardCheckpointer() as checkpointer:
      path = pathlib.Path(folder).absolute() / _ORBAX
      checkpointer.save(path, file_order.to_files(params))
    return
  if not distributed.is_first():
    for value in flat(params).values():
      meshes.fetch(value)  # hands over its shards, one after the other
    return
  for name, tensors in _weight_files(params, storage):
    # Files of `save_file` would be readable for their owner only.
    (pathlib.Path(folder) / name).write_bytes(safetensors.numpy.save(tensors))


def _weight_files(params, storage: str):
  """Yields (file name, tensors), with one file's tensors on this host."""
  tensors, size, count = {}, 0, 0
  for name, value in flat(params).items():
    order = _file_axes(name, value.ndim)
    value = np.ascontiguousarray(meshes.fetch(value).transpose(order))
    if not _is_integer(value):
      value = value.astype(np.float32)
    if storage == 'int8' and is_matrix(name, value):
      tensors[name], tensors[name + _SCALE] = _quantize(name, value)
    else:
      tensors[name] = value
    size += tensors[name].nbytes
    if size > _FILE_BYTES:
      yield _MANY.format(f'{count:05}'), tensors
      tensors, size, count = {}, 0, count + 1
  if tensors:
    yield _MANY.format(f'{count:05}') if count else FILE, tensors


def stream(
  folder, shapes: Any, dtype: str | None, mesh: Mesh | None = None
) -> Iterator[tuple[str, jax.Array]]:
  """Reads the parameters that `save` wrote.

  Args:
    folder: of the files.
    shapes: of the parameters, nested dicts as `jax.eval_shape` returns them.
    dtype: of matrices, other parameters being float32; None keeps the stored
      dtypes.
    mesh: devices to place the parameters on; each process then reads only its
      own shards. None is one device.

  Yields:
    (name, parameter), read one after the other, but all at once from an orbax
    checkpoint.

  Raises:
    UserError: a file is missing, truncated or corrupt, the tensors have other
      names or shapes, or do not divide into the mesh's shards.
  """
  folder = pathlib.Path(folder)
  if (folder / _ORBAX).is_dir():
    # Orbax needs an absolute path.
    path = (folder / _ORBAX).absolute()
    yield from flat(_restore(path, shapes, dtype, mesh)).items()
    return
  tensors = _open(folder)
  _check(folder, flat(shapes), tensors)
  yield from place(shapes, dtype, mesh, functools.partial(_read, tensors))


def _restore(
  path: pathlib.Path, shapes: Any, dtype: str | None, mesh: Mesh | None
) -> Any:
  """Returns the tree of an orbax checkpoint; see `stream`."""
  one = SingleDeviceSharding(jax.devices()[0])
  shardings = jax.tree.map(lambda _: one, shapes)
  if mesh is not None:
    shardings = rules.param_shardings(shapes, mesh)
  with_sharding = lambda shape, sharding: jax.ShapeDtypeStruct(
    shape.shape, shape.dtype, sharding=sharding
  )
  expected = flat(
    file_order.shapes(jax.tree.map(with_sharding, shapes, shardings))
  )
  try:
    with ocp.StandardCheckpointer() as checkpointer:
      stored = checkpointer.metadata(path).item_metadata
      if stored is None:
        raise UserError(f'weights {path}: not an orbax checkpoint, or corrupt')
      stored = flat(stored.tree)
      tensor_files.check_shapes(
        f'weights {path}', _sizes(expected), _sizes(stored)
      )
      dtypes = {name: array.dtype for name, array in stored.items()}
      if dtype:
        dtypes = matmul_dtypes(flat(shapes), dtype)
      targets = (
        (name, shape.update(dtype=dtypes[name]))
        for name, shape in expected.items()
      )
      params = checkpointer.restore(path, tree(targets))
  except UserError:
    raise
  except Exception as error:  # orbax raises the errors of its file formats
    line = str(error).strip().partition('\n')[0][:200]
    raise UserError(f'weights {path}: corrupt: {line}') from None
  params = file_order.from_files(params)
  if mesh is None:
    return params
  # Orbax restores shardings, but not the order of axes in memory.
  return jax.device_put(params, rules.param_formats(shapes, mesh))


def place(
  shapes: Any, dtype: str | None, mesh: Mesh | None, read
) -> Iterator[tuple[str, jax.Array]]:
  """Reads each shard of each parameter straight to its device; see `stream`.

  Args:
    shapes: of the parameters.
    dtype: of matrices.
    mesh: devices to place the parameters on.
    read: (name with dots, index) -> array, index being a tuple of slices, or ()
      for the whole parameter.
  """
  flat_shapes = flat(shapes)
  dtypes = matmul_dtypes(flat_shapes, dtype) if dtype else {}
  formats = flat(rules.param_formats(shapes, mesh)) if mesh else {}

  def read_cast(name: str, index) -> np.ndarray:
    value = read(name, index)
    return value.astype(dtypes[name]) if dtype else value

  for name, shape in flat_shapes.items():
    if mesh is None:
      yield name, jnp.asarray(read_cast(name, ()))
    else:
      yield (
        name,
        jax.make_array_from_callback(
          shape.shape, formats[name], functools.partial(read_cast, name)
        ),
      )


def _open(path: pathlib.Path) -> dict[str, Stored]:
  """Returns the tensors of a folder that `save` wrote."""
  paths = sorted(path.glob(_MANY.format('?????'))) or [path / FILE]
  if paths != [path / FILE] and (path / FILE).exists():
    raise UserError(f'weights {path}: got both {FILE} and {paths[0].name}')
  return tensor_files.in_files(paths)


def matmul_dtypes(shapes: dict[str, Any], dtype: str) -> dict[str, str]:
  """Returns dtypes by name: `dtype` for matmul weights, float32 for others.

  Integers keep their dtype.
  """
  return {
    name: str(shape.dtype)
    if _is_integer(shape)
    else dtype
    if is_matrix(name, shape)
    else 'float32'
    for name, shape in shapes.items()
  }


def _is_integer(array) -> bool:
  return jnp.issubdtype(array.dtype, jnp.integer)


def flat(params: Any) -> dict[str, Any]:
  """Returns the arrays of nested dicts by their names, joined with dots."""
  return traverse_util.flatten_dict(params, sep='.')


def tree(leaves: Iterable[tuple[str, Any]]) -> Any:
  """Returns nested dicts of (name with dots, array) pairs."""
  return traverse_util.unflatten_dict(dict(leaves), sep='.')


def _check(path, shapes, tensors) -> None:
  """Checks names, shapes and dtypes of stored tensors and their scales."""
  expected, wrong_dtypes = {}, []
  for name, shape in _sizes(shapes).items():
    order = _file_axes(name, len(shape))
    expected[name] = tuple(shape[axis] for axis in order)
    wanted = 'I32' if _is_integer(shapes[name]) else 'F32'
    if name + _SCALE in tensors:
      axes = _input_axes(name)
      scale = [1 if i in axes else n for i, n in enumerate(expected[name])]
      expected[name + _SCALE] = tuple(scale)
    elif name in tensors and tensors[name].dtype != wanted:
      wrong_dtypes.append(f'{name} {tensors[name].dtype} instead of {wanted}')
  faults = {'of another dtype without a scale': wrong_dtypes}
  tensor_files.check_shapes(
    f'weights {path}', expected, _sizes(tensors), faults
  )


def _sizes(arrays: dict[str, Any]) -> dict[str, tuple[int, ...]]:
  return {name: tuple(array.shape) for name, array in arrays.items()}


def _read(tensors, name: str, index) -> np.ndarray:
  """Reads a slice of a parameter; () is all of it."""
  order = _file_axes(name, len(tensors[name].shape))
  index = tuple(index[axis] for axis in order) if index else ()
  value = _read_as_stored(tensors, name, index)
  return value.transpose([order.index(axis) for axis in range(value.ndim)])


def _file_axes(name: str, ndim: int) -> tuple[int, ...]:
  return file_order.axes(name.rpartition('.')[2], ndim)


def _read_as_stored(tensors, name: str, index) -> np.ndarray:
  value = tensors[name].read(index)
  if name + _SCALE not in tensors:
    return value
  scale = tensors[name + _SCALE].read()
  # Scales have one entry along the axes that share them.
  part = tuple(
    axis if size > 1 else slice(None)
    for axis, size in zip(index, scale.shape, strict=False)
  )
  return value.astype(np.float32) * scale[part]


def _input_axes(name: str) -> tuple[int, ...]:
  """Returns the axes that a product sums over, in the order of files."""
  axes = {'embedding': (1,), 'mask_embedding': (1,), 'o': (0, 1)}
  return axes.get(name.rpartition('.')[2], (0,))


def _quantize(name: str, value: np.ndarray):
  scale = np.abs(value).max(axis=_input_axes(name), keepdims=True) / 127
  scale = np.maximum(scale, np.finfo(np.float32).tiny).astype(np.float32)
  return np.rint(value / scale).astype(np.int8), scale
