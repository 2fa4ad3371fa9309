"""Models and drafters from one kind of folder to another."""

import time
from typing import Literal

import jax
from jax.sharding import Mesh

from specsamp.checkpoints import drafter_dir, model_dir, weights
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.checkpoints.huggingface.heads import speculators
from specsamp.errors import UserError, check_name
from specsamp.models.config import Dtype
from specsamp.utils import files

FORMATS = ('orbax', 'huggingface', 'speculators')


def convert(
  source,
  destination,
  form: Literal['orbax', 'huggingface', 'speculators'] = 'orbax',
  mesh: Mesh | None = None,
  dtype: Dtype | None = None,
  target: str = '',
) -> None:
  """Reads a model of any kind and writes it anew, and prints what it did.

  Args:
    source: a folder, or a name of the hub, that `specsamp.load` reads; of a
      drafter for speculators.
    destination: folder; one that holds a model that was written here, and
      nothing else, is replaced.
    form: orbax is for `specsamp.load`, read in parallel and as it lies;
      huggingface is for transformers, vLLM and `specsamp.load`; speculators,
      a drafter's, is for vLLM and `drafter_dir.load`.
    mesh: where the model lies meanwhile; None is one device.
    dtype: of matrices; None is the one they are stored in, of float16
      bfloat16.
    target: of a drafter, where vLLM is to find it: a folder of Hugging Face's
      libraries or a name of the hub.

  Raises:
    UserError: as `specsamp.load`; no architecture of transformers computes
      what the model does; or the destination must not be replaced.
  """
  check_name('form', form, FORMATS)
  if bool(target) != (form == 'speculators'):
    raise UserError(
      f'target: got {target!r} with the format {form}, expected one with '
      'speculators, and none with others'
    )
  files.check_replaceable(destination, weights.is_ours, source)
  began = time.perf_counter()
  if form == 'speculators':
    model = drafter_dir.load(source)
    dtype = dtype or model.module.config.dtype
  else:
    dtype = dtype or model_dir.stored_dtype(source)
    model = model_dir.load(source, mesh, dtype)
  read = time.perf_counter()
  match form:
    case 'orbax':
      model_dir.save(model, destination, 'orbax', source)
    case 'huggingface':
      huggingface.save(model, destination, keep=source)
    case 'speculators':
      speculators.save(model, destination, target, dtype, keep=source)
  wrote = time.perf_counter()
  leaves = jax.tree.leaves(model.params)
  count = sum(leaf.size for leaf in leaves)
  num_bytes = sum(leaf.nbytes for leaf in leaves)
  print(
    f'{count / 1e6:,.1f}M parameters, {num_bytes / 2**30:.2f} GiB '
    f'in {dtype}: read in {read - began:.1f} s, written to '
    f'{destination} in {wrote - read:.1f} s'
  )
