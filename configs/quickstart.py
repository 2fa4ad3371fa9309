"""Lossless speculative decoding of held-out Python code, on any machine.

The embedded pair completes functions of the standard library's held-out files:
autoregressive against speculative sampling (Chen et al. 2302.01318), greedy
and nucleus, over a sweep of draft lengths: Table 1 and Figure 1 of the paper
in small. About three minutes on 2 CPU cores.

  python launch/decode.py --config=configs/quickstart.py

`:smoke` decodes two prompts, 16 tokens each.
"""

import ml_collections


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: smoke for the smallest run; left out, the full one."""
  if arg not in (None, 'smoke'):
    raise ValueError(f'expected smoke or nothing, got {arg!r}')
  smoke = arg == 'smoke'
  return ml_collections.ConfigDict(
    dict(
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target='',
      draft='',
      # What drafts: '' is the draft model; medusa, hydra, eagle,
      # medusa_parallel and eagle_parallel were trained on the target; ngram,
      # lookahead (law deterministic, verifier naive) and ngram_or_draft.
      drafter='',
      # n-grams of these lengths, in a row's own text and in a file or folder;
      # guesses a level of lookahead.
      lookup=dict(n_max=3, n_min=1, datastore='', window=7),
      verifier='token',
      # Of the streamed text, a user's own too; then those of the sweep.
      draft_len=4,
      draft_lens=(2, 4) if smoke else (2, 3, 4, 6, 8),
      # A token tree as well: (4, 2, 1) has 4 candidates, 2 after each, ..; the
      # verifier must be one for trees, such as multi_candidate.
      branching=(),
      law='iid',  # or without_replacement, deterministic
      temperatures=(0.0, 1.0),
      top_p=0.95,  # of the temperatures above 0
      # '' is held-out functions; code_edits, or a JSON list of texts.
      prompts='',
      chat=False,  # your own prompts as turns in the target's chat template
      num_prompts=2 if smoke else 30,
      max_prompt_tokens=96 if smoke else 128,
      max_new_tokens=16 if smoke else 128,
      seed=0,
      repeats=1 if smoke else 9,  # of each timing of a round's parts
    )
  ).lock()
