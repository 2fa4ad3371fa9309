r"""The embedded pair: a deep target and a shallow draft for Python code.

Chen et al. (2302.01318), section 6, in small: the draft has two layers, the
target eight. They are trained on the standard library of the running Python,
every tenth file held out, and on a folder of more code. For the embedded pair
that was the source code of some 150 packages that pip had installed, 8.3
million tokens, next to three times the library's 2.8 million.

  python launch/pretrain.py --config=configs/pretrain_pycode.py:target \
    --config.extra_corpus=FOLDER --workdir=RUNS/target
  python launch/pretrain.py --config=configs/pretrain_pycode.py:draft \
    --config.extra_corpus=FOLDER --workdir=RUNS/draft \
    --config.teacher=RUNS/target/model

Without a folder they are trained on the library alone. The target reads 13.5
million tokens, two to three hours on 2 CPU cores; the draft, distilled from it,
5.7 million. A draft can also learn from the target's own continuations
(DistillSpec, 2310.08461), which launch/distill.py has made for drafters.
`--config.features` reads the target's features from the cache of distillation,
so that not every step runs the target:

  python launch/pretrain.py --config=configs/pretrain_pycode.py:draft \
    --workdir=RUNS/draft --config.teacher=RUNS/target/model \
    --config.continuations=RUNS/continuations --config.length=255 \
    --config.features=RUNS/features --config.batch_size=32 --config.steps=1800

The embedded pair was trained with these values outside of this repository
(docs/results/pair.md). This launcher then continued the draft, with
--config.init, --config.learning_rate=2e-3 and --config.warmup_steps=30:
--config.steps=700 on sequences of 256 tokens with the command above, and from
there --config.steps=420 --config.batch_size=16 --config.length=511 on those of
512. Its weights are the mean of both. launch/distill.py wrote the sequences
with --config.corpus=FOLDER --config.pattern='**/*'
--config.temperatures='(0.0, 1.0)' --config.continuation_batch=128 and
--config.num_continuations=16384, or with --config.num_continuations=3072
--config.prompt_length=256 --config.length=511.

`:smoke` is a model of a few thousand parameters.
"""

from specsamp.errors import check_name
from specsamp.training.pretrain import PretrainConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'pretrain'

_MODELS = {
  'target': dict(
    vocab_size=4096,
    width=512,
    num_layers=8,
    num_heads=8,
    num_kv_heads=4,
    head_dim=64,
    mlp_width=1024,
    max_length=512,
  ),
  'draft': dict(
    vocab_size=4096,
    width=256,
    num_layers=2,
    num_heads=4,
    num_kv_heads=4,
    head_dim=64,
    mlp_width=1024,
    max_length=512,
  ),
  'smoke': dict(
    vocab_size=512,
    width=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    mlp_width=64,
    max_length=64,
  ),
}
# Values of each argument that differ from those below.
_VALUES = {
  'target': {},
  'draft': dict(
    distillation_weight=1.0,
    steps=700,
    learning_rate=4e-3,
    decay_share=0.0,
    seed=1,
  ),
  'smoke': dict(
    batch_size=4,
    length=32,
    steps=20,
    warmup_steps=4,
    log_every=2,
    eval_every=10,
    eval_batches=2,
    checkpoint_every=5,
  ),
}


def get_config(arg: str = 'target'):
  """Returns the config of target, draft or smoke."""
  check_name('argument', arg, _MODELS)
  values = dict(
    repeats=3,
    distillation_weight=0.0,
    length=512,
    steps=1650,
    learning_rate=2e-3,
    warmup_steps=60,
    decay_share=0.35,
    optimizer='muon',
    eval_every=100,
    eval_batches=4,
    checkpoint_every=50,
    storage='int8',
  )
  return config_dict(
    PretrainConfig, model=_MODELS[arg], **values | _VALUES[arg]
  )
