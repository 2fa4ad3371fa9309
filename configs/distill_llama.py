"""ParallelSpec's drafters for 7B and 13B targets, with the paper's settings.

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
"""

import ml_collections

_CONVERSATIONS = 68_000


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: medusa_parallel or eagle_parallel; the latter if left out."""
  kind = arg or 'eagle_parallel'
  # Kind: peak learning rate, beta2 of AdamW, epochs.
  table = {
    'medusa_parallel': (5e-4, 0.999, 20),
    'eagle_parallel': (5e-5, 0.95, 40),
  }
  if kind not in table:
    raise ValueError(f'expected one of {", ".join(table)}, got {kind!r}')
  learning_rate, beta2, epochs = table[kind]
  batch_size = 32
  return ml_collections.ConfigDict(
    dict(
      target='MODELS/vicuna-7b',
      kind=kind,
      ahead=5,
      num_layers=1,
      init='',
      corpus='DATA/sharegpt',
      pattern='**/*.txt',
      num_continuations=0,
      prompt_length=128,
      temperature=0.0,
      continuation_batch=32,
      continuations='',
      features='',
      groups=128,
      retention=1.0,
      decay=0.8 if kind == 'medusa_parallel' else 1.0,
      noise=0.1,
      cross_entropy_weight=0.1,
      batch_size=batch_size,
      length=2048,
      steps=epochs * _CONVERSATIONS // batch_size,
      learning_rate=learning_rate,
      warmup_steps=2000,
      optimizer='adamw',
      weight_decay=0.0,
      beta2=beta2,
      clip_norm=0.5,
      seed=0,
      log_every=10,
      eval_every=1000,
      eval_batches=8,
      checkpoint_every=500,
      storage='float32',
    )
  ).lock()
