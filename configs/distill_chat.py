r"""Drafters for a chat model, trained on the answers in conversations.

The values suit a small target, such as SmolLM2-135M, and 2 CPU cores. The
target first writes the conversations itself; any file of conversations will do
(`specsamp.data.conversations`):

  python launch/dialogues.py --config=configs/dialogues.py \
    --config.target=MODELS/smollm2-135m --workdir=RUNS/dialogues
  python launch/distill.py --config=configs/distill_chat.py:eagle \
    --config.target=MODELS/smollm2-135m \
    --config.conversations=RUNS/dialogues/dialogues.jsonl \
    --config.features=RUNS/features --workdir=RUNS/smollm2-eagle

Runs with the same folder of features share it, one after the other.
`:eagle_parallel` continues from EAGLE with
--config.init=RUNS/smollm2-eagle/drafter. The kinds are those of the dict below.
Configs of experiments for `:smollm2-135m` look for finished drafters in
MODELS/smollm2-135m-KIND.
"""

from specsamp.errors import check_name
from specsamp.training.distill_config import DistillConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'distill'

# Values of each kind that differ from those below.
_VALUES = {
  'eagle': {},
  'eagle_parallel': dict(ahead=7, groups=48, retention=0.7, decay=1.0),
  'medusa': dict(ahead=5, groups=96, loss='text'),
  'medusa_parallel': dict(ahead=5, groups=64, loss='text'),
  'draft_model': dict(num_layers=2),
  'hydra': dict(ahead=4, groups=96, decay=0.9),
  'eagle3': dict(
    ahead=5, groups=128, retention=0.7, noise=0.0
  ),
}  # fmt: skip


def get_config(arg: str | None = None):
  """Returns the config of a kind; None is eagle."""
  kind = arg or 'eagle'
  check_name('argument', kind, _VALUES)
  values = dict(
    target='MODELS/smollm2-135m',
    kind=kind,
    conversations='RUNS/dialogues/dialogues.jsonl',
    cross_entropy_weight=1.0,
    batch_size=8,
    # 512 tokens with the label; one more would double the slots of the target's
    # cache.
    length=511,
    draft_vocab=12_288,
    steps=1500,
    optimizer='muon',
    learning_rate=2e-3,
    warmup_steps=60,
    weight_decay=0.0,
    eval_every=100,
    eval_batches=4,
    checkpoint_every=50,
    storage='int8',
  )
  return config_dict(DistillConfig, **values | _VALUES[kind])
