r"""Drafters of `configs/distill_pycode.py` side by side, as they come out.

Without an argument four drafters, each gone on from the embedded one with the
loss that it was published with and with those on acceptance itself (LK losses,
2602.23881), as many steps each and from three seeds. For every drafter, loss
and seed below

  python launch/distill.py --config=configs/distill_pycode.py:medusa \
    --workdir=RUNS/medusa_kl_s0 --config.loss=kl --config.seed=10 \
    --config.init=specsamp/zoo/pycode/drafters/medusa --config.steps=100 \
    --config.warmup_steps=20 --config.learning_rate=5e-4 \
    --config.num_continuations=2048 --config.temperatures='(0.0, 1.0)' \
    --config.continuations=RUNS/continuations --config.features=RUNS/features

(and --config.groups=24 for eagle_parallel): one to five minutes of one core
each, then eight minutes of both for

  python launch/evaluate.py --config=configs/drafters.py --workdir=runs/losses

`:layers` has EAGLE of one layer (2.9M parameters) and two (5.3M), EAGLE-3
(4.8M), and EAGLE's ParallelSpec and DFlash of three layers (7.7M), all from
nothing and on as many tokens: 250 steps as above, without init, of 40 warm-up,
at 2e-3, those of three layers at 1e-3, with 32 groups, EAGLE-3's 48, in
RUNS/eagle, RUNS/eagle_two_layers, RUNS/eagle3, RUNS/eagle_parallel_deep and
RUNS/dflash.

  python launch/evaluate.py --config=configs/drafters.py:layers \
    --workdir=runs/layers

`:speed` has what is embedded, greedy, on 30 held-out functions: the fastest of
chains, three minutes.

`:smoke` is the smallest size, on embedded drafters.
"""

import ml_collections

from specsamp.errors import describe_unknown

_ARGS = 'losses', 'layers', 'speed', 'smoke'
_SEEDS = 0, 1, 2
# What each is trained with, the published one first, and how deep it drafts.
_LOSSES = {
  'medusa': (('text', 'kl', 'lk_lambda'), 5),
  'hydra': (('text', 'lk_lambda'), 4),
  'eagle': (('kl', 'lk_lambda'), 5),
  'eagle_parallel': (('kl', 'lk_lambda'), 5),
}
# What is embedded, '' being the draft model, and how deep it drafts; in a tuple
# what is chosen from. n-grams of two to five tokens are followed for eight
# more, and where there is no match the model drafts four.
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
_LOOKED_UP = dict(
  lookup=dict(n_max=5, n_min=2, draft_length=4),
  law='deterministic',
  verifier='naive',
)
# Speedup and τ of ParallelSpec's table 1, Vicuna-7B, at temperatures 0 and 1:
# what a round costs. For three layers that is derived (papers/parallelspec).
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


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: one of `_ARGS`; losses if left out."""
  arg = arg or 'losses'
  if arg not in _ARGS:
    raise ValueError(describe_unknown('argument', arg, _ARGS))
  smoke = arg == 'smoke'
  if smoke:
    methods = [
      dict(name=kind, drafter=kind, branching=(1, 1), temperature=temperature)
      for temperature in (0.0, 1.0)
      for kind in ('medusa', 'eagle')
    ]
  else:
    methods = {'losses': _losses, 'layers': _layers, 'speed': _speed}[arg]()
  return ml_collections.ConfigDict(
    dict(
      title='Drafters as they are trained',
      target='',  # a folder of a model; '' is the embedded pair's
      draft='',  # likewise
      # What the target computes in; '' is its folder's.
      dtype='',
      # Each a `experiments.method_config.MethodConfig`; the baseline is added.
      methods=tuple(methods),
      top_p=1.0,  # of the temperatures above 0
      tasks=('code',),  # held-out functions
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      # Of each task.
      num_prompts=dict(losses=24, layers=12, speed=30, smoke=1)[arg],
      samples=1,  # of each prompt, at temperatures above 0
      # Prompts that are answered together: losses need no times.
      batch_size=8 if arg == 'losses' else 1,
      max_prompt_tokens=32 if smoke else 128,
      max_new_tokens=16 if smoke else 96,
      seed=0,
      plot='by_method',
      passes=False,  # time what a pass over the best trees costs
      parts=arg == 'layers',  # time rounds of which the paper has figures
      bounds=False,  # find the most that any rule could accept
      search=False,  # search the best static trees, and try them
      note='',
    )
  ).lock()


def _speed() -> list[dict]:
  """Chains of what is embedded."""
  methods = []
  for kind, depth in _SPEED:
    depths = depth if isinstance(depth, tuple) else ()
    deepest = max(depths) if depths else depth
    methods.append(
      dict(
        name=kind or 'draft model',
        drafter=kind,
        branching=(1,) * deepest,
        depths=depths,
        temperature=0.0,
      )
      | (_LOOKED_UP if kind == 'ngram_or_draft' else {})
    )
  return methods


def _losses() -> list[dict]:
  """Every drafter with every loss, its seeds one after the other."""
  return [
    dict(
      name=f'{kind}, {loss}, seed {seed}',
      drafter=f'RUNS/{kind}_{loss}_s{seed}/drafter',
      branching=(1,) * depth,
      temperature=temperature,
    )
    for temperature in (0.0, 1.0)
    for kind, (losses, depth) in _LOSSES.items()
    for loss in losses
    for seed in _SEEDS
  ]


def _layers() -> list[dict]:
  """Every kind as a chain and as a tree of 26 nodes."""
  methods = []
  for i, temperature in enumerate((0.0, 1.0)):
    law = 'without_replacement' if temperature else 'deterministic'
    verifier = 'multi_candidate' if temperature else 'naive'
    for kind, (name, tree, paper) in _LAYERS.items():
      one = dict(
        name=name, drafter=f'RUNS/{kind}/drafter', temperature=temperature
      )
      methods += [
        one | dict(branching=(1,) * 5),
        one | dict(branching=tree, law=law, verifier=verifier, paper=paper[i]),
      ]
  return methods
