r"""SmolLM2-135M-Instruct, a published chat model, revises a text.

n-grams draft the words that the answer copies from the prompt. The first run
downloads 270 MB from the Hugging Face hub; `--config.target` may also be a
folder or a GGUF file of these weights.

  pip install -e '.[hf]'
  python launch/decode.py --config=configs/smollm2.py --speedup \
    --prompt='Make this text shorter: The library is open on weekdays and ..'

--speedup also times the target alone. `--config.drafter=FOLDER` is a drafter of
`configs/distill_chat.py`, `--config.temperatures='(0.7,)'` samples.
"""

from specsamp.experiments.config import DecodeConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'decode'


def get_config():
  """Returns the config."""
  return config_dict(
    DecodeConfig,
    target='HuggingFaceTB/SmolLM2-135M-Instruct',
    drafter='ngram',
    draft_len=5,
    dtype='float32',
    chat=True,
    temperatures=(0.0,),
    max_new_tokens=192,
  )
