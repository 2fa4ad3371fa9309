"""Models from one kind of folder to another."""

import time
from typing import Literal

import jax
from jax.sharding import Mesh

from specsamp import files
from specsamp.checkpoints import model_dir, weights
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.errors import check_name
from specsamp.models.config import Dtype

FORMATS = ('orbax', 'huggingface')


def convert(
  source,
  destination,
  form: Literal['orbax', 'huggingface'] = 'orbax',
  mesh: Mesh | None = None,
  dtype: Dtype | None = None,
) -> None:
  """Reads a model of any kind and writes it anew, and prints what it did.

  Args:
    source: a folder, or a name of the hub, that `specsamp.load` reads.
    destination: folder; one that holds a model that was written here, and
      nothing else, is replaced.
    form: orbax is for `specsamp.load`, read in parallel and as it lies;
      huggingface is for transformers, vLLM and `specsamp.load`.
    mesh: where the model lies meanwhile; None is one device.
    dtype: of matrices; None is the one they are stored in, of float16
      bfloat16.

  Raises:
    UserError: as `specsamp.load`; no architecture of transformers computes
      what the model does; or the destination must not be replaced.
  """
  check_name('form', form, FORMATS)
  files.check_replaceable(destination, weights.is_ours, source)
  began = time.perf_counter()
  model = model_dir.load(source, mesh, dtype or model_dir.stored_dtype(source))
  read = time.perf_counter()
  if form == 'orbax':
    model_dir.save(model, destination, 'orbax', source)
  else:
    huggingface.save(model, destination, keep=source)
  wrote = time.perf_counter()
  num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
  print(
    f'{model.num_params / 1e6:,.1f}M parameters, {num_bytes / 2**30:.2f} GiB '
    f'in {model.config.dtype}: read in {read - began:.1f} s, written to '
    f'{destination} in {wrote - read:.1f} s'
  )
