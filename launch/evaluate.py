"""Compares ways to draft and to verify: the papers' tables and figures.

python launch/evaluate.py --config=configs/mcsd_table2.py --workdir=runs/table2

A run that was cut off goes on when the same command is given again.
"""

from absl import flags

from specsamp import cli
from specsamp.evaluation import comparison

_mesh = cli.define_mesh('model')


def main():
  config = flags.FLAGS.config
  job = comparison.prepare(config.to_dict(), _mesh())
  job.run(cli.make_workdir(flags.FLAGS.workdir, config))


if __name__ == '__main__':
  cli.define_flags()
  cli.run(main)
