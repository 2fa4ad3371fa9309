r"""Drafters of `configs/distill_pycode.py`, compared after their training.

Without an argument: four drafters that continue from the embedded ones, each
with its published loss and with losses on acceptance itself (LK losses,
2602.23881), the same number of steps each and from three seeds. Run for every
drafter, loss and seed below

  python launch/distill.py --config=configs/distill_pycode.py:medusa \
    --workdir=RUNS/medusa_kl_s0 --config.loss=kl --config.seed=10 \
    --config.init=specsamp/zoo/pycode/drafters/medusa --config.steps=100 \
    --config.warmup_steps=20 --config.learning_rate=5e-4 \
    --config.num_continuations=2048 --config.temperatures='(0.0, 1.0)' \
    --config.continuations=RUNS/continuations --config.features=RUNS/features

(and --config.groups=24 for eagle_parallel), one to five minutes of one core
each, then, for eight minutes of both cores,

  python launch/evaluate.py --config=configs/drafters.py --workdir=runs/losses

`:layers` compares EAGLE with one layer (2.9M parameters) and two (5.3M),
EAGLE-3 (4.8M), and EAGLE's ParallelSpec and DFlash with three layers (7.7M),
all from random weights and on the same tokens: 250 steps as above, without
init, with 40 warm-up steps, at a learning rate of 2e-3 (three layers: 1e-3),
with 32 groups (EAGLE-3: 48), in RUNS/eagle, RUNS/eagle_two_layers, RUNS/eagle3,
RUNS/eagle_parallel_deep and RUNS/dflash.

  python launch/evaluate.py --config=configs/drafters.py:layers \
    --workdir=runs/layers

`:speed` compares the embedded drafters, greedy, on 30 held-out functions, to
find the fastest chain, three minutes. `:smoke` is the smallest size, on
embedded drafters.
"""

from specsamp.errors import check_name
from specsamp.experiments.config import ComparisonConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'evaluate'

# Losses of each drafter, the published one first, and its draft length.
_LOSSES = {
  'medusa': (('text', 'kl', 'lk_lambda'), 5),
  'hydra': (('text', 'lk_lambda'), 4),
  'eagle': (('kl', 'lk_lambda'), 5),
  'eagle_parallel': (('kl', 'lk_lambda'), 5),
}
# Drafters, '' is the draft model, with a draft length, or lengths to choose
# from in each round.
_SPEED = (
  ('', 4),
  ('', 6),
  ('', (0, 2, 4, 6, 8)),
  ('hydra', 4),
  ('hydra', 6),
  ('eagle', 4),
  ('eagle', (0, 2, 4, 6)),
  ('eagle_parallel', 4),
  ('ngram_or_draft', 8),
)
# n-grams of two to five tokens are followed for eight more; where there is no
# match the draft model drafts four.
_NGRAM_OR_DRAFT = dict(
  lookup=dict(n_max=5, n_min=2, draft_length=4),
  law='deterministic',
  verifier='naive',
)
# Speedup and τ in ParallelSpec's table 1, Vicuna-7B, at temperatures 0 and 1,
# from which the report takes the cost of a round. That of three layers is
# derived in papers/parallelspec/table1.py.
_EAGLE = '2.18 / 3.58', '1.84 / 3.18'
_DEEP = '~2.42 / 3.52', '~1.95 / 3.09'
_TREE = (4, (3, 2, 2, 1), (3, 2, 2, 1), (3,), (2,))
_DEEP_TREE = (
  4, (2, 1, 1), (2, 1, 1), (2, 1, 1), (2, 1), (2, 1), (1,), (1,), (1,),
)  # fmt: skip
_LAYERS = {
  'eagle': ('EAGLE', _TREE, _EAGLE),
  'eagle_two_layers': ('EAGLE, 2 layers', _TREE, _EAGLE),
  'eagle3': ('EAGLE-3', _TREE, _EAGLE),
  'eagle_parallel_deep': ('EAGLE + ParallelSpec, 3 layers', _DEEP_TREE, _DEEP),
  'dflash': ('DFlash, 3 layers', _DEEP_TREE, _DEEP),
}


def get_config(arg: str | None = None):
  """Returns the config of losses, layers, speed or smoke."""
  arg = arg or 'losses'
  methods = dict(losses=_losses, layers=_layers, speed=_speed, smoke=_smoke)
  check_name('argument', arg, methods)
  smoke = arg == 'smoke'
  return config_dict(
    ComparisonConfig,
    title='Drafters as they are trained',
    methods=tuple(methods[arg]()),
    num_prompts=dict(losses=24, layers=12, speed=30, smoke=1)[arg],
    batch_size=8 if arg == 'losses' else 1,  # losses need no times
    max_prompt_tokens=32 if smoke else 128,
    max_new_tokens=16 if smoke else 96,
    parts=arg == 'layers',
  )


def _smoke() -> list[dict]:
  return [
    dict(name=kind, drafter=kind, branching=(1, 1), temperature=temperature)
    for temperature in (0.0, 1.0)
    for kind in ('medusa', 'eagle')
  ]


def _speed() -> list[dict]:
  methods = []
  for kind, length in _SPEED:
    depths = length if isinstance(length, tuple) else ()
    method = dict(
      name=kind or 'draft model',
      drafter=kind,
      branching=(1,) * max(depths or (length,)),
      depths=depths,
      temperature=0.0,
    )
    if kind == 'ngram_or_draft':
      method |= _NGRAM_OR_DRAFT
    methods.append(method)
  return methods


def _losses() -> list[dict]:
  return [
    dict(
      name=f'{kind}, {loss}, seed {seed}',
      drafter=f'RUNS/{kind}_{loss}_s{seed}/drafter',
      branching=(1,) * length,
      temperature=temperature,
    )
    for temperature in (0.0, 1.0)
    for kind, (losses, length) in _LOSSES.items()
    for loss in losses
    for seed in range(3)
  ]


def _layers() -> list[dict]:
  """Returns every kind as a chain and as a tree of 26 nodes."""
  methods = []
  for i, temperature in enumerate((0.0, 1.0)):
    law = 'without_replacement' if temperature else 'deterministic'
    verifier = 'multi_candidate' if temperature else 'naive'
    for kind, (name, tree, paper) in _LAYERS.items():
      method = dict(
        name=name, drafter=f'RUNS/{kind}/drafter', temperature=temperature
      )
      methods += [
        method | dict(branching=(1,) * 5),
        method
        | dict(branching=tree, law=law, verifier=verifier, paper=paper[i]),
      ]
  return methods
