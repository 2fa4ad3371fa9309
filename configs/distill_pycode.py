r"""Drafters for the embedded target, trained on what it writes itself.

Medusa and Hydra heads, EAGLE, and ParallelSpec's drafters for Medusa and EAGLE
(Xiao et al. 2410.05589, section 4), as they are in `specsamp.zoo`. The target
continues 4,096 pieces of the standard library greedily, half a million tokens
in 10 to 20 minutes on 2 CPU cores; its features take 1.1 GB of disk. A drafter
then takes 3 to 20 minutes. Runs that are given the same folders share both.

  python launch/distill.py --config=configs/distill_pycode.py:eagle \
    --workdir=RUNS/eagle --config.continuations=RUNS/continuations \
    --config.features=RUNS/features

The embedded ones were made of these values (docs/results/pair.md has with
what program) but that the target wrote 8,192 sequences, half of them greedily
and half at temperature 1, and that they had

  --config.num_continuations=8192 --config.temperatures='(0.0, 1.0)' \
  --config.batch_size=16 --config.optimizer=muon

and `eagle` --config.steps=1500; `eagle_parallel`, which went on from it since
from nothing it learns far more slowly, --config.init=RUNS/eagle/drafter
--config.steps=1100 --config.retention=0.8 --config.learning_rate=1.5e-3;
`eagle_parallel_deep`, three layers gone on from `eagle_parallel`,
--config.init=RUNS/eagle_parallel/drafter --config.steps=350 --config.groups=32
--config.learning_rate=1e-3; `hydra` --config.steps=1000 --config.loss=kl
--config.decay=0.9; `medusa` --config.steps=700; and `medusa_parallel`
--config.steps=800. A step of these takes twice as long as one of eight
sequences.

`:eagle3` (2503.01840) is one layer that reads the target before its layers 2, 4
and 5, goes on for 7 tokens from every position that the target wrote, from 0.7
of them for each token further, and drafts 2,048 of the 4,096 tokens. A step
takes twice as long as EAGLE's; its features, 4.3 GB beside those of the others.

`:dflash` (2602.06036) has three layers, as `eagle_parallel_deep`, and as many
parameters within 4 %, but begins at random. Its blocks are of ten tokens, for
trees nine deep; the authors' decay is 0.78 for blocks of 8 and 0.87 for 16. It
reads the target before its layers 2, 4 and 6: another 4.3 GB of features.

--config.num_continuations=0 trains on the library's own text, for the
self-distillation row of the paper's table 2. `:smoke` is a few steps on the
text, for trying the machinery.
"""

import ml_collections

from specsamp.errors import describe_unknown

_ARGS = (
  *('medusa', 'hydra', 'eagle', 'medusa_parallel', 'eagle_parallel'),
  *('eagle_parallel_deep', 'eagle3', 'dflash', 'smoke'),
)
# Published with the cross-entropy of the text.
_ON_TEXT = 'medusa', 'hydra', 'medusa_parallel'


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: one of `_ARGS`; eagle if left out."""
  arg = arg or 'eagle'
  if arg not in _ARGS:
    raise ValueError(describe_unknown('argument', arg, _ARGS))
  smoke = arg == 'smoke'
  kind = 'eagle' if smoke else arg.removesuffix('_deep')
  config = ml_collections.ConfigDict(
    dict(
      # Folder of a model for `specsamp.load`; '' is the embedded target.
      target='',
      kind=kind,  # of the drafter
      # Tokens drafted a round: heads, or masks and one; EAGLE-3 learns so many.
      ahead=5,
      draft_vocab=0,  # tokens that EAGLE-3 can draft; 0 is all
      num_layers=1,  # of EAGLE, EAGLE-3, DFlash or a parallel drafter
      init='',  # folder of a drafter to begin with; '' begins at random
      # Folder of text; '' is the standard library of this Python.
      corpus='',
      pattern='**/*.py',  # the corpus' files
      # Sequences that the target writes to train on; 0 trains on the text.
      num_continuations=0 if smoke else 4096,
      prompt_length=128,  # tokens of text that each of them begins with
      temperatures=(0.0,),  # at which the target writes them, as many at each
      continuation_batch=32,  # written at once
      # Folders that keep what the target wrote and its features, for other runs
      # too; '' is in the workdir, and computes features in every step.
      continuations='',
      features='',
      # Positions of a sequence whose heads, masks, blocks or steps are trained
      # in one.
      groups=32,
      # Share of the groups with mask or step j that have the next one too.
      retention=1.0,
      # Of the draft's distribution: text and kl are the papers', of the text
      # and of the target; tv, lk_alpha and lk_lambda are on acceptance itself.
      loss='text' if kind in _ON_TEXT else 'kl',
      eta=3.0,  # of lk_lambda: how soon it goes over from kl to tv
      # How the tokens of a draft weigh: by decay, or as much as its expected
      # length depends on each: expected_length.
      position_weights='decay',
      # Of a head's or mask's weight with its distance; of EAGLE's masks too, of
      # which the paper has half as many.
      decay=0.8,
      noise=0.1,  # largest uniform noise on the features that are read
      # Of the loss beside EAGLE's regression; its own is 0.1, for features of
      # ten times the width.
      cross_entropy_weight=1.0,
      batch_size=8,  # sequences in a step
      # With its label 256 tokens; for one more the target's cache would have
      # twice the slots.
      length=255,
      steps=700,  # of the optimizer
      learning_rate=2e-3,  # its peak; then a cosine to zero
      warmup_steps=60,  # of linear warm-up
      # Of the steps, the last ones, of a linear fall to zero; 0 is the cosine.
      decay_share=0.0,
      optimizer='adamw',  # or muon, for the matrices of layers
      weight_decay=0.0,  # on matrices only
      beta2=0.95,  # of AdamW; beta1 is 0.9
      clip_norm=1.0,  # largest global norm of a gradient
      seed=0,  # of the weights and the order of the data
      log_every=10,  # steps between lines of metrics
      eval_every=200,  # steps between validations on the held-out files
      eval_batches=8,  # batches in a validation
      checkpoint_every=50,  # steps between checkpoints
      storage='int8',  # of the finished drafter's matrices, float32 or int8
    )
  )
  match arg:
    case 'medusa':
      config.update(groups=64, steps=800)
    case 'hydra':  # a head reads one token more than the one before it
      config.update(ahead=6, groups=64, steps=800)
    case 'medusa_parallel':
      config.steps = 900
    case 'eagle_parallel':
      # With 8 masks one drafter serves every k of figure 4: mask j does not
      # see those after it.
      config.update(ahead=9, steps=1200)
    case 'eagle_parallel_deep':
      config.update(
        ahead=9,
        num_layers=3,
        groups=96,
        retention=0.8,
        steps=1250,
        learning_rate=6e-4,
      )
    case 'eagle3':
      # No feature is asked for, and none is read but the target's first: no
      # noise stands for the drafter's own mistakes.
      config.update(
        ahead=7,
        draft_vocab=2048,
        groups=128,
        retention=0.7,
        noise=0.0,
        steps=700,
      )
    case 'dflash':
      config.update(
        ahead=9,
        num_layers=3,
        groups=64,
        noise=0.0,
        steps=2000,
        learning_rate=1e-3,
      )
    case 'smoke':
      config.update(
        length=32,
        batch_size=2,
        groups=4,
        steps=4,
        warmup_steps=1,
        log_every=1,
        eval_every=2,
        eval_batches=1,
        checkpoint_every=2,
      )
    case 'eagle':
      pass
  return config.lock()
