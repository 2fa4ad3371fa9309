"""A queue of 64 requests whose texts differ 8 times in length, 8 at once.

In batches of eight that end together, and through an engine that gives the row
of a text that has ended to the next one; each plain and with a draft, by turns.
Requests ask for 16 to 128 tokens of the embedded pair.

  python launch/throughput.py --config=configs/throughput.py

`:soak` sends 500 requests of all kinds through one engine in their place (other
lengths, temperatures, seeds, samples; some are cancelled), and counts what is
compiled and how much memory the process has meanwhile, in two minutes.

  python launch/throughput.py --config=configs/throughput.py:soak

`:smoke` decodes four requests, two at once.
"""

import ml_collections

from specsamp.errors import unknown


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: soak, or smoke for the smallest run; left out, the full one."""
  if arg not in (None, 'smoke', 'soak'):
    raise ValueError(unknown('argument', arg, ['smoke', 'soak'], ', or none'))
  smoke = arg == 'smoke'
  return ml_collections.ConfigDict(
    dict(
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target='',
      draft='',
      draft_len=4,  # drafted tokens a round
      temperature=1.0,  # of all requests
      top_p=0.95,  # nucleus, at temperatures above 0
      prompts='code',  # what to complete, as in quickstart.py
      data='../shared/data',  # folder with the published sets of prompts
      num_prompts=4 if smoke else 64,  # requests
      max_prompt_tokens=64,
      max_new_tokens=8 if smoke else 128,  # of the longest text
      spread=8.0,  # the longest over the shortest
      slots=2 if smoke else 8,  # requests that are decoded at once
      rounds=16,  # of a burst at most
      repeats=1 if smoke else 5,  # turns
      # Requests of all kinds through one engine, and no times; 0 is none.
      soak=500 if arg == 'soak' else 0,
      seed=0,  # request i draws from seed + i
    )
  ).lock()
