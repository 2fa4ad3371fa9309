"""Lossless speculative decoding of held-out Python code, on any machine.

The embedded pair completes functions of the standard library's held-out files:
autoregressive against speculative sampling (Chen et al. 2302.01318), greedy
and nucleus, over a sweep of draft lengths: Table 1 and Figure 1 of the paper
in small: every draft length on 8 functions, the fastest on 30. Four minutes on
2 slow CPU cores.

  python launch/decode.py --config=configs/quickstart.py

`:smoke` decodes two prompts, 16 tokens each.
"""

import ml_collections

from specsamp.jobs import decode


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: smoke for the smallest run; left out, the full one."""
  if arg not in (None, 'smoke'):
    raise ValueError(f'expected smoke or nothing, got {arg!r}')
  return ml_collections.ConfigDict(decode.defaults(smoke=arg == 'smoke')).lock()
