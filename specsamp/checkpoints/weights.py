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
from specsamp.errors import UserError, check_name
from specsamp.models import quantized
from specsamp.models.float16 import is_matrix
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules
from specsamp.utils import distributed, files

FILE = tensor_files.SINGLE
_MANY = 'model-{0:05}.safetensors'  # names of several files
_SCALE = ':scale'
_ORBAX = 'orbax'  # the folder of an orbax checkpoint

Storage = Literal['float32', 'int8', 'orbax']
_FILE_BYTES = 2**32  # of a file's tensors, unless it has only one

# All files that `model_dir`, `drafter_dir` and `huggingface` write, and those
# that orbax writes into its folder.
_NAMES = re.compile(
  r'(generation_)?config\.json|tokenizer(_config)?\.json|tokenizer\.model|'
  r'model(-\d{5}(-of-\d{5})?)?\.safetensors|model\.safetensors\.index\.json|'
  r'orbax(/(_CHECKPOINT_METADATA|_METADATA|_sharding|array_metadatas|d|'
  r'commit_success\.txt|manifest\.ocdbt|ocdbt\.process_\d+))?'
)
# Metadata of files for other libraries, which do not copy it to their files.
EXPORTED = {'format': 'pt', 'written_by': 'specsamp'}


def is_ours(folder: pathlib.Path) -> bool:
  """Returns True if a folder holds only a model or drafter of specsamp.

  Such a folder may be replaced.
  """
  for path in (*folder.iterdir(), *folder.glob(f'{_ORBAX}/*')):
    if not _NAMES.fullmatch(path.relative_to(folder).as_posix()):
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
  """Writes nested dicts of arrays into an existing folder without weights.

  All processes of a run must call this. The first one writes safetensors; each
  one writes its shards of an orbax checkpoint. `storage` is the dtype of
  matrices; other arrays are float32. orbax keeps all dtypes. Quantized weights
  are always stored in int8.

  Raises:
    UserError: orbax cannot store quantized weights.
  """
  check_name('storage', storage, get_args(Storage))
  if storage == 'orbax' and quantized.kind_of(params):
    raise UserError(
      f"storage: got 'orbax' for {quantized.kind_of(params)} weights, expected "
      "'int8'"
    )
  if storage == 'orbax':
    with ocp.StandardCheckpointer() as checkpointer:
      path = pathlib.Path(folder).absolute() / _ORBAX
      checkpointer.save(path, file_order.to_files(params))
    return
  write(pathlib.Path(folder), _stored_tensors(params, storage), _MANY)


def _stored_tensors(params, storage: str) -> Iterator[tuple[str, np.ndarray]]:
  """Yields the names and tensors of parameters and of int8 scales."""
  for name, value in flat(params).items():
    order = _file_axes(name, value.ndim)
    if quantized.is_quantized(value):
      scale = meshes.fetch(value.scale)
      scale = scale.reshape(scale.shape + (1,) * (value.ndim - scale.ndim))
      yield name + _SCALE, np.ascontiguousarray(scale.transpose(order))
      value = value.values
    value = np.ascontiguousarray(meshes.fetch(value).transpose(order))
    if not _is_integer(value):
      value = value.astype(np.float32)
    if storage == 'int8' and is_matrix(name, value) and value.dtype != np.int8:
      value, scale = _quantize(name, value)
      yield name + _SCALE, scale
    yield name, value


def write(
  folder: pathlib.Path,
  tensors: Iterable[tuple[str, np.ndarray]],
  names: str,
  metadata: dict[str, str] | None = None,
) -> tuple[dict[str, str], int]:
  """Writes tensors to model.safetensors, or to several files if it is large.

  All processes of a run must call this, as each may hold shards of a tensor.
  The first one writes, with one file's tensors in memory.

  Args:
    folder: the destination.
    tensors: pairs (name, tensor).
    names: format string for several files, of an index, a number and a count.
    metadata: metadata of each file.

  Returns:
    The name of each tensor's file, and the size of all tensors in bytes.
  """
  files_of, part, num_bytes = {}, {}, [0]

  def finish():
    # Files of `save_file` would be readable for their owner only.
    if distributed.is_first():
      content = safetensors.numpy.save(part, metadata)
      (folder / str(len(num_bytes) - 1)).write_bytes(content)
    part.clear()

  for name, tensor in tensors:
    if part and num_bytes[-1] + tensor.nbytes > _FILE_BYTES:
      finish()
      num_bytes.append(0)
    num_bytes[-1] += tensor.nbytes
    files_of[name] = len(num_bytes) - 1
    part[name] = tensor if distributed.is_first() else None
  finish()
  count = len(num_bytes)
  finals = [names.format(i, i + 1, count) for i in range(count)]
  if count == 1:
    finals = [FILE]
  if distributed.is_first():
    for i, name in enumerate(finals):
      (folder / str(i)).rename(folder / name)
  return {name: finals[i] for name, i in files_of.items()}, sum(num_bytes)


