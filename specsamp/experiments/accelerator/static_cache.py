"""transformers with a static cache, compiled where that is possible.

For times beside ours, of a model with random weights of the same shape.
"""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator

import numpy as np

from specsamp.checkpoints.huggingface import families
from specsamp.experiments.transformers_baseline import torch_device
from specsamp.models import TransformerConfig

# Passes after the prompt's, in every turn. Each `generate` has a new cache,
# wherever it comes to lie: torch may compile one pass, run the next as a trial
# and record CUDA graphs in a third; two to spare.
UNTIMED = 5


class TransformersError(Exception):
  """Whatever transformers or torch has raised."""


@contextlib.contextmanager
def _blaming() -> Iterator[None]:
  try:
    yield
  except Exception as error:  # another package's compiler may fail in any way
    raise TransformersError(f'{type(error).__name__}: {error}') from error


@_blaming()
def decoding(
  config: TransformerConfig, prompt: list[int], context: int, num_tokens: int
) -> Callable[[], float]:
  """A step for `timing.in_turns`: milliseconds a token of greedy `generate`.

  With a static cache `generate` compiles the model's pass on a GPU, with
  torch.compile and in CUDA graphs; on a CPU it does not. The prompt's pass is
  left out, as it is of ours, and `UNTIMED` passes behind it; of the others it
  is the median, since any may be interrupted by a recording.

  Args:
    config: the shape.
    prompt: token ids.
    context: slots of the cache.
    num_tokens: to time.

  Raises:
    TransformersError: it or the step fails in transformers or torch.
  """
  import torch
  import transformers

  transformers.logging.set_verbosity_error()
  device = torch_device()
  values = families.write(config)
  del values['architectures']
  shape = transformers.AutoConfig.for_model(values.pop('model_type'), **values)
  with torch.device(device):
    model = transformers.AutoModelForCausalLM.from_config(
      shape, dtype=getattr(torch, config.dtype)
    ).eval()
  ids = torch.tensor([prompt], device=device)
  stamps = []

  def is_done(input_ids, scores, **_):
    # Asked after each token. `generate` waits for the answer, and so for the
    # GPU, before the next pass: from one question to the next is one pass.
    stamps.append(time.perf_counter())
    done = len(stamps) > UNTIMED + num_tokens
    return torch.full((len(input_ids),), done, device=input_ids.device)

  @_blaming()
  def step() -> float:
    stamps.clear()
    model.generate(
      ids,
      attention_mask=torch.ones_like(ids),
      do_sample=False,
      max_new_tokens=context - len(prompt),  # it sizes the cache by these
      cache_implementation='static',
      eos_token_id=None,
      pad_token_id=0,
      stopping_criteria=[is_done],
    )
    return 1e3 * float(np.median(np.diff(stamps[UNTIMED:])))

  return step


def free() -> None:
  """Gives back the memory of models that are gone."""
  import torch

  torch.compiler.reset()  # its graphs hold weights
  gc.collect()
  if torch.cuda.is_available():
    torch.cuda.empty_cache()
