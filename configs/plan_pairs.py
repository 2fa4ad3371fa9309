"""The published pairs on TPU slices, planned by the TPU compiler.

The scoring pass, the draft step and the whole decoding loop of a pair are
compiled for a slice that is not there: what lies on a chip, what the chips
send, what a loop should take. One to three minutes on 2 CPU cores.

  python launch/plan.py --topology=v5e:2x2 \
    --config=configs/plan_pairs.py:llama-13b+llama-68m

Pairs, and the smallest slices of four chips or more that hold them:
`llama-13b+llama-68m`, `llama-13b+llama-160m`, `vicuna-7b+vicuna-68m`,
`vicuna-13b+vicuna-68m`, `opt-13b+opt-125m`, `llama-2-7b+llama-68m`,
`llama-2-13b+llama-68m`, `llama-3.1-8b+llama-3.2-1b` v5e:2x2;
`llama-33b+llama-68m`, `llama-33b+llama-160m`, `vicuna-33b+vicuna-68m`,
`opt-30b+opt-125m` v6e:2x2; `llama-3.1-70b+llama-3.1-8b` v5p:2x2x1;
`chinchilla-70b+chinchilla-4b` v4:2x2x4 (`configs/chinchilla.py` has the paper's
figures beside it).
"""

import dataclasses

import ml_collections

from specsamp.models.pairs import PAIRS


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: a pair."""
  if arg not in PAIRS:
    raise ValueError(f'expected one of {", ".join(PAIRS)}, got {arg!r}')
  pair = PAIRS[arg]
  model = lambda config: ml_collections.ConfigDict(dataclasses.asdict(config))
  return ml_collections.ConfigDict(
    dict(
      title=arg,
      # Shapes, each a `TransformerConfig`.
      target=model(pair.target),
      draft=model(pair.draft),
      alternative=model(pair.draft),  # another draft; none is planned here
      gamma=4,  # drafted tokens of the compiled programs
      context=2048,  # slots of the caches
      batch=1,
      alphas=(0.6, 0.7, 0.8, 0.9),  # acceptance rates to predict speedups at
      compare=(),  # slices to predict, and not to compile for
      alternative_on=(),  # slices of the alternative
      measured='',  # a JSON file of times to use in place of predicted ones
      paper_ms=(),  # reported times: model, slice, milliseconds a token
      paper_speedups=(),  # reported speedups: task, speedup
      compile=True,  # minutes for each slice
    )
  ).lock()
