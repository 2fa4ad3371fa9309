r"""Writes dialogues with a chat model; resumes an interrupted run.

python launch/dialogues.py --config=configs/dialogues.py \
  --config.target=MODELS/smollm2-135m --workdir=RUNS/dialogues
"""

from specsamp import cli
from specsamp.training import dialogues
from specsamp.utils import schema

_WORKDIR = cli.define_workdir()


def main(config):
  job = schema.read(dialogues.DialoguesConfig, config.to_dict())
  print(dialogues.write(job, cli.make_workdir(_WORKDIR.value, config)))


if __name__ == '__main__':
  cli.run(main, dialogues.DialoguesConfig, distributes=False)
