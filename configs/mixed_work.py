r"""Adaptive draft lengths against fixed ones, on mixed work.

Held-out functions, code edits and Spec-Bench's summaries (prose), greedy and at
temperature 1: tokens a second of fixed draft lengths and of `adaptive_drafter`,
interleaved, for every part and for all of it. The best length differs from part
to part. Ten minutes on 2 CPU cores; the published question.jsonl must be in
`--config.data`, or `--config.tasks="('code', 'code_edits')"` skips the prose.

  python launch/evaluate.py --config=configs/mixed_work.py --workdir=runs/mixed

`--config.batch_size=8` answers eight prompts of a part together, with
`--config.shuffled=true` eight of all parts. A pair (`:vicuna-7b+vicuna-68m`) is
read from MODELS/..; `:smoke` or `:PAIR,smoke` is the smallest size.
"""

from specsamp.experiments import config

LAUNCHER = 'evaluate'


def get_config(arg: str | None = None):
  size = config.parse(arg)
  lengths = (1, 2) if size.smoke else (1, 2, 4, 6, 8)
  longest = (1,) * lengths[-1]
  shapes = [dict(branching=(1,) * n) for n in lengths]
  shapes.append(dict(branching=longest, depths=(0, *lengths)))
  drafters = {'SpS': ''} if size.pair else {'SpS': '', 'EAGLE': 'eagle'}
  return size.comparison(
    num_prompts=8,
    max_prompt_tokens=192,
    title='Mixed work: adaptive and fixed draft lengths',
    methods=tuple(
      dict(name=name, drafter=drafter, temperature=temperature) | shape
      for temperature in (0.0, 1.0)
      for name, drafter in drafters.items()
      for shape in shapes
    ),
    tasks=('code', 'code_edits', 'spec_bench/summarization'),
    plot='by_draft_length',
  )
