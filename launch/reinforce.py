"""Trains a policy on its own rollouts, drawn with and without a draft.

python launch/reinforce.py --config=configs/reinforce_pycode.py
"""

from specsamp import cli
from specsamp.experiments import reinforce

_WORKDIR = cli.define_workdir('runs/reinforce')


def main(config):
  make_workdir = lambda: cli.make_workdir(_WORKDIR.value, config)
  reinforce.run(config.to_dict(), make_workdir)


if __name__ == '__main__':
  cli.run(
    main,
    reinforce.ReinforceConfig,
    'configs/reinforce_pycode.py',
    distributes=False,
  )
