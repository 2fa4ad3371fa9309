"""transformers at its fastest: a static cache, compiled where that is possible.

For times beside ours, of a model with random weights of the same shape.
"""

import gc
import time
from collections.abc import Callable

from specsamp.checkpoints.huggingface import families
from specsamp.jobs.transformers_baseline import torch_device
from specsamp.models import TransformerConfig


def decoding(
  config: TransformerConfig, prompt: list[int], context: int, num_tokens: int
) -> Callable[[], float]:
  """A step for `timing.in_turns`: milliseconds a token of greedy `generate`.

  With a static cache `generate` compiles the model's pass on a GPU, with
  torch.compile and in CUDA graphs; on a CPU it does not. From the first new
  token to the last, so that the prompt's pass is left out, as it is of ours.

  Args:
    config: the shape.
    prompt: token ids.
    context: slots of the cache.
    num_tokens: to time.

  Raises:
    UserError: transformers has no such architecture.
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
    # Asked after each token; the first token's time is where the others begin.
    if device == 'cuda' and len(stamps) in (0, num_tokens):
      torch.cuda.synchronize()
    stamps.append(time.perf_counter())
    done = len(stamps) > num_tokens
    return torch.full((len(input_ids),), done, device=input_ids.device)

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
    return 1e3 * (stamps[-1] - stamps[0]) / (len(stamps) - 1)

  return step


def free() -> None:
  """Gives back the memory of models that are gone."""
  import torch

  torch.compiler.reset()  # its graphs hold weights
  gc.collect()
  if torch.cuda.is_available():
    torch.cuda.empty_cache()
