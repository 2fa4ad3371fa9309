r"""Spec-Bench's six categories, for any pair and the embedded drafters.

Xia et al. 2401.07851: speedup and τ by category. The second turns of MT-bench
follow the answers to the first. The embedded pair answers every question in
Python: speed and acceptance are real, the answers are not. 8 prompts of each
category, four minutes on 2 CPU cores; the published question.jsonl must be in
`--config.data`.

  python launch/evaluate.py --config=configs/spec_bench.py \
    --workdir=runs/spec_bench

`--config.num_prompts=80` takes all prompts. A pair (`:vicuna-7b+vicuna-68m`) is
read from MODELS/.., `--config.chat=true` uses its chat template; `:smoke` or
`:PAIR,smoke` is the smallest size.
"""

from specsamp.experiments import config

LAUNCHER = 'evaluate'


def get_config(arg: str | None = None):
  """Returns the config of a size, see `config.parse`."""
  size = config.parse(arg)
  methods = [
    dict(name='SpS'),
    dict(name='EAGLE', drafter='eagle'),
    dict(name='PLD', drafter='ngram', law='deterministic', verifier='naive'),
  ]
  if size.pair:
    del methods[1]  # it is trained on the embedded target
  common = dict(branching=(1,) * (2 if size.smoke else 4))
  return size.comparison(
    num_prompts=8,
    title='Spec-Bench',
    methods=tuple(
      method | common | dict(temperature=temperature)
      for temperature in (0.0, 1.0)
      for method in methods
    ),
    tasks=('spec_bench',),
  )
