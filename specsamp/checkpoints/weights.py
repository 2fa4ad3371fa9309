"""Parameters as safetensors files in a folder.

Weights are stored in float32, or matrices in 8 bits with a float32 scale for
every output channel, many of them in several files; or as an orbax checkpoint,
which is read and written in parallel and keeps 16 bits. On a mesh a process
reads the parts that it holds.
"""

import functools
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
from specsamp.checkpoints import tensor_files
from specsamp.checkpoints.tensor_files import Stored
from specsamp.errors import UserError, check_name
from specsamp.models.float16 import is_matrix
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules
from specsamp.utils import distributed, files

FILE = tensor_files.SINGLE
_MANY = 'model-{}.safetensors'  # of a model that is too large for one file
_SCALE = ':scale'
_ORBAX = 'orbax'  # the folder of that format

Storage = Literal['float32', 'int8', 'orbax']
# A file is closed at the first tensor past this size, and another begun.
_FILE_BYTES = 2**32


CONFIG = 'config.json'
# What `model_dir`, `drafter_dir` and `huggingface.model` write into a folder,
# and orbax into that of its checkpoint.
_NAMES = re.compile(
  r'(generation_)?config\.json|tokenizer(_config)?\.json|tokenizer\.model|'
  r'model(-\d{5}(-of-\d{5})?)?\.safetensors|model\.safetensors\.index\.json'
)
_ORBAX_NAMES = re.compile(
  r'_CHECKPOINT_METADATA|_METADATA|_sharding|array_metadatas|d|'
  r'commit_success\.txt|manifest\.ocdbt|ocdbt\.process_\d+'
)
# In the files of weights for other libraries, which don't copy it.
EXPORTED = {'format': 'pt', 'written_by': 'specsamp'}


def is_ours(folder: pathlib.Path) -> bool:
  """Whether it holds a model or a drafter that was written here, and no more.

  Such a folder may be replaced by another.
  """
  others = {path.name for path in folder.iterdir()}
  orbax = folder / _ORBAX
  if orbax.is_dir():
    others.discard(_ORBAX)
    inside = {path.name for path in orbax.iterdir()}
    if '_METADATA' not in inside or not all(
      map(_ORBAX_NAMES.fullmatch, inside)
    ):
      return False
  if not all(map(_NAMES.fullmatch, others)):
    return False
  try:
    values = files.read_json(folder / CONFIG)
    if files.has_shape(values, {'model': {'vocab_size': int, 'width': int}}):
      return True
    stored = min(folder.glob('model*.safetensors'))
    with safetensors.safe_open(stored, framework='numpy') as opened:
      return (opened.metadata() or {}).items() >= EXPORTED.items()
  except (OSError, ValueError, safetensors.SafetensorError):
    return False


def save(params: Any, folder, storage: Storage = 'float32') -> None:
  """Writes the files into a folder that is there and holds no others.

  Of several processes all must call this, and the first one writes; of an orbax
  checkpoint each writes its shards.

  Args:
    params: nested dicts of arrays.
    folder: where to.
    storage: of matrices, all else is float32; orbax keeps types as they are.
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
    # `save_file` would leave a file that only its owner can read.
    (pathlib.Path(folder) / name).write_bytes(safetensors.numpy.save(tensors))


def _weight_files(params, storage: str):
  """Yields (file name, tensors), a file's worth at a time on this host."""
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


def load(folder, shapes: Any, dtype: str, mesh: Mesh | None = None) -> Any:
  """What `stream` yields, in a tree as `shapes`."""
  return tree(stream(folder, shapes, dtype, mesh))


def stream(
  folder, shapes: Any, dtype: str | None, mesh: Mesh | None = None
) -> Iterator[tuple[str, jax.Array]]:
  """Reads what `save` wrote.

  Args:
    folder: where from.
    shapes: of the parameters, nested dicts as `jax.eval_shape` gives them.
    dtype: what matrices get, all else is float32; None leaves them as they are
      stored.
    mesh: where to place the parameters; each process then reads its own shards
      and no more. None is one device.

  Yields:
    Each parameter with its name, read when it is asked for, but those of an
    orbax checkpoint at once.

  Raises:
    UserError: a file is missing, truncated or corrupt, the tensors are not
      of these names and shapes, or do not divide into the mesh's shards.
  """
  folder = pathlib.Path(folder)
  if (folder / _ORBAX).is_dir():
    # Orbax finds nothing by a relative path.
    path = (folder / _ORBAX).absolute()
    yield from flat(_restore(path, shapes, dtype, mesh)).items()
    return
  tensors = _open(folder)
  _check(folder, flat(shapes), tensors)
  yield from place(shapes, dtype, mesh, functools.partial(_read, tensors))


def _restore(
  path: pathlib.Path, shapes: Any, dtype: str | None, mesh: Mesh | None
) -> Any:
  """The tree of an orbax checkpoint; see `stream`."""
  one = SingleDeviceSharding(jax.devices()[0])
  where = jax.tree.map(lambda _: one, shapes)
  if mesh is not None:
    where = rules.param_shardings(shapes, mesh)
  stored = flat(file_order.shapes(jax.tree.map(_with_sharding, shapes, where)))
  try:
    with ocp.StandardCheckpointer() as checkpointer:
      found = checkpointer.metadata(path).item_metadata
      if found is None:
        raise UserError(f'weights {path}: no orbax checkpoint, or corrupt')
      found = flat(found.tree)
      _compare(path, _sizes(stored), _sizes(found))
      dtypes = {name: array.dtype for name, array in found.items()}
      if dtype:
        dtypes = matmul_dtypes(flat(shapes), dtype)
      wanted = (
        (name, shape.update(dtype=dtypes[name]))
        for name, shape in stored.items()
      )
      params = checkpointer.restore(path, tree(wanted))
  except UserError:
    raise
  except Exception as error:  # orbax raises what its file formats raise
    line = str(error).strip().partition('\n')[0][:200]
    raise UserError(f'weights {path}: corrupt: {line}') from None
  params = file_order.from_files(params)
  if mesh is None:
    return params
  # Orbax knows where arrays lie, not in which order of their axes.
  return jax.device_put(params, rules.param_formats(shapes, mesh))


