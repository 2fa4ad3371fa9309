"""The embedded pair in transformers and here: milliseconds a token.

Plain and speculative decoding by both libraries, greedy and sampled, of the
same prompts to the same lengths in one run. The pair is written for
transformers into the workdir, where it stays. Needs transformers and torch,
`pip install 'specsamp[parity]'`. About three minutes on 2 CPU cores.

  python launch/compare.py --config=configs/compare_transformers.py

`:smoke` decodes one prompt, 8 tokens.
"""

import ml_collections

from specsamp.errors import describe_unknown


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: smoke for the smallest run; left out, the full one."""
  if arg not in (None, 'smoke'):
    raise ValueError(describe_unknown('argument', arg, ['smoke'], ', or none'))
  smoke = arg == 'smoke'
  return ml_collections.ConfigDict(
    dict(
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target='',
      draft='',
      draft_len=4,  # drafted tokens a round, in both libraries
      temperatures=(0.0, 1.0),  # to compare
      prompts='code',  # what to complete, as in quickstart.py
      data='../shared/data',  # folder with the published sets of prompts
      num_prompts=1 if smoke else 16,
      max_prompt_tokens=128,
      max_new_tokens=8 if smoke else 128,
      seed=0,  # prompt i draws from seed + i
    )
  ).lock()
