r"""The post on speculative decoding for Llama 3.1: greedy, drafts of 4 tokens.

The post has two tables: a 70B target with an 8B draft, 2.61x (11.3 s instead of
27.7), and n-grams on a code edit, about 2x with an 8B target, which
`configs/ngram_code_edit.py` shows at length. Here both decode code edits, on
the embedded pair or on `:llama-3.1-70b+llama-3.1-8b` in MODELS/... Two minutes
on 2 CPU cores.

  python launch/evaluate.py --config=configs/papers/llama31/tables.py \
    --workdir=runs/llama31

`:smoke` or `:PAIR,smoke` is the smallest size.
"""

from specsamp.experiments import config

LAUNCHER = 'evaluate'


def get_config(arg: str | None = None):
  size = config.parse(arg)
  smoke = size.smoke
  values = size.comparison(
    num_prompts=16,
    title='Llama 3.1 and its drafts',
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
    tasks=('code_edits',),
    small=dict(batch_size=1),
    note='The post: one prompt each, of its own choice.',
  )
  if smoke or not size.pair:  # an edit is longer than other prompts
    values.max_prompt_tokens = 96 if smoke else 192
  return values
