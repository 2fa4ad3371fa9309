"""n-gram decoding of code edits, on any machine.

The demonstration of the post on speculative decoding for Llama 3.1, "n-gram on
a code edit", 2x with an 8B model: where the output repeats the input, what
stands there already is the draft. Of held-out files of the standard library,
half of the prompts are a function followed by the beginning of itself with an
argument renamed, half a repetitive stretch of a module; greedy, with and
without n-grams, over a sweep of draft lengths and for three matches at once.
About two minutes on 2 CPU cores.

  python launch/decode.py --config=configs/ngram_code_edit.py

`:smoke` decodes two prompts, 16 tokens each. `--config.drafter=ngram_or_draft
--config.branching='()'` asks the draft model where there is no match.
`configs/quickstart.py` lists what the keys take.
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
      dtype='',  # that the target computes in; '' is what its folder has
      drafter='ngram',
      # n-grams of three tokens, else two, else one, in a row's own text alone.
      lookup=dict(n_max=3, n_min=1, datastore='', window=7, draft_length=0),
      verifier='',  # the one that fits the drafter: naive
      draft_len=10,  # of the streamed text, and of your own prompts
      draft_lens=(4,) if smoke else (4, 6, 8, 10, 14),  # to compare
      branching=(2, 1) if smoke else (3, 1, 1, 1, 1, 1),  # three matches
      dynamic_tree=(),  # or one whose shape each draft chooses
      adaptive=False,  # whether each round drafts as deep as pays
      law='',  # deterministic: nothing of an n-gram's draft is drawn
      temperatures=(0.0,),
      top_p=1.0,  # of the temperatures above 0
      prompts='code_edits',
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # your own prompts as turns in the target's chat template
      num_prompts=2 if smoke else 16,
      sweep_prompts=2 if smoke else 16,  # all of them with every draft length
      max_prompt_tokens=192,
      max_new_tokens=16 if smoke else 192,
      seed=0,
      repeats=1 if smoke else 11,  # of each timing of a round's parts
    )
  ).lock()
