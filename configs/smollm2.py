r"""A chat answer of SmolLM2-135M-Instruct, drafted by the embedded EAGLE.

The first run downloads 270 MB from the hub; `--config.target` may also be a
folder or a GGUF file of these weights. The drafter was trained on dialogues
that the model wrote itself (`configs/dialogues.py`, `configs/distill_chat.py`).

  pip install -e '.[hf]'
  python launch/decode.py --config=configs/smollm2.py --speedup \
    --prompt='How do vaccines work?'

--speedup also times the target alone. --config.temperatures='(1.0,)' samples.
"""

from specsamp.experiments.config import DecodeConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'decode'


def get_config():
  """Returns the config."""
  return config_dict(
    DecodeConfig,
    target='HuggingFaceTB/SmolLM2-135M-Instruct',
    drafter='smollm2-eagle',
    dtype='float32',
    chat=True,
    temperatures=(0.0,),
    max_new_tokens=192,
  )
