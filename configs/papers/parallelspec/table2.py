r"""Table 2 of ParallelSpec: the gain of self-distillation.

Xiao et al. 2410.05589, section 5.3: EAGLE + ParallelSpec trained on a text and
on the target's own continuations, here of the standard library and the embedded
target. Both continue from the embedded EAGLE for the same number of steps. Run

  python launch/distill.py --workdir=RUNS/TEXT \
    --config=configs/distill_pycode.py:eagle_parallel \
    --config.init=specsamp/zoo/pycode/drafters/eagle --config.optimizer=muon \
    --config.retention=0.8 --config.learning_rate=1.5e-3 --config.steps=200 \
    --config.num_continuations=0

and the same with --workdir=RUNS/OWN, --config.num_continuations=2048 and
--config.temperatures='(0.0, 1.0)': ten minutes of a core each, and three for
the target's continuations. Then, three minutes on 2 CPU cores,

  python launch/evaluate.py --workdir=runs/parallelspec2 \
    --config=configs/papers/parallelspec/table2.py:RUNS

`:smoke` is the smallest size, with the embedded drafter in both places.
"""

from specsamp.errors import UserError
from specsamp.experiments.config import ComparisonConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'evaluate'


def get_config(arg: str = ''):
  """Returns the config of a folder with the runs TEXT and OWN, or of smoke."""
  if not arg:
    raise UserError("argument: got '', expected the folder of both drafters")
  smoke = arg == 'smoke'
  text, own = (
    'eagle_parallel' if smoke else f'{arg}/{name}/drafter'
    for name in ('TEXT', 'OWN')
  )
  return config_dict(
    ComparisonConfig,
    title='ParallelSpec: table 2',
    methods=tuple(
      dict(
        name=name,
        drafter=drafter,
        branching=(1,) * (2 if smoke else 5),
        temperature=temperature,
        paper='' if temperature else paper,
      )
      for temperature in (0.0, 1.0)
      for name, drafter, paper in (
        ('EAGLE', 'eagle', '2.40 / 3.55'),
        ('+ ParallelSpec', text, '2.74 / 3.49'),
        ('+ self-distillation', own, '2.82 / 3.78'),
      )
    ),
    num_prompts=1 if smoke else 16,
    max_prompt_tokens=32 if smoke else 128,
    max_new_tokens=16 if smoke else 128,
    note=(
      'The paper: Llama 2 7B on an A100. The embedded EAGLE is '
      "self-distilled here, the paper's was not."
    ),
  )
