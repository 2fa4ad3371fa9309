r"""Figures 3 and 5 of multi-candidate speculative decoding: acceptance.

Yang et al. 2401.06706: the share of rounds that accept one of 1 to 64
candidates for the next token. Three minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/papers/mcsd/figure3.py \
    --workdir=runs/mcsd_figure3

A pair of the paper (`:llama-33b+llama-68m`, in MODELS/..) decodes Alpaca and
WMT; `:smoke` or `:PAIR,smoke` is the smallest size.
"""

from specsamp.experiments import config

LAUNCHER = 'evaluate'

_RULES = (  # name, verifier, law
  ('without replacement', 'multi_candidate', 'without_replacement'),
  ('with replacement', 'multi_candidate', 'iid'),
  ('naive', 'naive', 'without_replacement'),
)


def get_config(arg: str | None = None):
  size = config.parse(arg)
  most = {'small': 32, 'smoke': 2}.get(size.name, 64)
  return size.comparison(
    num_prompts=8,
    max_new_tokens=64,
    title='Multi-candidate speculative decoding: figure 3',
    methods=tuple(
      dict(
        name=name,
        branching=(count,),
        temperature=temperature,
        verifier=verifier,
        law=law,
      )
      for temperature in (0.0, 1.0)
      # At temperature 0 all rules are the same.
      for name, verifier, law in (_RULES if temperature else _RULES[:1])
      for count in (1, 2, 4, 8, 16, 32, 64)
      if count <= most
    ),
    tasks=('alpaca', 'wmt') if size.pair else ('code',),
    plot='by_candidates',
    note='In the paper the curves flatten beyond 32 candidates.',
  )
