"""Lossless speculative decoding of held-out Python code, on any machine.

The embedded pair completes functions of held-out files of the standard library,
autoregressively and with speculative sampling (Chen et al. 2302.01318), greedy
and with a nucleus, for several draft lengths: table 1 and figure 1 of the paper
in small. Every draft length completes 8 functions, the fastest one 20. Two
minutes on 2 CPU cores.

  python launch/decode.py --config=configs/quickstart.py

`:smoke` decodes two prompts, 16 tokens each.
"""

from specsamp.errors import check_name
from specsamp.experiments.config import DecodeConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'decode'


def get_config(arg: str = 'full'):
  """Returns the full config, or the smallest one for `smoke`."""
  check_name('argument', arg, ('full', 'smoke'))
  shown = (10, 6)  # chosen to read well
  if arg == 'full':
    others = (('ngram_or_draft', 7),)
    return config_dict(DecodeConfig, shown=shown, other_drafters=others)
  return config_dict(
    DecodeConfig,
    shown=shown,
    draft_lens=(2, 4),
    num_prompts=2,
    sweep_prompts=1,
    max_prompt_tokens=96,
    max_new_tokens=16,
    repeats=1,
  )
