"""Chinchilla 70B with its 4B draft on TPU pods, planned by the TPU compiler.

Reproduces the setup of Chen et al. 2302.01318, 16 TPU v4, as far as a compiler
and a roofline can: the times of section 6, and the tokens per loop that the
speedups of table 1 imply. It takes 2 to 3 minutes for each slice on 2 CPU
cores, and no TPU.

  python launch/plan.py --config=configs/chinchilla.py --topology=v4:2x2x4

`:predict` compiles nothing and takes seconds; it compares slices with
--topology=v4-32,v5e-16,v5p-32. --config.measured=FILE replaces predicted times
by measured ones. A model of another shape (--config.target.num_layers=40) needs
--config.paper_ms='()' and --config.paper_speedups='()' too.
"""

import dataclasses

from specsamp.errors import check_name
from specsamp.models import presets
from specsamp.planning.config import PlanConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'plan'


def get_config(arg: str = 'full'):
  """Returns the full config, or one without compilation for `predict`."""
  check_name('argument', arg, ('full', 'predict'))
  return config_dict(
    PlanConfig,
    title='Chinchilla 70B and its 4B draft',
    target=dataclasses.asdict(presets.chinchilla_70b()),
    draft=dataclasses.asdict(presets.chinchilla_draft_4b()),
    alternative=dataclasses.asdict(presets.chinchilla_7b()),
    # Section 6.
    paper_ms=(
      ('target', 'v4:2x2x4', 14.1),
      ('draft', 'v4:2x2x4', 1.8),
      ('alternative', 'v4:2x2x1', 5.0),
    ),
    # Table 1.
    paper_speedups=(
      ('XSum, nucleus', 1.92),
      ('XSum, greedy', 2.01),
      ('HumanEval, nucleus', 2.46),
    ),
    compile=arg == 'full',
  )
