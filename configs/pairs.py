r"""Published targets with their drafts, decoded from folders of their weights.

As `quickstart.py`, of the pairs that the papers decode: the held-out functions
of the standard library, or a prompt of your own. The folders are what
`specsamp.load` reads: config.json, safetensors and a tokenizer, as Hugging Face
has them, or what `launch/import_weights.py` makes of them. Weights of a 13B
target take 26 GB; `plan_pairs.py` has what fits which TPU slice.

  python launch/decode.py --config=configs/pairs.py:llama-13b+llama-68m \
    --mesh=1x4

The folders are MODELS/llama-13b and MODELS/llama-68m, where `launch/fetch.py
llama-13b+llama-68m` puts them, or elsewhere: --config.target=DIR
--config.draft=DIR, which may be names of the hub too. `--config.chat=true
--prompt=..` puts a prompt in the target's chat template.

Pairs: `llama-13b+llama-68m`, `llama-13b+vicuna-68m`, `llama-13b+llama-160m`,
`llama-13b+vicuna-160m`, `llama-33b+llama-68m`, `llama-33b+llama-160m`,
`vicuna-13b+llama-68m`, `vicuna-13b+vicuna-68m`, `vicuna-13b+llama-160m`,
`vicuna-13b+vicuna-160m`, `vicuna-33b+llama-68m`, `vicuna-33b+llama-160m`,
`vicuna-33b+vicuna-68m`, `llama-2-13b+llama-68m`, `llama-2-13b+vicuna-68m`,
`llama-2-13b+llama-160m`, `llama-2-13b+vicuna-160m`,
`llama-2-13b-chat+llama-68m`, `llama-2-13b-chat+vicuna-68m`,
`llama-2-13b-chat+llama-160m`, `llama-2-13b-chat+vicuna-160m`,
`opt-13b+opt-125m`, `opt-30b+opt-125m`, `opt-iml-30b+opt-125m`,
`vicuna-7b+vicuna-68m`, `llama-2-7b-chat+llama-68m`, `llama-3-8b+llama-3.2-1b`,
`llama-3.1-70b+llama-3.1-8b`, `llama-3.1-8b+llama-3.2-1b`, and
`chinchilla-70b+chinchilla-4b`, of which no weights were published.
`configs/quickstart.py` lists what the keys take.
"""

import ml_collections

from specsamp.errors import describe_unknown
from specsamp.evaluation import pairs


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: a pair."""
  if arg not in pairs.PAIRS:
    raise ValueError(describe_unknown('argument', arg, pairs.PAIRS))
  target, draft = pairs.folders(arg)
  return ml_collections.ConfigDict(
    dict(
      # Folders of models for `specsamp.load`.
      target=f'MODELS/{target}',
      draft=f'MODELS/{draft}',
      dtype='',  # that the target computes in; '' is what its folder has
      drafter='',  # the draft model
      # Of drafters that look up: n-grams' lengths, where to look beside a row's
      # own text, guesses a level of lookahead; of ngram_or_draft tokens of the
      # draft model, 0 for as many as of a match.
      lookup=dict(n_max=3, n_min=1, datastore='', window=7, draft_length=0),
      verifier='',  # the one that fits the drafter
      draft_len=4,  # of the streamed text, and of your own prompts
      draft_lens=(2, 4, 6),  # to compare
      branching=(),  # a token tree as well, if not empty
      dynamic_tree=(),  # or one whose shape each draft chooses
      adaptive=False,  # whether each round drafts as deep as pays
      law='',  # how candidates are chosen; '' is what the drafter needs
      # To compare; your own prompts have the first, the text shown before a
      # comparison the last.
      temperatures=(0.0, 1.0),
      top_p=0.95,  # of the temperatures above 0
      prompts='code',  # held-out functions of the standard library
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # your own prompts as turns in the target's chat template
      num_prompts=30,
      # Completed with every draft length; the others with the fastest.
      sweep_prompts=8,
      max_prompt_tokens=128,
      max_new_tokens=128,
      seed=0,
      repeats=11,  # of each timing of a round's parts
    )
  ).lock()