def place(
  shapes: Any, dtype: str | None, mesh: Mesh | None, read
) -> Iterator[tuple[str, jax.Array]]:
  """Yields parameters of these shapes, each read where it is to lie.

  Args:
    shapes: nested dicts as `jax.eval_shape` gives them.
    dtype: what matrices get, all else is float32; None leaves them as they are
      read.
    mesh: where to place them; each process then reads its own shards and no
      more. None is one device.
    read: (name with dots, index) -> array, index being a tuple of slices, or
      () for all of it.

  Raises:
    UserError: the parameters do not divide into the mesh's shards.
  """
  wanted = flat(shapes)
  dtypes = matmul_dtypes(wanted, dtype) if dtype else {}
  formats = flat(rules.param_formats(shapes, mesh)) if mesh else {}

  def part(name: str, index) -> np.ndarray:
    value = read(name, index)
    return value.astype(dtypes[name]) if dtype else value

  for name, shape in wanted.items():
    if mesh is None:
      yield name, jnp.asarray(part(name, ()))
    else:
      yield (
        name,
        jax.make_array_from_callback(
          shape.shape, formats[name], functools.partial(part, name)
        ),
      )


def _open(path: pathlib.Path) -> dict[str, Stored]:
  """Every tensor of a folder that `save` wrote."""
  found = sorted(path.glob(_MANY.format('?????'))) or [path / FILE]
  if found != [path / FILE] and (path / FILE).exists():
    raise UserError(f'weights {path}: got both {FILE} and {found[0].name}')
  return tensor_files.of_files(found)


def matmul_dtypes(shapes: dict[str, Any], dtype: str) -> dict[str, str]:
  """By name: this dtype for the weights of matmuls, float32 for all else.

  Integers are no weights and stay what they are.
  """
  return {
    name: str(shape.dtype)
    if _is_integer(shape)
    else dtype
    if is_matrix(name, shape)
    else 'float32'
    for name, shape in shapes.items()
  }


def _with_sharding(shape, sharding) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)


def _is_integer(array) -> bool:
  return jnp.issubdtype(array.dtype, jnp.integer)


def flat(params: Any) -> dict[str, Any]:
  """Parameter -> array of nested dicts, the names joined with dots."""
  return traverse_util.flatten_dict(params, sep='.')


def tree(leaves: Iterable[tuple[str, Any]]) -> Any:
  """The nested dicts of what `flat` has."""
  return traverse_util.unflatten_dict(dict(leaves), sep='.')


def _check(path, shapes, tensors) -> None:
  """Refuses tensors of other names, shapes or types than a model's."""
  got = _sizes(tensors)
  expected = {
    name: tuple(shape[axis] for axis in _file_axes(name, len(shape)))
    for name, shape in _sizes(shapes).items()
  }
  _compare(
    path, expected, {n: s for n, s in got.items() if not n.endswith(_SCALE)}
  )
  for name, full in expected.items():
    kind, scale = tensors[name].dtype, got.get(name + _SCALE)
    wanted = 'I32' if _is_integer(shapes[name]) else 'F32'
    if scale is None and kind != wanted:
      raise UserError(
        f'weights {path}: {name}: got {kind} without a scale, expected {wanted}'
      )
    axes = _input_axes(name)
    shape = tuple(1 if i in axes else n for i, n in enumerate(full))
    if scale is not None and scale != shape:
      raise UserError(
        f'weights {path}: {name}{_SCALE}: got {scale}, expected {shape}'
      )


def _compare(path, expected, got) -> None:
  """Refuses names and shapes that are not those of a model."""
  wrong = sorted(
    name
    for name in expected.keys() | got.keys()
    if expected.get(name) != got.get(name)
  )
  if wrong:
    name = wrong[0]
    raise UserError(
      f'weights {path}: {len(wrong)} tensors do not fit the config, first '
      f'{name}: got {got.get(name)}, expected {expected.get(name)}'
    )


def _sizes(arrays: dict[str, Any]) -> dict[str, tuple[int, ...]]:
  return {name: tuple(array.shape) for name, array in arrays.items()}


def _read(tensors, name: str, index) -> np.ndarray:
  """Returns a part of a parameter, in float32; () is all of it."""
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
  # Along an axis that the scales share, they have one entry.
  at = tuple(
    part if size > 1 else slice(None)
    for part, size in zip(index, scale.shape, strict=False)
  )
  return value.astype(np.float32) * scale[at]


def _input_axes(name: str) -> tuple[int, ...]:
  """Returns the axes that a product sums over, as stored."""
  axes = {'embedding': (1,), 'mask_embedding': (1,), 'o': (0, 1)}
  return axes.get(name.rpartition('.')[2], (0,))


def _quantize(name: str, value: np.ndarray):
  scale = np.abs(value).max(axis=_input_axes(name), keepdims=True) / 127
  scale = np.maximum(scale, np.finfo(np.float32).tiny).astype(np.float32)
  return np.rint(value / scale).astype(np.int8), scale
