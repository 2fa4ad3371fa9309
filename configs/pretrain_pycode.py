"""The embedded pair: a deep target and a wide, shallow draft for Python code.

Trained on the standard library of the running Python, every tenth file held
out. Chen et al. (2302.01318), section 6, in small: the draft has one layer
where the target has eight. On 2 CPU cores the target takes about 40 minutes
(3 seconds a step), the draft, distilled from it, about 20.

  python launch/pretrain.py --config=configs/pretrain_pycode.py:target \
    --workdir=RUNS/target
  python launch/pretrain.py --config=configs/pretrain_pycode.py:draft \
    --workdir=RUNS/draft --config.teacher=RUNS/target/model

`:smoke` is a model of a few thousand parameters, for trying the machinery.
"""

import ml_collections


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: target, draft or smoke; target if left out."""
  arg = arg or 'target'
  model = ml_collections.ConfigDict(
    dict(
      vocab_size=4096,
      width=512,
      num_layers=8,
      num_heads=8,
      num_kv_heads=4,
      head_dim=64,
      mlp_width=1024,
      max_length=512,
      norm='rms',
      positions='rotary',
      gated=True,
      activation='silu',
      tied_embeddings=False,
      dtype='float32',
    )
  )
  config = ml_collections.ConfigDict(
    dict(
      model=model,
      corpus='',
      pattern='**/*.py',
      tokenizer='',
      teacher='',
      distillation_weight=0.0,
      batch_size=6,
      length=512,
      steps=700,
      learning_rate=2e-3,
      warmup_steps=60,
      optimizer='adamw',
      weight_decay=0.1,
      beta2=0.95,
      clip_norm=1.0,
      seed=0,
      log_every=10,
      eval_every=100,
      eval_batches=4,
      checkpoint_every=50,
      storage='int8',
    )
  )
  if arg == 'draft':
    model.update(
      width=256, num_layers=1, num_heads=4, num_kv_heads=4, mlp_width=1024
    )
    config.update(
      distillation_weight=1.0, steps=1000, learning_rate=4e-3, seed=1
    )
  elif arg == 'smoke':
    model.update(
      vocab_size=512,
      width=32,
      num_layers=2,
      num_heads=2,
      num_kv_heads=1,
      head_dim=16,
      mlp_width=64,
      max_length=64,
    )
    config.update(
      batch_size=4,
      length=32,
      steps=20,
      warmup_steps=4,
      log_every=2,
      eval_every=10,
      eval_batches=2,
      checkpoint_every=5,
    )
  elif arg != 'target':
    raise ValueError(f'expected target, draft or smoke, got {arg!r}')
  return config.lock()
