"""Times rounds and passes on this device, beside what a plan predicts.

python launch/bench.py --config=configs/accelerator.py --workdir=runs/bench

A run that was cut off goes on when the same command is given again; with
--graphs the times of CUDA graphs that hold loops come beside the others, and
with --transformers=False the rest comes without those of transformers.
"""

import os

# Torch's models lie on the same GPU.
os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')

from absl import flags

from specsamp import cli
from specsamp.experiments.accelerator import job

_GRAPHS = flags.DEFINE_bool(
  'graphs', False, 'Put loops and branches into CUDA graphs too.'
)
_TRANSFORMERS = flags.DEFINE_bool(
  'transformers',
  True,
  'Time its plain decoding of the shapes beside ours; never with --graphs.',
)


def main():
  if _GRAPHS.value:
    job.put_loops_in_graphs()
  config = flags.FLAGS.config
  prepared = job.prepare(
    config.to_dict(), _TRANSFORMERS.value and not _GRAPHS.value
  )
  workdir = cli.make_workdir(flags.FLAGS.workdir, config)
  prepared.run(workdir, _GRAPHS.value)


if __name__ == '__main__':
  cli.define_flags(config='configs/accelerator.py')
  cli.run(main, distributes=False)
