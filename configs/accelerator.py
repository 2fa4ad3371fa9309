r"""Times of rounds and passes on one accelerator, next to the plan's.

Times the rounds of the embedded pair, plain, as chains, as trees and with
EAGLE, and models with the shapes of Llama 3.1 8B and 3.2 1B and random weights
in bfloat16: plain decoding, also by transformers with a static cache, passes
over several tokens, EAGLE's draft. The times are real, the acceptance of random
weights is set: 3 tokens per round. Needs about 40 GB of GPU memory, and
transformers and torch, `pip install 'specsamp[parity]'`; `--transformers=False`
takes half of the time without them.

  python launch/benchmarks/bench.py --config=configs/accelerator.py \
    --workdir=runs/bench
  python launch/benchmarks/bench.py --config=configs/accelerator.py \
    --workdir=runs/bench --graphs

`:smoke` is the smallest size, for a CPU.
"""

import dataclasses

import ml_collections

from specsamp.errors import check_name
from specsamp.models import presets

LAUNCHER = 'bench'

_TINY = dict(
  vocab_size=128, width=32, num_layers=2, num_heads=4, num_kv_heads=2,
  head_dim=8, mlp_width=64, dtype='float32',
)  # fmt: skip


def get_config(arg: str = 'full'):
  """Returns the full config, or the smallest one for `smoke`."""
  check_name('argument', arg, ('full', 'smoke'))
  smoke = arg == 'smoke'
  chain, tree = dict(branching=(1,) * 4), dict(branching=(4, 2, 1, 1))
  tree |= dict(verifier='multi_candidate', law='without_replacement')
  draft, eagle = dict(name='draft'), dict(name='EAGLE', drafter='eagle')
  methods = [draft | chain, draft | tree, eagle | chain, eagle | tree]

  def shape(name, config, gamma):
    if smoke:
      name, config = f'tiny {name}', dataclasses.replace(config, **_TINY)
    return dict(
      name=name,
      shape=dataclasses.asdict(config),
      sizes=(1, 5) if smoke else (1, 5, 26, 64),
      gamma=gamma,
      tau=3.0 if gamma else 1.0,
    )

  values = dict(
    methods=tuple(
      method | dict(temperature=temperature)
      for temperature in ((0.0,) if smoke else (0.0, 1.0))
      for method in (methods[::3] if smoke else methods)
    ),
    shapes=(
      shape('llama-3.1-8b', presets.llama31_8b(), gamma=4),
      shape('llama-3.2-1b', presets.llama32_1b(), gamma=0),
    ),
    num_prompts=1 if smoke else 8,
  )
  if smoke:
    values |= dict(max_prompt_tokens=32, max_new_tokens=16, prompt_tokens=32)
    values |= dict(context=64, repeats=1)
  return ml_collections.ConfigDict(values)
