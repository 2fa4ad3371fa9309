r"""Dialogues that a chat model writes alone, to train drafters on.

SmolLM2-135M writes about 100 tokens a second on 2 CPU cores.

  python launch/dialogues.py --config=configs/dialogues.py \
    --config.target=MODELS/smollm2-135m --workdir=RUNS/dialogues

`launch/distill.py --config=configs/distill_chat.py` trains on them.
"""

from specsamp.training.dialogues import DialoguesConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'dialogues'


def get_config():
  """Returns the config."""
  return config_dict(DialoguesConfig, target='MODELS/smollm2-135m')
