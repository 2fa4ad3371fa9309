"""Trains a policy on its own rollouts, drafted, beside those without a draft.

python launch/reinforce.py --config=configs/reinforce_pycode.py
"""

from absl import flags

from specsamp import cli
from specsamp.experiments import reinforce


def main():
  config = flags.FLAGS.config
  job = reinforce.prepare(config.to_dict())
  job.run(cli.make_workdir(flags.FLAGS.workdir, config))


if __name__ == '__main__':
  cli.define_flags('runs/reinforce', 'configs/reinforce_pycode.py')
  cli.run(main, distributes=False)
