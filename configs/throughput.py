r"""Other sizes of the queue of requests: mixed work, and the smallest queue.

`:mixed` requests held-out functions, code edits and Spec-Bench's summaries
(prose), greedy and at temperature 1, one at a time, through an engine with each
of five draft lengths and with an adaptive one. All texts have the same length.
The published question.jsonl must be in `--config.data`. Two to three minutes on
2 CPU cores.

  python launch/benchmarks/throughput.py --config=configs/throughput.py:mixed

`--config.slots=8` decodes eight at once, `--config.shuffled=false` times one
task and temperature after the other, and `--config.drafter=eagle` is another
drafter. `:smoke` decodes four requests, two at once.
"""

import ml_collections

from specsamp.errors import check_name

LAUNCHER = 'throughput'

_VALUES = {
  'mixed': dict(
    num_prompts=4, max_prompt_tokens=192, top_p=1.0, draft_lens=(1, 2, 4, 6, 8),
    adaptive=True, temperatures=(0.0, 1.0), prompts=('code', 'code_edits',
    'spec_bench/summarization'), spread=1.0, slots=1, batches=False, repeats=3,
  ),
  'smoke': dict(num_prompts=4, max_new_tokens=8, slots=2, repeats=1),
}  # fmt: skip


def get_config(arg: str = 'mixed'):
  """Returns the config of mixed or smoke."""
  check_name('argument', arg, _VALUES)
  return ml_collections.ConfigDict(_VALUES[arg])
