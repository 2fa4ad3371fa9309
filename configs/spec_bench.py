"""Spec-Bench's six categories, any pair, the drafters that come with it.

Xia et al. 2401.07851: speedup and τ by category, the second turns of MT-bench
asked after the first answers. The embedded pair speaks Python, and says so to
every question: speed and acceptance are real, answers are not. 8 prompts of
each category, about eight minutes on 2 CPU cores; the published question.jsonl
must be in `--config.data`.

  python launch/evaluate.py --config=configs/spec_bench.py \
    --workdir=runs/spec_bench

`--config.num_prompts=80` is the whole of it, a pair (`:vicuna-7b+vicuna-68m`)
is read from MODELS/.. and asked in its chat template with `--config.chat=true`,
if it has one; `:smoke`, or `,smoke` behind a pair, is the smallest size.
"""

import ml_collections

from specsamp.jobs import config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: of `experiments.parse`."""
  size = config.parse(arg)
  chain = (1,) * (2 if size.smoke else 4)
  methods = [
    method | dict(branching=chain, temperature=temperature)
    for temperature in (0.0, 1.0)
    for method in (
      dict(name='SpS'),
      dict(name='EAGLE', drafter='eagle'),
      dict(name='PLD', drafter='ngram', law='deterministic', verifier='naive'),
    )
    if not (size.pair and method.get('drafter') == 'eagle')
  ]
  return ml_collections.ConfigDict(
    config.defaults(size)
    | dict(
      title='Spec-Bench',
      methods=tuple(methods),
      tasks=('spec_bench',),
      num_prompts=1 if size.smoke else 8,
      plot='by_method',
    )
  ).lock()
