r"""Times of rounds and passes on one accelerator, beside the plan's.

The embedded pair's rounds, plain, as chains, as trees and with EAGLE; and the
shapes of Llama 3.1 8B and 3.2 1B with random weights in bfloat16: plain
decoding beside transformers with a static cache, passes over several tokens,
EAGLE's draft. The times are real, what random weights accept is not. Needs
about 40 GB of GPU memory, and transformers and torch, `pip install
'specsamp[parity]'`; `--transformers=False` does without and takes half.

  python launch/bench.py --config=configs/accelerator.py --workdir=runs/bench
  python launch/bench.py --config=configs/accelerator.py --workdir=runs/bench \
    --graphs

`:smoke` is the smallest size, for a CPU.
"""

import dataclasses

import ml_collections

from specsamp.errors import describe_unknown
from specsamp.models import presets

_TINY = dict(
  vocab_size=128, width=32, num_layers=2, num_heads=4, num_kv_heads=2,
  head_dim=8, mlp_width=64, dtype='float32',
)  # fmt: skip


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: smoke for the smallest run; left out, the full one."""
  if arg not in (None, 'smoke'):
    raise ValueError(describe_unknown('argument', arg, ['smoke'], ', or none'))
  smoke = arg == 'smoke'

  def shape(name, config, gamma):
    changes = _TINY if smoke else {}
    return dict(
      name='tiny ' * smoke + name,
      # A `TransformerConfig`.
      shape=dataclasses.asdict(dataclasses.replace(config, **changes)),
      sizes=(1, 5) if smoke else (1, 5, 26, 64),  # tokens of the passes
      gamma=gamma,  # tokens that EAGLE drafts a round; 0 is no EAGLE
    )

  return ml_collections.ConfigDict(
    dict(
      title='Rounds and passes on one accelerator',
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target='',
      draft='',
      # Methods of the pair, see `experiments.method_config.MethodConfig`. The
      # baseline is added.
      methods=_methods(smoke),
      top_p=1.0,  # of the temperatures above 0
      data='../shared/data',  # folder with the published sets of prompts
      num_prompts=1 if smoke else 8,
      max_prompt_tokens=32 if smoke else 128,
      max_new_tokens=16 if smoke else 128,
      seed=0,
      # Models with random weights.
      shapes=(
        shape('llama-3.1-8b', presets.llama31_8b(), gamma=4),
        shape('llama-3.2-1b', presets.llama32_1b(), gamma=0),
      ),
      prompt_tokens=32 if smoke else 128,  # of the shapes, before the timing
      context=64 if smoke else 1024,  # of the shapes, slots of the caches
      repeats=1 if smoke else 9,  # turns
    )
  ).lock()


def _methods(smoke: bool) -> tuple[dict, ...]:
  chain, tree = (1,) * 4, (4, 2, 1, 1)
  of_tree = dict(verifier='multi_candidate', law='without_replacement')
  every = (
    dict(name='draft', branching=chain),
    dict(name='draft', branching=tree, **of_tree),
    dict(name='EAGLE', branching=chain, drafter='eagle'),
    dict(name='EAGLE', branching=tree, drafter='eagle', **of_tree),
  )
  return tuple(
    method | dict(temperature=temperature)
    for temperature in ((0.0,) if smoke else (0.0, 1.0))
    for method in ((every[0], every[3]) if smoke else every)
  )
