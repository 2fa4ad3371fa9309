"""The post on speculative decoding for Llama 3.1: greedy, drafts of 4 tokens.

Its two tables: a 70B target with an 8B draft, 2.61x (11.3 s instead of 27.7),
and n-grams on a code edit, about 2x with an 8B target, which
`configs/ngram_code_edit.py` shows at length. Here both decode code edits, on
the embedded pair or (`:llama-3.1-70b+llama-3.1-8b`) on MODELS/... About two
minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/paper_llama31.py \
    --workdir=runs/llama31

`:smoke`, or `,smoke` behind the pair, is the smallest size.
"""

import ml_collections

from specsamp.jobs import config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: of `experiments.parse`."""
  size = config.parse(arg)
  chain = (1,) * (2 if size.smoke else 4)
  longer = (1,) * (2 if size.smoke else 10)
  return ml_collections.ConfigDict(
    config.defaults(size)
    | dict(
      title='Llama 3.1 and its drafts',
      methods=(
        dict(
          name='speculative sampling',
          branching=chain,
          temperature=0.0,
          paper='2.61',
        ),
        dict(
          name='n-grams',
          drafter='ngram',
          branching=longer,
          temperature=0.0,
          law='deterministic',
          verifier='naive',
          paper='2',
        ),
      ),
      tasks=('code_edits',),
      max_prompt_tokens=96 if size.smoke else 192,
      plot='by_method',
      note='The post: one prompt each, of its own choice.',
    )
  ).lock()
