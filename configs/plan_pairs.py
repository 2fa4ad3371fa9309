r"""The published pairs on TPU slices and GPUs, planned by their compilers.

Compiles the scoring pass, the draft step and the whole decoding loop of a pair
for chips that need not exist. The report has the memory of a chip, the messages
between chips, the predicted time of a loop, and a price list of passes over
trees. It takes 1 to 3 minutes for each slice on 2 CPU cores;
--config.compile=False predicts in seconds.

  python launch/plan.py --topology=v5e:2x2 \
    --config=configs/plan_pairs.py:llama-13b+llama-68m

With `:PAIR,self` the target drafts for itself, with weights in 8 bits.

A wrong pair lists all of them; `specsamp.evaluation.pairs` has the smallest
slice of four chips or more that holds each. `configs/chinchilla.py` compares
`chinchilla-70b+chinchilla-4b` with the figures of its paper.
"""

import dataclasses

from specsamp.errors import check_name
from specsamp.evaluation.pairs import PAIRS
from specsamp.planning.config import PlanConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'plan'


def get_config(arg: str = ''):
  """Returns the config of a pair, or of its target and itself in 8 bits."""
  name = arg.removesuffix(',self')
  check_name('argument', name, PAIRS)
  target, draft, _ = PAIRS[name]
  drafts_itself = name != arg
  if drafts_itself:
    draft = target
  longest = min(target.max_length, draft.max_length, 32_768)
  contexts = [n for n in (512, 2048) if n < longest]
  return config_dict(
    PlanConfig,
    title=arg,
    target=dataclasses.asdict(target),
    draft=dataclasses.asdict(draft),
    draft_weights='int8' if drafts_itself else '',
    prices=dict(contexts=(*contexts, longest)),
  )
