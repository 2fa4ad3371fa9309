r"""Drafters for 7B to 13B targets: ParallelSpec's, EAGLE-3's and DFlash's.

Xiao et al. 2410.05589, table 3: one layer of the target's shape (202M and 317M
parameters, EAGLE's fusing layer beside), 4 masks, batches of 32, AdamW without
weight decay; Medusa-ParallelSpec 5e-4 for 20 epochs, EAGLE-ParallelSpec 5e-5
for 40. The paper trains 13 hours on 8 A100 40GB for a 7B target.

  python launch/distill.py --config=configs/distill_llama.py:eagle_parallel \
    --config.target=MODELS/vicuna-7b --config.corpus=DATA/sharegpt \
    --workdir=RUNS/vicuna-7b-eagle-parallel --mesh=8x1

The shape is the target's, whatever it is. Steps are those of 68,000 sequences
an epoch, as many as the paper has conversations. Warm-up and clipping, which it
does not give, are ours, and so is `groups`, the masks of 128 positions of a
sequence in a step: those of all 2,048 take 13 GB of scores a sequence.

A corpus is a folder of text files. The models are those of `launch/fetch.py`,
but for Qwen3 8B: a name of the hub works as well.

`:eagle3` has the settings that the authors of EAGLE-3 (Li et al. 2503.01840)
publish for Llama 3.1 8B Instruct: 7 steps from all 2,048 positions, weights
0.8^j, 32,000 of the 128,256 tokens, AdamW (0.9, 0.95) at 5e-5 after 12,000 of
800,000 steps, gradients clipped at 0.5. Its 425M parameters, 131M of them in
the LM head, begin at random.

  python launch/distill.py --config=configs/distill_llama.py:eagle3 \
    --config.corpus=DATA/sharegpt --workdir=RUNS/llama-3.1-8b-eagle3 --mesh=8x1

The rate falls linearly to zero, as theirs. They train on the answers in a
conversation, which a plain text does not mark: what the target answers is all
that is trained with --config.num_continuations. Two sequences for each of eight
devices make a batch: 7e13 operations each, of which the target's pass is half,
9e20 in all; in a step a sequence has 4 GB of scores and 2 GB of logits, and as
much again for their gradients. --config.groups=512 takes a quarter of that.

`:dflash` has the settings of Chen et al. 2602.06036 for Qwen3 8B: five layers,
which read the target before its layers 2, 10, 18, 26 and 34, blocks of 16
behind 512 anchors, weights exp(-(j - 1) / 7), six epochs of 800,000 answers of
the target at 6e-4, a warm-up of 4 % of the steps, gradients clipped at 1. Its
1.05B parameters begin at random.

  python launch/distill.py --config=configs/distill_llama.py:dflash \
    --config.corpus=DATA/prompts --config.num_continuations=800000 \
    --workdir=RUNS/qwen3-8b-dflash --mesh=8x1

The length of a sequence and of a batch are ours. A step trains four parts of
128 anchors, one after the other: each has 1 GB of scores in every layer and
1 GB of logits a sequence, and as much again for their gradients.
"""

import math

import ml_collections

from specsamp.errors import describe_unknown

_CONVERSATIONS = 68_000


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: medusa_parallel, eagle_parallel, the default, eagle3 or dflash."""
  kind = arg or 'eagle_parallel'
  # Kind: peak learning rate, beta2 of AdamW, epochs.
  table = {
    'medusa_parallel': (5e-4, 0.999, 20),
    'eagle_parallel': (5e-5, 0.95, 40),
    'eagle3': (5e-5, 0.95, 0),
    'dflash': (6e-4, 0.95, 0),
  }
  if kind not in table:
    raise ValueError(describe_unknown('argument', kind, table))
  learning_rate, beta2, epochs = table[kind]
  batch_size = 32
  config = ml_collections.ConfigDict(
    dict(
      target='MODELS/vicuna-7b',  # folder of a model for `specsamp.load`
      kind=kind,  # of the drafter
      # Tokens drafted a round: masks and one; EAGLE-3 learns so many.
      ahead=5,
      draft_vocab=0,  # tokens that EAGLE-3 can draft; 0 is all
      num_layers=1,  # of EAGLE, EAGLE-3, DFlash or a parallel drafter
      init='',  # folder of a drafter to begin with; '' begins at random
      # Folder of text; '' is the standard library of this Python.
      corpus='DATA/sharegpt',
      pattern='**/*.txt',  # the corpus' files
      # Sequences that the target writes to train on; 0 trains on the text.
      num_continuations=0,
      prompt_length=128,  # tokens of text that each of them begins with
      temperatures=(0.0,),  # at which the target writes them, as many at each
      continuation_batch=32,  # written at once
      # Folders that keep what the target wrote and its features, for other runs
      # too; '' is in the workdir, and computes features in every step.
      continuations='',
      features='',
      # Positions of a sequence whose masks, blocks or steps are trained in one.
      groups=128,
      # Share of the groups with mask or step j that have the next one too.
      retention=1.0,
      # Of the draft's distribution: text and kl are the papers', of the text
      # and of the target; tv, lk_alpha and lk_lambda are on acceptance itself.
      loss='text' if kind == 'medusa_parallel' else 'kl',
      eta=3.0,  # of lk_lambda: how soon it goes over from kl to tv
      # How the tokens of a draft weigh: by decay, or as much as its expected
      # length depends on each: expected_length.
      position_weights='decay',
      # Of a mask's or step's weight with its distance.
      decay=1.0 if kind == 'eagle_parallel' else 0.8,
      noise=0.1,  # largest uniform noise on the features that are read
      cross_entropy_weight=0.1,  # of the loss beside EAGLE's regression
      batch_size=batch_size,  # sequences in a step
      length=2048,  # tokens in a sequence
      steps=epochs * _CONVERSATIONS // batch_size,  # of the optimizer
      learning_rate=learning_rate,  # its peak; then a cosine to zero
      warmup_steps=2000,  # of linear warm-up
      # Of the steps, the last ones, of a linear fall to zero; 0 is the cosine.
      decay_share=0.0,
      optimizer='adamw',  # or muon, for the matrices of layers
      weight_decay=0.0,  # on matrices only
      beta2=beta2,  # of AdamW; beta1 is 0.9
      clip_norm=0.5,  # largest global norm of a gradient
      seed=0,  # of the weights and the order of the data
      log_every=10,  # steps between lines of metrics
      eval_every=1000,  # steps between validations on the held-out files
      eval_batches=8,  # batches in a validation
      checkpoint_every=500,  # steps between checkpoints
      storage='float32',  # of the finished drafter's matrices, float32 or int8
    )
  )
  if kind == 'eagle3':
    config.update(
      target='MODELS/llama-3.1-8b',
      ahead=7,
      draft_vocab=32_000,
      groups=0,
      noise=0.0,
      batch_size=16,
      steps=800_000,
      warmup_steps=12_000,
      decay_share=1.0,
    )
  if kind == 'dflash':
    steps = 6 * 800_000 // batch_size
    config.update(
      target='MODELS/qwen3-8b',
      ahead=15,
      num_layers=5,
      groups=512,
      loss='text',
      decay=math.exp(-1 / 7),
      noise=0.0,
      steps=steps,
      warmup_steps=steps // 25,
      clip_norm=1.0,
    )
  return config.lock()
