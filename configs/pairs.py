r"""Published targets with their drafts, decoded from folders of their weights.

The same as `quickstart.py` for the pairs of the papers: held-out functions of
the standard library, or your own prompt. The folders hold config.json,
safetensors and a tokenizer, as at Hugging Face, or what
`launch/import_weights.py` makes of them. Weights of a 13B target take 26 GB;
`plan_pairs.py` plans which TPU slice a pair fits.

  python launch/decode.py --config=configs/pairs.py:llama-13b+llama-68m \
    --mesh=1x4

The folders are MODELS/llama-13b and MODELS/llama-68m, where `launch/fetch.py
llama-13b+llama-68m` puts them, or --config.target=DIR --config.draft=DIR, which
may also be names of the hub. `--config.chat=true --prompt=..` puts a prompt in
the target's chat template, and `--config.chat_template_kwargs.NAME=VALUE` sets
a variable of it. A wrong pair lists all of them; of
`chinchilla-70b+chinchilla-4b` no weights were published.
"""

from specsamp.errors import check_name
from specsamp.evaluation import pairs
from specsamp.experiments.config import DecodeConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'decode'


def get_config(arg: str = ''):
  """Returns the config of a pair."""
  check_name('argument', arg, pairs.PAIRS)
  target, draft = pairs.folders(arg)
  return config_dict(
    DecodeConfig,
    target=f'MODELS/{target}',
    draft=f'MODELS/{draft}',
    draft_lens=(2, 4, 6),
    num_prompts=30,
  )
