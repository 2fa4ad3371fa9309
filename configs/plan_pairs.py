r"""The published pairs on TPU slices, planned by the TPU compiler.

Compiles the scoring pass, the draft step and the whole decoding loop of a pair
for a slice that need not exist. The report has the memory of a chip, the
messages between chips, the predicted time of a loop, and a price list of passes
over trees. One to three minutes on 2 CPU cores; `:PAIR,trees` compiles six of
these passes as well, which takes minutes more for each slice.

  python launch/plan.py --topology=v5e:2x2 \
    --config=configs/plan_pairs.py:llama-13b+llama-68m

A wrong pair lists all of them; `specsamp.evaluation.pairs` has the smallest
slice of four chips or more that holds each. `configs/chinchilla.py` compares
`chinchilla-70b+chinchilla-4b` with the figures of its paper.
"""

import dataclasses

from specsamp.errors import UserError, unknown
from specsamp.evaluation.pairs import PAIRS
from specsamp.planning.config import PlanConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'plan'


def get_config(arg: str = ''):
  """Returns the config of a pair, or of `PAIR,trees`."""
  name, _, trees = arg.partition(',')
  if name not in PAIRS or trees not in ('', 'trees'):
    raise UserError(unknown('argument', arg, PAIRS, ', maybe with ,trees'))
  return config_dict(
    PlanConfig,
    title=name,
    target=dataclasses.asdict(PAIRS[name].target),
    draft=dataclasses.asdict(PAIRS[name].draft),
    prices=dict(
      contexts=(512, 2048), compile_nodes=(8, 32, 128) if trees else ()
    ),
  )
