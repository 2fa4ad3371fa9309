r"""Table 1 of ParallelSpec, on the embedded target and its trained drafters.

Xiao et al. 2410.05589: a small model (SpS), prompt lookup (PLD), Lookahead,
Medusa, Hydra and EAGLE against ParallelSpec's one-pass drafters, at
temperatures 0 and 1, each as chains of several lengths, and trained ones also
as a tree of 25 tokens. The report names the speedup of the last of each if
rounds cost the same as in the paper. It adds prompt lookup with the small model
where there is no match, and Medusa's typical acceptance, which is not lossless.
On held-out code half an hour on 2 CPU cores.

  python launch/evaluate.py --config=configs/papers/parallelspec/table1.py \
    --workdir=runs/parallelspec1

`--config.tasks="('spec_bench',)"` decodes Spec-Bench, and so does a pair of the
paper: `:vicuna-7b+vicuna-68m`, in MODELS/.., with trained drafters in folders
such as MODELS/vicuna-7b-eagle; `launch/distill.py` trains EAGLE's ParallelSpec.
`configs/distill_chat.py` trains those of `:smollm2-135m`, such as
MODELS/smollm2-135m-eagle, and the draft model. `:smollm2-135m,small` fits CPU
cores; `:smoke` or `:PAIR,smoke` is the smallest size.
"""

from specsamp.evaluation import pairs
from specsamp.evaluation.tasks.published_sets import SPEC_BENCH_CATEGORIES
from specsamp.experiments import config

LAUNCHER = 'evaluate'

_METHODS = {
  '': 'SpS',
  'ngram': 'PLD',
  'lookahead': 'Lookahead',
  'ngram_or_draft': 'PLD, else SpS',
  'medusa': 'Medusa',
  'medusa_parallel': 'Medusa + ParallelSpec',
  'hydra': 'Hydra',
  'eagle': 'EAGLE',
  'eagle_parallel': 'EAGLE + ParallelSpec',
}
_TREE = (4, (3, 2, 2, 1), (3, 2, 2, 1), (3,), (2,))  # EAGLE's, by hand
_DRAFT_MODEL = 'draft_model'  # on the embedded pair it is ''
_UNTRAINED = ('', 'ngram', 'lookahead', 'ngram_or_draft')
# Speedups in the six categories, their average, τ.
_PAPER = {
  ('vicuna-7b', 0.0): {
    '': '1.67 1.13 1.71 1.49 1.50 1.67 1.53 2.27',
    'ngram': '1.61 1.02 2.57 1.14 1.61 1.82 1.62 1.75',
    'hydra': '2.50 1.94 1.89 2.02 2.53 1.86 2.13 3.26',
    'lookahead': '1.48 1.15 1.36 1.27 1.59 1.23 1.35 1.64',
    'medusa': '1.60 1.39 1.22 1.37 1.68 1.20 1.42 2.39',
    'medusa_parallel': '2.63 1.97 2.32 2.20 2.78 1.98 2.31 3.31',
    'eagle': '2.57 1.85 2.17 2.03 2.57 1.92 2.18 3.58',
    'eagle_parallel': '3.01 2.09 2.62 2.40 2.84 2.36 2.55 3.52',
  },
  ('llama-2-7b-chat', 0.0): {
    '': '1.33 1.25 1.21 1.30 1.34 1.43 1.31 1.67',
    'ngram': '1.42 1.17 1.44 1.07 1.31 1.57 1.33 1.42',
    'lookahead': '1.46 1.36 1.34 1.32 1.47 1.37 1.39 1.60',
    'eagle': '2.61 2.38 2.25 2.30 2.66 2.23 2.40 3.55',
    'eagle_parallel': '2.95 2.67 2.64 2.76 2.88 2.52 2.74 3.49',
  },
  ('vicuna-13b', 0.0): {
    '': '1.69 1.16 1.78 1.45 1.60 1.76 1.57 2.18',
    'medusa': '2.06 1.77 1.66 1.74 2.12 1.62 1.84 2.39',
    'medusa_parallel': '2.76 2.37 2.16 2.33 2.62 2.27 2.52 3.34',
    'eagle': '2.78 2.03 2.41 2.11 2.78 2.20 2.39 3.64',
    'eagle_parallel': '3.03 2.30 2.65 2.36 3.04 2.46 2.64 3.56',
  },
  ('llama-2-13b-chat', 0.0): {
    '': '1.38 1.30 1.26 1.36 1.41 1.47 1.36 1.66',
    'eagle': '2.80 2.60 2.53 2.42 2.85 2.39 2.60 3.66',
    'eagle_parallel': '3.02 2.81 2.77 2.68 3.00 2.74 2.84 3.60',
  },
  # From its table 2.
  ('llama-3-8b', 0.0): {
    'eagle': '2.66 2.42 2.33 2.32 2.75 2.32 2.47 3.42',
    'eagle_parallel': '3.03 2.63 2.61 2.83 2.92 2.45 2.75 3.36',
  },
  ('vicuna-7b', 1.0): {
    '': '1.35 1.01 1.39 1.25 1.29 1.38 1.28 1.82',
    'eagle': '2.10 1.59 1.83 1.70 2.04 1.78 1.84 3.18',
    'eagle_parallel': '2.32 1.78 2.06 1.89 2.10 1.96 2.02 3.09',
  },
  ('llama-2-7b-chat', 1.0): {
    '': '1.11 1.07 1.04 1.09 1.13 1.15 1.10 1.47',
    'eagle': '2.19 1.92 1.91 1.93 2.31 1.87 2.02 3.30',
    'eagle_parallel': '2.47 2.15 2.08 2.11 2.42 2.06 2.22 3.25',
  },
}
_FIRST = 'vicuna-7b'  # whose figures the embedded pair is shown with


