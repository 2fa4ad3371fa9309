r"""Speculative sampling: acceptance against temperature, top-p and top-k.

Chen et al. 2302.01318, 4.2: "the overall acceptance rate is robust to the exact
parameters used", without figures. In 6.2 HumanEval is faster than XSum for
three reasons, one of them its temperature, which sharpens draft and target:
here both tasks are decoded at each temperature. Drafts of 4 tokens, one value
changed at a time. Six minutes on 2 CPU cores; the published files of XSum and
HumanEval must be in `--config.data`.

  python launch/evaluate.py --config=configs/papers/chinchilla/sampling.py \
    --workdir=runs/chinchilla_sampling

`:PAIR` is read from MODELS/..; `:smoke` or `:PAIR,smoke` is the smallest size.
"""

from specsamp.experiments import config

LAUNCHER = 'evaluate'


def get_config(arg: str | None = None):
  size = config.parse(arg)
  temperatures, top_ps, top_ks = {
    'small': ((0.0, 0.5, 1.0, 1.25), (0.5, 0.8), (5, 20)),
    'smoke': ((0.5, 1.0), (0.8, 0.95), (20, 100)),
  }.get(
    size.name,
    ((0.0, 0.25, 0.5, 0.8, 1.0, 1.25), (0.5, 0.8, 0.95), (5, 20, 100)),
  )
  samplings = [
    *(dict(temperature=t) for t in temperatures),
    *(dict(temperature=1.0, top_p=p) for p in top_ps),
    *(dict(temperature=1.0, top_k=k) for k in top_ks),
  ]
  return size.comparison(
    num_prompts=12,
    title='Speculative sampling: temperature, top-p and top-k',
    methods=tuple(
      dict(name='SpS', branching=(1,) * (2 if size.smoke else 4)) | sampling
      for sampling in samplings
    ),
    tasks=('xsum', 'humaneval'),
    plot='by_sampling',
    note=(
      'The paper: acceptance is robust to the exact parameters, and a '
      'temperature that sharpens both distributions raises it.'
    ),
  )
