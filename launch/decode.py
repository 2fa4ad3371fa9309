"""Decodes text with a target and a draft, and measures the gain of the draft.

python launch/decode.py --config=configs/quickstart.py
python launch/decode.py --config=configs/quickstart.py --prompt='def add(a, b):'
"""

from absl import flags

from specsamp import cli
from specsamp.experiments import decode
from specsamp.experiments.config import DecodeConfig

_PROMPT = flags.DEFINE_string(
  'prompt', None, 'Your own text to complete; - reads standard input.'
)
_PROMPTS_FILE = flags.DEFINE_string(
  'prompts_file',
  None,
  'A file of texts to complete, one a line. --config.prompts reads files of '
  '.json and .jsonl.',
)
_SPEEDUP = flags.DEFINE_bool(
  'speedup',
  False,
  'Also time plain decoding of each of your prompts, and print the speedup. A '
  'comparison always does.',
)
_WORKDIR = cli.define_workdir('runs/decode')
_mesh = cli.define_mesh('model')


def main(config):
  job = decode.prepare(
    config.to_dict(), _PROMPT.value, _PROMPTS_FILE.value, _mesh()
  )
  workdir = cli.make_workdir(_WORKDIR.value, config, resumes=False)
  job.run(workdir, _SPEEDUP.value)


if __name__ == '__main__':
  cli.run(main, DecodeConfig, 'configs/quickstart.py')
