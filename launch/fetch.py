"""Fetches published prompts and models to where configs look, and checks them.

python launch/fetch.py
python launch/fetch.py humaneval spec_bench
python launch/fetch.py llama-2-7b-chat+llama-68m --to=MODELS

Without a name it lists what can be fetched, with authors, licences and sources.
Existing files are kept. Models need huggingface_hub, pip install
'specsamp[hf]'.
"""

import os

os.environ.setdefault('JAX_PLATFORMS', 'cpu')  # nothing runs on a device

from absl import flags

from specsamp import cli
from specsamp.experiments import fetch

_TO = flags.DEFINE_string(
  'to', None, 'Folder to fetch to. If left out, where configs look.'
)


def main(*names):
  fetch.run(names, _TO.value)


if __name__ == '__main__':
  cli.run(main, distributes=False, takes_names=True)
