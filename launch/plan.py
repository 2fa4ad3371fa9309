"""Plans a pod: compiles for chips that are not there, predicts and compares.

python launch/plan.py --config=configs/chinchilla.py --topology=v4:2x2x4
python launch/plan.py --config=configs/chinchilla.py --topology=v5e-16,v6e-16

No TPU or GPU is needed, only their compilers: pip install 'specsamp[tpu]' for
TPUs, and 'specsamp[gpuaot]' for GPUs such as h100:8.
"""

import os

os.environ.setdefault('JAX_PLATFORMS', 'cpu')  # nothing runs on a device
# What is compiled for chips that are not there cannot be loaded again.
os.environ.setdefault('JAX_ENABLE_COMPILATION_CACHE', 'false')

from absl import flags

from specsamp import cli
from specsamp.planning import plan

_TOPOLOGY = cli.define_required(
  'topology',
  'Chips to compile for, such as v4:2x2x4, v5e-16 or h100:8, with commas.',
)


def main():
  config = flags.FLAGS.config
  job = plan.prepare(config.to_dict(), _TOPOLOGY.value.split(','))
  job.run(cli.make_workdir(flags.FLAGS.workdir, config))


if __name__ == '__main__':
  cli.define_flags('runs/plan')
  cli.run(main, distributes=False)
