r"""Drafters for 7B to 13B targets: ParallelSpec's, EAGLE-3's and DFlash's.

Xiao et al. 2410.05589, table 3: one layer of the target's shape (202M and 317M
parameters, and EAGLE's fusing layer), 4 masks, batches of 32, AdamW without
weight decay; Medusa-ParallelSpec 5e-4 for 20 epochs, EAGLE-ParallelSpec 5e-5
for 40. The paper trains 13 hours on 8 A100 40GB for a 7B target.

  python launch/distill.py --config=configs/distill_llama.py:eagle_parallel \
    --config.target=MODELS/vicuna-7b --config.corpus=DATA/sharegpt \
    --workdir=RUNS/vicuna-7b-eagle-parallel --mesh=8x1

The steps are those of 68,000 sequences an epoch, the number of the paper's
conversations. The paper does not give warm-up and clipping. Neither does it
have `groups`, the masks of 128 positions of a sequence in a step: those of all
2,048 positions take 13 GB of scores a sequence.

A corpus is a folder of text files. `launch/fetch.py` fetches the models except
Qwen3 8B; a name of the hub works as well.

`:eagle3` has the settings that the authors of EAGLE-3 (Li et al. 2503.01840)
publish for Llama 3.1 8B Instruct: 7 steps from all 2,048 positions, weights
0.8^j, 32,000 of the 128,256 tokens, AdamW (0.9, 0.95) at 5e-5 after 12,000 of
800,000 steps, gradients clipped at 0.5. Its 425M parameters, 131M of them in
the LM head, start at random.

  python launch/distill.py --config=configs/distill_llama.py:eagle3 \
    --config.corpus=DATA/sharegpt --workdir=RUNS/llama-3.1-8b-eagle3 --mesh=8x1

The learning rate falls linearly to zero, as theirs. They train on the answers
in a conversation, which a plain text does not mark: --config.num_continuations
trains on answers of the target alone. Two sequences for each of eight devices
make a batch: 7e13 operations each, half of them in the target's pass, 9e20 in
all. In a step a sequence has 4 GB of scores and 2 GB of logits, and the same
for their gradients. --config.groups=512 takes a quarter of that.

`:dflash` has the settings of Chen et al. 2602.06036 for Qwen3 8B: five layers,
which read the target before its layers 2, 10, 18, 26 and 34, blocks of 16 after
512 anchors, weights exp(-(j - 1) / 7), six epochs of 800,000 answers of the
target at 6e-4, a warm-up of 4 % of the steps, gradients clipped at 1. Its 1.05B
parameters start at random.

  python launch/distill.py --config=configs/distill_llama.py:dflash \
    --config.corpus=DATA/prompts --config.num_continuations=800000 \
    --workdir=RUNS/qwen3-8b-dflash --mesh=8x1

The paper does not give the lengths of a sequence and of a batch. A step trains
four parts of 128 anchors, one after the other: each has 1 GB of scores in every
layer and 1 GB of logits a sequence, and the same for their gradients.
"""

import math

from specsamp.errors import check_name
from specsamp.training.distill_config import DistillConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'distill'

_EPOCH = 68_000 // 32  # steps
_DFLASH_STEPS = 6 * 800_000 // 32
# Values of each kind that differ from those below.
_VALUES = {
  'medusa_parallel': dict(
    loss='text', steps=20 * _EPOCH, learning_rate=5e-4, beta2=0.999
  ),
  'eagle_parallel': dict(decay=1.0, steps=40 * _EPOCH),
  'eagle3': dict(
    target='MODELS/llama-3.1-8b',
    ahead=7,
    draft_vocab=32_000,
    groups=0,
    noise=0.0,
    batch_size=16,
    steps=800_000,
    warmup_steps=12_000,
    decay_share=1.0,
  ),
  'dflash': dict(
    target='MODELS/qwen3-8b',
    ahead=15,
    num_layers=5,
    groups=512,
    loss='text',
    decay=math.exp(-1 / 7),
    noise=0.0,
    steps=_DFLASH_STEPS,
    learning_rate=6e-4,
    warmup_steps=_DFLASH_STEPS // 25,
    clip_norm=1.0,
  ),
}


def get_config(arg: str | None = None):
  """Returns the config of a kind; None is eagle_parallel."""
  kind = arg or 'eagle_parallel'
  check_name('argument', kind, _VALUES)
  values = dict(
    target='MODELS/vicuna-7b',
    kind=kind,
    corpus='DATA/sharegpt',
    pattern='**/*.txt',
    groups=128,
    batch_size=32,
    length=2048,
    learning_rate=5e-5,
    warmup_steps=2000,
    weight_decay=0.0,
    clip_norm=0.5,
    eval_every=1000,
    checkpoint_every=500,
  )
  return config_dict(DistillConfig, **values | _VALUES[kind])
