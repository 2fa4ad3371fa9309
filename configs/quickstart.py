"""Lossless speculative decoding of held-out Python code, on any machine.

The embedded pair completes functions of the standard library's held-out files:
autoregressive against speculative sampling (Chen et al. 2302.01318), greedy
and nucleus, over a sweep of draft lengths: Table 1 and Figure 1 of the paper
in small: every draft length on 8 functions, the fastest on 20. Two minutes on
2 CPU cores.

  python launch/decode.py --config=configs/quickstart.py

`:smoke` decodes two prompts, 16 tokens each.
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
      # The drafter: '' is the draft model, none is plain decoding. medusa,
      # hydra, eagle, medusa_parallel, eagle_parallel and eagle_parallel_deep
      # were trained on the embedded target. ngram, lookahead and ngram_or_draft
      # look up. A folder names a trained drafter, my.module:Name a user-defined
      # one. The verifier and the prompts may be user-defined too.
      drafter='',
      # Lengths of the n-grams, looked for in a row's own text and in
      # `datastore`, a file or folder; guesses a level of lookahead; tokens of
      # the draft model in ngram_or_draft, 0 being as many as of a match.
      lookup=dict(n_max=3, n_min=1, datastore='', window=7, draft_length=0),
      # The rule that accepts drafted tokens; '' is the one that fits the
      # drafter: token for chains, multi_candidate for trees, naive for
      # deterministic drafts
      verifier='',
      draft_len=4,  # of the streamed text, and of your own prompts
      # To compare. On CPUs large products are padded to 4 or 8 tokens, which
      # drafts of 3 and of 7 tokens fill.
      draft_lens=(2, 4) if smoke else (2, 3, 5, 7),
      # Further drafters to compare with the draft model, and their draft
      # lengths; not used with another drafter or a verifier.
      other_drafters=() if smoke else (('ngram_or_draft', 7),),
      # Number and seed of the prompt that is shown before a comparison, chosen
      # to read well.
      shown=(10, 6),
      # A token tree as well: (4, 2, 1) has 4 candidates, 2 after each, ..; in
      # (4, (2, 1)) the first has 2 and the second 1.
      branching=(),
      # A tree whose shape each draft chooses, of so many nodes, levels and
      # children of a node, such as (16, 6, 4).
      dynamic_tree=(),
      # Whether each round drafts as deep as pays: 0 or one of draft_lens, or
      # as deep as the tree.
      adaptive=False,
      law='',  # how candidates are chosen; '' fits drafter and verifier
      # To compare; your own prompts have the first, the text shown before a
      # comparison the last.
      temperatures=(0.0, 1.0),
      top_p=0.95,  # of the temperatures above 0
      # What to complete: code (held-out functions), code_edits, humaneval,
      # xsum, alpaca, wmt, spec_bench or spec_bench/CATEGORY, or a .json or
      # .jsonl file of prompts.
      prompts='code',
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # your own prompts as turns in the target's chat template
      num_prompts=2 if smoke else 20,
      # Completed with every draft length; the others with the fastest.
      sweep_prompts=1 if smoke else 8,
      max_prompt_tokens=96 if smoke else 128,
      max_new_tokens=16 if smoke else 128,
      seed=0,
      repeats=1 if smoke else 11,  # of each timing of a round's parts
    )
  ).lock()
