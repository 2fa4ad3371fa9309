"""Conversion of models and drafters to another kind of folder."""

import time
from typing import Literal, get_args

import jax
from jax.sharding import Mesh

from specsamp.checkpoints import drafter_dir, model_dir, weights
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.checkpoints.huggingface import speculators
from specsamp.errors import UserError, check_name
from specsamp.models.config import Dtype
from specsamp.utils import files

Format = Literal['orbax', 'huggingface', 'speculators']
FORMATS = get_args(Format)


def convert(
  source,
  destination,
  form: Format = 'orbax',
  mesh: Mesh | None = None,
  dtype: Dtype | None = None,
  target: str = '',
) -> None:
  """Reads a model or drafter, writes it in a format and prints a summary.

  Args:
    source: a folder, GGUF file or hub name that `specsamp.load` reads;
      for the form speculators, one that `drafter_dir.load` reads.
    destination: folder; one that holds only a model of specsamp is replaced.
    form: `specsamp.load` reads orbax in parallel; transformers and vLLM read
      huggingface; speculators is a format of drafters for vLLM.
    mesh: devices that hold the model during conversion; None is one device.
    dtype: dtype of matrices; None keeps it, but float16 becomes bfloat16.
    target: where vLLM finds the target of a drafter: a folder or a hub name.

  Raises:
    UserError: see `specsamp.load`; or no architecture of transformers computes
      the same function, or the destination must not be replaced.
  """
  check_name('form', form, FORMATS)
  if bool(target) != (form == 'speculators'):
    raise UserError(
      f'target: got {target!r} with the format {form}, expected a target with '
      'speculators only'
    )
  files.check_replaceable(destination, weights.is_ours, source)
  started = time.perf_counter()
  if form == 'speculators':
    model = drafter_dir.load(source)
    dtype = dtype or model.module.config.dtype
  else:
    dtype = dtype or model_dir.stored_dtype(source)
    model = model_dir.load(source, mesh, dtype)
  loaded = time.perf_counter()
  if form == 'orbax':
    model_dir.save(model, destination, 'orbax')
  elif form == 'huggingface':
    huggingface.save(model, destination)
  else:
    speculators.save(model, destination, target, dtype)
  saved = time.perf_counter()
  leaves = jax.tree.leaves(model.params)
  print(
    f'{sum(leaf.size for leaf in leaves) / 1e6:,.1f}M parameters, '
    f'{sum(leaf.nbytes for leaf in leaves) / 2**30:.2f} GiB '
    f'in {dtype}: read in {loaded - started:.1f} s, written to '
    f'{destination} in {saved - loaded:.1f} s'
  )
