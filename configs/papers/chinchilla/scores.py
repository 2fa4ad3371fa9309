r"""Speculative sampling: scores with and without a draft, on easy tasks.

Chen et al. 2302.01318 show in table 1 that a draft does not change ROUGE and
pass@k. The embedded target passes nothing there, so that its zeros show little.
Here it completes calls and the heads of blocks and copies lines, all of
held-out files, and is right or wrong up to the end of a line (exact match). The
report has the p-value of each difference, by permutation. Five minutes on 2 CPU
cores.

  python launch/evaluate.py --config=configs/papers/chinchilla/scores.py \
    --workdir=runs/chinchilla_scores

A pair such as `:llama-3.1-70b+llama-3.1-8b` is read from MODELS/..; `:smoke` or
`:PAIR,smoke` is the smallest size.
"""

from specsamp.experiments import config

LAUNCHER = 'evaluate'


def get_config(arg: str | None = None):
  """Returns the config of a size, see `config.parse`."""
  size = config.parse(arg)
  smoke = size.smoke
  chain = (1,) * (2 if smoke else 4)
  methods = [
    dict(name='SpS', branching=chain),
    dict(
      name='PLD',
      drafter='ngram',
      branching=chain,
      law='deterministic',
      verifier='naive',
    ),
    dict(
      name='multi-candidate',
      branching=(2, 1) if smoke else (4, 2, 2),
      law='without_replacement',
      verifier='multi_candidate',
    ),
  ]
  if not size.pair:  # whose trained drafters are embedded
    methods.append(dict(name='EAGLE', drafter='eagle', branching=chain))
  values = size.comparison(
    num_prompts=32,
    max_new_tokens=32,
    samples=1 if smoke else 4,
    title='Speculative sampling: scores with and without a draft',
    methods=tuple(
      method | dict(temperature=temperature)
      for temperature in (0.0, 1.0)
      for method in methods
    ),
    top_p=0.8,
    tasks=('code_answers',),
    note=(
      'The paper: XSum ROUGE-2 0.112 -> 0.114 and 0.157 -> 0.156, HumanEval '
      '45.1% -> 47.0%.'
    ),
  )
  values.max_prompt_tokens = 96 if smoke else 192
  return values
