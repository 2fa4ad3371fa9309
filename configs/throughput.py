"""A queue of 64 requests whose texts differ 8 times in length, 8 at once.

In batches of eight that end together, and through an engine that gives the row
of a text that has ended to the next one; each plain and with a draft, by turns,
a burst of rounds or a batch each. Requests ask for 16 to 128 tokens of the
embedded pair. Four minutes on 2 CPU cores.

  python launch/throughput.py --config=configs/throughput.py

`:mixed` is held-out functions, code edits and Spec-Bench's summaries (prose),
greedy and at temperature 1, through an engine with each of five draft lengths
and with one that is chosen in every round, for which it goes by the texts
before; all texts are equally long. The published question.jsonl must be in
`--config.data`. `--config.slots=8` has eight at once, `--config.shuffled=false`
one task and temperature after the other, each of which is timed, and
`--config.drafter=eagle` another drafter; two to three minutes each.

  python launch/throughput.py --config=configs/throughput.py:mixed

`:soak` sends 500 requests of all kinds through one engine in their place (other
lengths, temperatures, seeds, samples; some are cancelled), and counts what is
compiled and how much memory the process has meanwhile, in two minutes.

  python launch/throughput.py --config=configs/throughput.py:soak

`:smoke` decodes four requests, two at once.
"""

import ml_collections

from specsamp.errors import describe_unknown

_ARGS = 'mixed', 'soak', 'smoke'


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: one of `_ARGS`; left out, the full queue."""
  if arg not in (None, *_ARGS):
    raise ValueError(describe_unknown('argument', arg, _ARGS, ', or none'))
  smoke, mixed = arg == 'smoke', arg == 'mixed'
  return ml_collections.ConfigDict(
    dict(
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target='',
      draft='',
      # Or an embedded drafter, such as eagle, the folder of one, or your own,
      # my.module:Name; '' is the draft model.
      drafter='',
      draft_lens=(1, 2, 4, 6, 8) if mixed else (4,),  # tokens a round
      # Beside them a length that is chosen in each round, from 0 and these.
      adaptive=mixed,
      # Every prompt is asked for at each.
      temperatures=(0.0, 1.0) if mixed else (1.0,),
      top_p=1.0 if mixed else 0.95,  # nucleus, at temperatures above 0
      # What to complete, as in quickstart.py.
      prompts=('code', 'code_edits', 'spec_bench/summarization')
      if mixed
      else ('code',),
      # Tasks and temperatures; else one after the other, timed each.
      shuffled=True,
      data='../shared/data',  # folder with the published sets of prompts
      num_prompts=4 if smoke or mixed else 64,  # of each task
      max_prompt_tokens=192 if mixed else 64,
      max_new_tokens=8 if smoke else 128,  # of the longest text
      spread=1.0 if mixed else 8.0,  # the longest over the shortest
      slots=2 if smoke else 1 if mixed else 8,  # requests decoded at once
      batches=not mixed,  # also in batches that end together
      rounds=16,  # of a burst at most
      repeats=1 if smoke else 3 if mixed else 5,  # turns
      # Requests of all kinds through one engine, and no times; 0 is none.
      soak=500 if arg == 'soak' else 0,
      seed=0,  # request i draws from seed + i
    )
  ).lock()
