r"""The embedded pair: a deep target and a shallow draft for Python code.

Chen et al. (2302.01318), section 6, in small: the draft has two layers where
the target has eight. They are trained on the standard library of the running
Python, every tenth file held out, and on a folder of more code: for the
embedded pair the sources of some 150 packages that pip had installed, 8.3
million tokens of them beside three times the library's 2.8 million.

  python launch/pretrain.py --config=configs/pretrain_pycode.py:target \
    --config.extra_corpus=FOLDER --workdir=RUNS/target
  python launch/pretrain.py --config=configs/pretrain_pycode.py:draft \
    --config.extra_corpus=FOLDER --workdir=RUNS/draft \
    --config.teacher=RUNS/target/model

Without a folder they are trained on the library alone. The target sees 13.5
million tokens, two to three hours on 2 CPU cores; the draft, distilled from it,
5.7 million. A draft can learn from the target's own continuations as drafters
do (DistillSpec, 2310.08461), from the same that launch/distill.py has made.
`--config.features` reads the target's features from distillation's cache, so
that it is not run in every step:

  python launch/pretrain.py --config=configs/pretrain_pycode.py:draft \
    --workdir=RUNS/draft --config.teacher=RUNS/target/model \
    --config.continuations=RUNS/continuations --config.length=255 \
    --config.features=RUNS/features --config.batch_size=32 --config.steps=1800

The embedded ones were made of these values outside of this repository
(docs/results/pair.md has with what). The draft then went on by this launcher,
with --config.init, --config.learning_rate=2e-3 and --config.warmup_steps=30:
--config.steps=700 on sequences of 256 tokens, the command above, and from there
--config.steps=420 --config.batch_size=16 --config.length=511 on those of 512.
Its weights are the mean of both. The
sequences were written for launch/distill.py with --config.corpus=FOLDER
--config.pattern='**/*' --config.temperatures='(0.0, 1.0)'
--config.continuation_batch=128 and --config.num_continuations=16384, or
--config.num_continuations=3072 --config.prompt_length=256 --config.length=511.

`:smoke` is a model of a few thousand parameters, for trying the machinery.
"""

import ml_collections

from specsamp.errors import describe_unknown


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: target, draft or smoke; target if left out."""
  arg = arg or 'target'
  if arg not in ('target', 'draft', 'smoke'):
    raise ValueError(
      describe_unknown('argument', arg, ('target', 'draft', 'smoke'))
    )
  model = ml_collections.ConfigDict(
    dict(
      vocab_size=4096,
      width=512,  # of the residual stream
      num_layers=8,
      num_heads=8,
      num_kv_heads=4,
      head_dim=64,
      mlp_width=1024,  # hidden units of an MLP
      max_length=512,  # positions: prompt and text together
      norm='rms',  # or layer
      positions='rotary',  # or learned, relative
      gated=True,  # act(gate(x)) * up(x)
      activation='silu',
      tied_embeddings=False,  # the LM head is a matrix of its own
      dtype='float32',  # of activations and caches
    )
  )
  config = ml_collections.ConfigDict(
    dict(
      model=model,
      # Folder of text; '' is the standard library of this Python.
      corpus='',
      pattern='**/*.py',  # the corpus' files
      repeats=3,  # times that an epoch reads each of them
      # Folder of text that an epoch reads once beside them; '' is none.
      extra_corpus='',
      # A SentencePiece model; '' trains one on the corpus.
      tokenizer='',
      # Folder of a model of this shape to begin with; '' begins at random.
      init='',
      # Folder of a model to distil from; '' trains on the text alone.
      teacher='',
      # Folder of the teacher's continuations that launch/distill.py made, to
      # train on in place of the corpus; '' is none.
      continuations='',
      # Folder that keeps the teacher's features of these for other runs, those
      # of launch/distill.py too; '' computes them in every step.
      features='',
      # Of KL(teacher || model) in the loss, the rest being the cross-entropy of
      # the text.
      distillation_weight=0.0,
      batch_size=16,  # sequences in a step
      length=512,  # tokens in a sequence
      steps=1650,  # of the optimizer
      learning_rate=2e-3,  # its peak
      warmup_steps=60,  # of linear warm-up
      # Of the steps, the last ones, of a linear fall to zero; 0 is a cosine.
      decay_share=0.35,
      optimizer='muon',  # for the matrices of layers, or adamw
      weight_decay=0.1,  # on matrices only
      beta2=0.95,  # of AdamW; beta1 is 0.9
      clip_norm=1.0,  # largest global norm of a gradient
      seed=0,  # of the weights and the order of the data
      log_every=10,  # steps between lines of metrics
      eval_every=100,  # steps between validations on the held-out files
      eval_batches=4,  # batches in a validation
      checkpoint_every=50,  # steps between checkpoints
      storage='int8',  # of the finished model's matrices, or float32
    )
  )
  if arg == 'draft':
    model.update(
      width=256, num_layers=2, num_heads=4, num_kv_heads=4, mlp_width=1024
    )
    config.update(
      distillation_weight=1.0,
      steps=700,
      learning_rate=4e-3,
      decay_share=0.0,
      seed=1,
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
  return config.lock()
