r"""The post on speculative decoding for Llama 3.1: greedy, drafts of 4 tokens.

Its two tables: a 70B target with an 8B draft, 2.61x (11.3 s instead of 27.7),
and n-grams on a code edit, about 2x with an 8B target, which
`configs/ngram_code_edit.py` shows at length. Here both decode code edits, on
the embedded pair or (`:llama-3.1-70b+llama-3.1-8b`) on MODELS/... About two
minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/papers/llama31/tables.py \
    --workdir=runs/llama31

`:smoke`, or `,smoke` behind the pair, is the smallest size.
"""

import ml_collections

from specsamp.experiments import config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: `smoke`, a pair of published models, or both: `PAIR,smoke`."""
  size = config.parse(arg)
  smoke = size.smoke
  return ml_collections.ConfigDict(
    dict(
      title='Llama 3.1 and its drafts',
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target=size.target,
      draft=size.draft,
      dtype='',  # the target computes in; '' is its folder's
      # Each a `experiments.method_config.MethodConfig`; the baseline is added.
      methods=(
        dict(
          name='speculative sampling',
          branching=(1,) * (2 if smoke else 4),
          temperature=0.0,
          paper='2.61',
        ),
        dict(
          name='n-grams',
          drafter='ngram',
          branching=(1,) * (2 if smoke else 10),
          temperature=0.0,
          law='deterministic',
          verifier='naive',
          paper='2',
        ),
      ),
      top_p=1.0,  # of the temperatures above 0
      tasks=('code_edits',),
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      num_prompts=1 if smoke else 16,  # of each task
      samples=1,  # of each prompt, at temperatures above 0
      max_prompt_tokens=96 if smoke else 192,
      max_new_tokens=16 if smoke else 512 if size.pair else 128,
      seed=0,
      plot='by_method',
      passes=False,  # time what a pass over the best trees costs
      parts=False,  # time rounds of which the paper has figures
      bounds=False,  # find the most that any rule could accept
      search=False,  # search the best static trees, and try them
      note='The post: one prompt each, of its own choice.',
    )
  ).lock()
