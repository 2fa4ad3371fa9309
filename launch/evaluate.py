r"""Compares ways to draft and to verify: the papers' tables and figures.

python launch/evaluate.py --config=configs/papers/mcsd/table2.py \
  --workdir=runs/table2

A run that was cut off goes on when the same command is given again.
"""

from absl import flags

from specsamp import cli
from specsamp.experiments import compare

_mesh = cli.define_mesh('model')
_ALLOW_CODE_EXECUTION = cli.define_code_execution()


def main():
  config = flags.FLAGS.config
  job = compare.prepare(config.to_dict(), _mesh())
  workdir = cli.make_workdir(flags.FLAGS.workdir, config)
  job.run(workdir, _ALLOW_CODE_EXECUTION.value, cli.command())


if __name__ == '__main__':
  cli.define_flags()
  cli.run(main)
