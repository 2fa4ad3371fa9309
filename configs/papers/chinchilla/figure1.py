r"""Figure 1 of speculative sampling: the draft length K.

Chen et al. 2302.01318: the time of a loop (linear in K), the speedup (flat or
falling) and the accepted share of the draft (falling), on XSum and HumanEval,
nucleus and greedy. Four minutes on 2 CPU cores; the published files of XSum and
HumanEval must be in `--config.data`.

  python launch/evaluate.py --config=configs/papers/chinchilla/figure1.py \
    --workdir=runs/chinchilla_figure1

`:PAIR` is read from MODELS/..; `:smoke` or `:PAIR,smoke` is the smallest size.
"""

from specsamp.experiments import config

LAUNCHER = 'evaluate'


def get_config(arg: str | None = None):
  size = config.parse(arg)
  return size.comparison(
    num_prompts=16,
    title='Speculative sampling: figure 1',
    methods=tuple(
      dict(name='SpS', branching=(1,) * length, temperature=temperature)
      for temperature in (1.0, 0.0)
      for length in ((1, 2) if size.smoke else range(1, 8))
    ),
    top_p=0.8,
    small=dict(num_prompts=4, batch_size=1),
    tasks=('xsum', 'humaneval'),
    plot='by_draft_length',
    note=(
      'In the paper loops get longer linearly, HumanEval is fastest, XSum '
      'with nucleus sampling is fastest at K = 3, and longer drafts raise '
      'P90 and P99.'
    ),
  )
