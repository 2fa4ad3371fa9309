r"""Trains a language model; resumes an interrupted run.

python launch/pretrain.py --config=configs/pretrain_pycode.py:target \
  --workdir=RUNS/target
"""

from specsamp import cli
from specsamp.training import pretrain, run
from specsamp.utils import schema

_WORKDIR = cli.define_workdir()
_mesh = cli.define_mesh('data')


def main(config):
  job = schema.read(pretrain.PretrainConfig, config.to_dict())
  mesh = _mesh()
  workdir = cli.make_workdir(_WORKDIR.value, config)
  pretrain.pretrain(job, workdir, mesh)
  print(run.summary(workdir, workdir / 'model'))


if __name__ == '__main__':
  cli.run(main, pretrain.PretrainConfig)
