r"""Drafters for the embedded target, trained on its own continuations.

Medusa and Hydra heads, EAGLE, and ParallelSpec's drafters for Medusa and EAGLE
(Xiao et al. 2410.05589, section 4), as in `specsamp.zoo`. The target continues
4,096 pieces of the standard library greedily, half a million tokens in 10 to 20
minutes on 2 CPU cores; its features take 1.1 GB of disk. A drafter then takes 3
to 20 minutes. Runs with the same folders share both.

  python launch/distill.py --config=configs/distill_pycode.py:eagle \
    --workdir=RUNS/eagle --config.continuations=RUNS/continuations \
    --config.features=RUNS/features

The embedded drafters were trained with these values (docs/results/pair.md names
the program), except that the target wrote 8,192 sequences, half of them
greedily and half at temperature 1, and with

  --config.num_continuations=8192 --config.temperatures='(0.0, 1.0)' \
  --config.batch_size=16 --config.optimizer=muon

and `eagle` --config.steps=1500; `eagle_parallel`, which continued from it
because it learns far more slowly from random weights,
--config.init=RUNS/eagle/drafter --config.steps=1100 --config.retention=0.8
--config.learning_rate=1.5e-3; `eagle_parallel_deep`, three layers continued
from `eagle_parallel`, --config.init=RUNS/eagle_parallel/drafter
--config.steps=350 --config.groups=32 --config.learning_rate=1e-3; `hydra`
--config.steps=1000 --config.loss=kl --config.decay=0.9; `medusa`
--config.steps=700; and `medusa_parallel` --config.steps=800. A step of these
takes twice as long as one of eight sequences.

`:mtp` is a module of multi-token prediction (2412.19437), trained like EAGLE.

`:eagle3` (2503.01840) is one layer that reads the target before its layers 2, 4
and 5, and drafts 2,048 of the 4,096 tokens. It learns 7 steps from every
position that the target wrote, each step at 0.7 of the positions before. A step
takes twice as long as EAGLE's; its features take another 4.3 GB.

`:dflash` (2602.06036) has three layers and about as many parameters as
`eagle_parallel_deep`, but starts at random. Its blocks are of ten tokens, for
trees nine deep; the authors' decay is 0.78 for blocks of 8 and 0.87 for 16. It
reads the target before its layers 2, 4 and 6: another 4.3 GB of features.

`:treeflash` (2606.03819) is DFlash with an MLP that reads the token before. It
may continue from a trained DFlash, --config.init=RUNS/dflash/drafter.

--config.num_continuations=0 trains on the library's own text, for the
self-distillation row of the paper's table 2. `:smoke` is a few steps on the
text.
"""

from specsamp.errors import check_name
from specsamp.training.distill_config import DistillConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'distill'

# Values of each argument that differ from those below.
_VALUES = {
  'medusa': dict(loss='text', groups=64, steps=800),
  # A head of Hydra reads one token more than the head before it.
  'hydra': dict(loss='text', ahead=6, groups=64, steps=800),
  'eagle': {},
  'draft_model': dict(num_layers=2),
  'mtp': {},
  'medusa_parallel': dict(loss='text', steps=900),
  # With 8 masks one drafter serves every k of figure 4: mask j does not see the
  # masks after it.
  'eagle_parallel': dict(ahead=9, steps=1200),
  'eagle_parallel_deep': dict(
    kind='eagle_parallel', ahead=9, num_layers=3, groups=96, retention=0.8,
    steps=1250, learning_rate=6e-4,
  ),
  # It reads no feature but the target's first one, so that no noise has to
  # imitate the drafter's own mistakes.
  'eagle3': dict(
    ahead=7, draft_vocab=2048, groups=128, retention=0.7, noise=0.0
  ),
  'dflash': dict(
    ahead=9, num_layers=3, groups=64, noise=0.0, steps=2000, learning_rate=1e-3
  ),
  'treeflash': dict(
    ahead=9, num_layers=3, groups=64, noise=0.0, steps=2000, learning_rate=1e-3
  ),
  'smoke': dict(
    kind='eagle', num_continuations=0, length=32, batch_size=2, groups=4,
    steps=4, warmup_steps=1, log_every=1, eval_every=2, eval_batches=1,
    checkpoint_every=2,
  ),
}  # fmt: skip


def get_config(arg: str | None = None):
  """Returns the config of a key of `_VALUES`; None is eagle."""
  arg = arg or 'eagle'
  check_name('argument', arg, _VALUES)
  values = dict(
    kind=arg,
    num_continuations=4096,
    groups=32,
    # EAGLE's own weight is 0.1, for features of ten times the width.
    cross_entropy_weight=1.0,
    batch_size=8,
    # 256 tokens with the label; one more would double the slots of the target's
    # cache.
    length=255,
    steps=700,
    learning_rate=2e-3,
    warmup_steps=60,
    weight_decay=0.0,
    checkpoint_every=50,
    storage='int8',
  )
  return config_dict(DistillConfig, **values | _VALUES[arg])