def stream(
  folder,
  shapes: Any,
  dtype: str | None,
  mesh: Mesh | None = None,
  keep_int8: bool = False,
) -> Iterator[tuple[str, jax.Array]]:
  """Yields the names and parameters that `save` wrote.

  Parameters are read one by one, but all at once from an orbax checkpoint.

  Args:
    folder: folder of the files.
    shapes: shapes of the parameters, nested dicts from `jax.eval_shape`.
    dtype: dtype of matrices; other parameters are float32. None keeps the
      stored dtypes.
    mesh: devices to place the parameters on; None is one device.
    keep_int8: True to yield a `Quantized` for weights stored in int8.

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
  paths = sorted(folder.glob('model-?????.safetensors')) or [folder / FILE]
  if paths != [folder / FILE] and (folder / FILE).exists():
    raise UserError(f'weights {folder}: got both {FILE} and {paths[0].name}')
  tensors = tensor_files.in_files(paths)
  _check(folder, flat(shapes), tensors)
  if not keep_int8:
    yield from place(shapes, dtype, mesh, functools.partial(_read, tensors))
    return
  for name, shape in flat(shapes).items():
    last = name.rpartition('.')[2]
    if name + _SCALE in tensors and quantized.num_summed(last):
      yield name, _place_stored(tensors, name, shape.shape, mesh)
    else:
      read = functools.partial(_read, tensors)
      yield from place(tree({name: shape}), dtype, mesh, read)


def _restore(
  path: pathlib.Path, shapes: Any, dtype: str | None, mesh: Mesh | None
) -> Any:
  """Returns the tree of an orbax checkpoint; see `stream`."""
  if mesh is None:
    one = SingleDeviceSharding(jax.devices()[0])
    shardings = jax.tree.map(lambda _: one, shapes)
  else:
    shardings = rules.param_shardings(shapes, mesh)
  expected = jax.tree.map(
    lambda shape, sharding: shape.update(sharding=sharding), shapes, shardings
  )
  expected = flat(file_order.shapes(expected))
  try:
    with ocp.StandardCheckpointer() as checkpointer:
      stored = checkpointer.metadata(path).item_metadata
      if stored is None:
        raise UserError(f'weights {path}: not an orbax checkpoint, or corrupt')
      stored = flat(stored.tree)
      tensor_files.check_shapes(
        f'weights {path}', sizes(expected), sizes(stored)
      )
      dtypes = {name: array.dtype for name, array in stored.items()}
      if dtype:
        dtypes = matmul_dtypes(flat(shapes), dtype)
      targets = {
        name: shape.update(dtype=dtypes[name])
        for name, shape in expected.items()
      }
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


def _place_stored(tensors, name: str, shape, mesh) -> quantized.Quantized:
  """Reads the integers and scales of a weight to its devices."""
  last = name.rpartition('.')[2]
  kept = len(shape) - quantized.num_summed(last)

  def read_values(index):
    return _read(tensors, name, index, keeps_int8=True)

  def read_scale(index):
    order = _file_axes(name, len(shape))
    whole = tensors[name + _SCALE].read()
    whole = whole.transpose([order.index(axis) for axis in range(len(shape))])
    return whole.reshape(shape[:kept])[index]

  values = jax.ShapeDtypeStruct(shape, jnp.int8)
  scale = jax.ShapeDtypeStruct(shape[:kept], jnp.float32)
  parts = quantized.Quantized(values, scale)
  if mesh is None:
    return quantized.Quantized(
      jnp.asarray(read_values(())), jnp.asarray(read_scale(()))
    )
  formats = rules.param_formats({last: parts}, mesh)[last]
  array = jax.make_array_from_callback
  return quantized.Quantized(
    array(shape, formats.values, read_values),
    array(shape[:kept], formats.scale, read_scale),
  )


def place(
  shapes: Any, dtype: str | None, mesh: Mesh | None, read
) -> Iterator[tuple[str, jax.Array]]:
  """Reads each shard of each parameter straight to its device; see `stream`.

  `read` maps a name with dots and an index to an array. The index is a tuple of
  slices, or () for the whole parameter.
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
      read_part = functools.partial(read_cast, name)
      array = jax.make_array_from_callback
      yield name, array(shape.shape, formats[name], read_part)


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


def tree(leaves) -> Any:
  """Returns nested dicts, from a dict or pairs of dotted names and arrays."""
  return traverse_util.unflatten_dict(dict(leaves), sep='.')


def sizes(params: Any) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of the arrays of nested dicts by their names."""
  return {name: tuple(array.shape) for name, array in flat(params).items()}


def _check(path, shapes, tensors) -> None:
  """Checks names, shapes and dtypes of stored tensors and their scales."""
  expected, wrong_dtypes = {}, []
  for name, shape in sizes(shapes).items():
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
  tensor_files.check_shapes(f'weights {path}', expected, sizes(tensors), faults)


def _read(tensors, name: str, index, keeps_int8: bool = False) -> np.ndarray:
  """Reads a slice of a parameter, or of its integers; () is all of it."""
  order = _file_axes(name, len(tensors[name].shape))
  index = tuple(index[axis] for axis in order) if index else ()
  value = tensors[name].read(index)
  if name + _SCALE in tensors and not keeps_int8:
    scale = tensors[name + _SCALE].read()
    # Scales have one entry along the axes that share them.
    part = tuple(
      axis if size > 1 else slice(None)
      for axis, size in zip(index, scale.shape, strict=False)
    )
    value = value.astype(np.float32) * scale[part]
  return value.transpose([order.index(axis) for axis in range(value.ndim)])


def _file_axes(name: str, ndim: int) -> tuple[int, ...]:
  return file_order.axes(name.rpartition('.')[2], ndim)


def _input_axes(name: str) -> tuple[int, ...]:
  """Returns the axes that a product sums over, in the axis order of files."""
  axes = {'embedding': (1,), 'mask_embedding': (1,), 'o': (0, 1)}
  return axes.get(name.rpartition('.')[2], (0,))


def _quantize(name: str, value: np.ndarray):
  scale = np.abs(value).max(axis=_input_axes(name), keepdims=True) / 127
  scale = np.maximum(scale, np.finfo(np.float32).tiny).astype(np.float32)
  return np.rint(value / scale).astype(np.int8), scale
