"""n-gram decoding of code edits, on any machine.

The post on speculative decoding for Llama 3.1 shows "n-gram on a code edit", 2x
with an 8B model: where the output repeats the input, the input is the draft.
The prompts are from held-out files of the standard library. Half of them are a
function followed by its beginning with an argument renamed, half are repetitive
parts of a module. They are decoded greedily, with and without n-grams, for
several draft lengths and for three matches at once. Two minutes on 2 CPU cores.

  python launch/decode.py --config=configs/ngram_code_edit.py

`:smoke` decodes two prompts, 16 tokens each. With
`--config.drafter=ngram_or_draft --config.branching='()'` the draft model drafts
where there is no match.
"""

from specsamp.errors import check_name
from specsamp.experiments.config import DecodeConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'decode'


def get_config(arg: str = 'full'):
  """Returns the full config, or the smallest one for `smoke`."""
  check_name('argument', arg, ('full', 'smoke'))
  smoke = arg == 'smoke'
  return config_dict(
    DecodeConfig,
    drafter='ngram',
    draft_len=10,
    draft_lens=(4,) if smoke else (4, 6, 8, 10, 14),
    branching=(2, 1) if smoke else (3, 1, 1, 1, 1, 1),
    temperatures=(0.0,),
    top_p=1.0,
    prompts='code_edits',
    num_prompts=2 if smoke else 16,
    sweep_prompts=2 if smoke else 16,
    max_prompt_tokens=192,
    max_new_tokens=16 if smoke else 192,
    repeats=1 if smoke else 11,
  )