def get_config(arg: str | None = None):
  size = config.parse(arg)
  smoke = size.smoke
  target, draft = pairs.folders(size.pair)
  drafters = list(_METHODS)
  if draft:  # for published targets the trained drafters of the paper
    trained = _PAPER.get((target, 0.0), ())
    drafters = [x for x in drafters if x in _UNTRAINED or x in trained]
  elif target:
    drafters = [x or _DRAFT_MODEL for x in drafters if x != 'ngram_or_draft']
  shown = target if (target, 0.0) in _PAPER else _FIRST
  methods = []
  for temperature in (0.0, 1.0):
    for drafter in drafters:
      methods += [
        _method(drafter, temperature, shape, target)
        for shape in _shapes(drafter, target, size)
      ]
      if not smoke:
        methods[-1]['paper'] = _figures(shown, temperature, drafter)
  if 'medusa' in drafters:
    chain = (1,) * (2 if smoke else 5)
    methods.append(
      _method('medusa', 1.0, chain, target)
      | dict(name='Medusa, typical acceptance', verifier='typical_lossy')
    )
  return size.comparison(
    num_prompts=8,
    title='ParallelSpec: table 1',
    methods=tuple(methods),
    tasks=('spec_bench',) if size.pair else ('code',),
    parts=not smoke,
    note=f'The paper: {shown} on an A100, trees, Spec-Bench.',
    small=dict(num_prompts=5, batch_size=1),
  )


def _shapes(drafter: str, target: str, size: config.Size) -> list[tuple]:
  """Returns branchings; the report has the paper's figures at the last one.

  The paper drafts five deep, with trees for trained drafters. Hydra has four
  heads, the embedded Hydra six; prompt lookup copies ten tokens, Lookahead has
  n-grams of five.
  """
  longest = {
    'ngram': 10,
    'lookahead': 4,
    'hydra': 4 if target else 6,
  }.get(drafter, 5)
  lengths = {'small': {3, longest}, 'smoke': {2}}
  lengths = sorted(lengths.get(size.name, {3, 4, longest}))
  if drafter == 'lookahead':
    return [(7, *(1,) * (length - 1)) for length in lengths]
  shapes = [(1,) * length for length in lengths]
  if drafter not in _UNTRAINED and not size.smoke:
    shapes.append(_TREE[:longest])
  return shapes


def _method(drafter, temperature, shape, target) -> dict:
  is_tree = shape[0] > 1
  is_trained = drafter not in _UNTRAINED
  method = dict(
    name=_METHODS.get(drafter, _METHODS['']),
    drafter=f'MODELS/{target}-{drafter}' if target and is_trained else drafter,
    branching=shape,
    temperature=temperature,
  )
  if is_tree and temperature and drafter != 'lookahead':
    method |= dict(law='without_replacement', verifier='multi_candidate')
  elif is_tree or drafter in ('ngram', 'lookahead'):
    method |= dict(law='deterministic', verifier='naive')
  return method


def _figures(target, temperature, drafter) -> dict[str, str]:
  lines = _PAPER.get((target, temperature), {})
  line = lines.get(drafter if drafter != _DRAFT_MODEL else '', '')
  if not line:
    return {}
  *speedups, average, tau = line.split()
  figures = dict(zip(SPEC_BENCH_CATEGORIES, speedups, strict=True))
  return figures | {'all tasks': f'{average} / {tau}'}
