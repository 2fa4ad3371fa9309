r"""Trains a language model, or resumes where a run was cut off.

python launch/pretrain.py --config=configs/pretrain_pycode.py:target \
  --workdir=RUNS/target
"""

from absl import flags

from specsamp import cli
from specsamp.training import pretrain, run

_mesh = cli.define_mesh('data')


def main():
  config = flags.FLAGS.config
  job = pretrain.from_dict(config.to_dict())
  mesh = _mesh()
  workdir = cli.make_workdir(flags.FLAGS.workdir, config)
  pretrain.pretrain(job, workdir, mesh)
  print(run.summary(workdir, workdir / 'model'))


if __name__ == '__main__':
  cli.define_flags()
  cli.run(main)
