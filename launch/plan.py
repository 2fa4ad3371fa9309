"""Plans a pod: compiles for chips that need not exist, predicts and compares.

python launch/plan.py --config=configs/chinchilla.py --topology=v4:2x2x4
python launch/plan.py --config=configs/chinchilla.py --topology=v5e-16,v6e-16

No TPU or GPU is needed, only their compilers: pip install 'specsamp[tpu]' for
TPUs, and 'specsamp[gpuaot]' for GPUs such as h100:8.
"""

import os

os.environ.setdefault('JAX_PLATFORMS', 'cpu')  # nothing runs on a device
# A program compiled for absent chips cannot be loaded from the cache.
os.environ.setdefault('JAX_ENABLE_COMPILATION_CACHE', 'false')

from absl import flags

from specsamp import cli
from specsamp.planning import plan
from specsamp.planning.config import PlanConfig

_TOPOLOGY = flags.DEFINE_string(
  'topology',
  None,
  'Chips to compile for, such as v4:2x2x4, v5e-16 or h100:8, with commas. Must '
  'be given.',
  required=True,
)
_WORKDIR = cli.define_workdir('runs/plan')


def main(config):
  job = plan.prepare(config.to_dict(), _TOPOLOGY.value.split(','))
  job.run(cli.make_workdir(_WORKDIR.value, config))


if __name__ == '__main__':
  cli.run(main, PlanConfig, distributes=False)
