r"""The published pairs on TPU slices, planned by the TPU compiler.

The scoring pass, the draft step and the whole decoding loop of a pair are
compiled for a slice that is not there: what lies on a chip, what the chips
send, what a loop should take, and a price list of passes over trees. One to
three minutes on 2 CPU cores; `:PAIR,trees` compiles six of these passes too,
minutes more for each slice.

  python launch/plan.py --topology=v5e:2x2 \
    --config=configs/plan_pairs.py:llama-13b+llama-68m

Pairs, and the smallest slices of four chips or more that hold them:
`llama-13b+llama-68m`, `llama-13b+vicuna-68m`, `llama-13b+llama-160m`,
`llama-13b+vicuna-160m`, `vicuna-13b+llama-68m`, `vicuna-13b+vicuna-68m`,
`vicuna-13b+llama-160m`, `vicuna-13b+vicuna-160m`, `llama-2-13b+llama-68m`,
`llama-2-13b+vicuna-68m`, `llama-2-13b+llama-160m`, `llama-2-13b+vicuna-160m`,
`llama-2-13b-chat+llama-68m`, `llama-2-13b-chat+vicuna-68m`,
`llama-2-13b-chat+llama-160m`, `llama-2-13b-chat+vicuna-160m`,
`opt-13b+opt-125m`, `vicuna-7b+vicuna-68m`, `llama-2-7b-chat+llama-68m`,
`llama-3-8b+llama-3.2-1b`, `llama-3.1-8b+llama-3.2-1b` v5e:2x2;
`llama-33b+llama-68m`, `llama-33b+llama-160m`, `vicuna-33b+llama-68m`,
`vicuna-33b+llama-160m`, `vicuna-33b+vicuna-68m`, `opt-30b+opt-125m`,
`opt-iml-30b+opt-125m` v6e:2x2; `llama-3.1-70b+llama-3.1-8b` v5p:2x2x1;
`chinchilla-70b+chinchilla-4b` v4:2x2x4 (`configs/chinchilla.py` has the paper's
figures beside it).
"""

import dataclasses

import ml_collections

from specsamp.errors import describe_unknown
from specsamp.evaluation.pairs import PAIRS
from specsamp.planning.prices import EMBEDDED_PAIR


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: a pair; `PAIR,trees` to compile passes over trees too."""
  name, _, more = (arg or '').partition(',')
  if name not in PAIRS or more not in ('', 'trees'):
    raise ValueError(
      describe_unknown('argument', arg, PAIRS, ', maybe with ,trees')
    )
  pair = PAIRS[name]
  model = lambda config: ml_collections.ConfigDict(dataclasses.asdict(config))
  return ml_collections.ConfigDict(
    dict(
      title=name,
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
      # What a pass over N nodes should take; its keys are `PriceConfig`'s.
      prices=dict(
        nodes=(1, 8, 16, 32, 64, 128),  # () leaves the list out
        batches=(1, 8, 32),
        contexts=(512, 2048),
        # ((name, has_nucleus, (chance, ..)), ..): whether the sampling has a
        # nucleus, the chance that the child of rank k is accepted.
        acceptance=EMBEDDED_PAIR,
        compile_nodes=(8, 32, 128) if more else (),  # first and last batch
      ),
    )
  ).lock()
