r"""Tables 2, 3, 6 and 7 of multi-candidate speculative decoding.

Yang et al. 2401.06706: chains of several lengths ("SD same γ", "SD best γ")
against trees of several candidates, without replacement, at temperatures 0 and
1. If the tree loses, the report names the cost of a pass at which it would win.
On held-out code eight minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/papers/mcsd/table2.py \
    --workdir=runs/mcsd_table2

A pair of the paper (`:llama-33b+llama-68m`, in MODELS/..) decodes Alpaca and
WMT; `:smoke` or `:PAIR,smoke` is the smallest size.
"""

from specsamp.experiments import config

LAUNCHER = 'evaluate'

# Branching, speedup / τ of "SD same γ", "SD best γ" and "ours", by task and
# temperature.
_PAPER = {
  'llama-33b+llama-68m': {
    ('alpaca', 0.0): 'γ5: 2.71 / 3.19, γ9: 2.89 / 3.70, 4x2x2x1x1: 3.06 / 3.93',
    ('alpaca', 1.0): 'γ4: 1.69 / 1.98, γ5: 1.73 / 2.02, 8x2x1x1: 2.17 / 2.71',
    ('wmt', 0.0): 'γ5: 2.02 / 2.38, γ7: 2.06 / 2.52, 4x2x2x1x1: 2.24 / 2.87',
    ('wmt', 1.0): 'γ3: 1.41 / 1.63, γ5: 1.43 / 1.69, 8x2x1: 1.72 / 2.08',
  },
  'vicuna-33b+llama-68m': {
    ('alpaca', 0.0): 'γ4: 1.64 / 1.97, γ6: 1.70 / 2.03, 8x2x1x1: 2.06 / 2.56',
    ('alpaca', 1.0): 'γ3: 1.33 / 1.53, γ5: 1.34 / 1.58, 16x1x1: 1.73 / 2.10',
    ('wmt', 0.0): 'γ2: 1.15 / 1.29, 16x2: 1.45 / 1.73',
    ('wmt', 1.0): 'γ2: 1.13 / 1.26, γ3: 1.14 / 1.31, 16x2: 1.42 / 1.70',
  },
  'llama-33b+llama-160m': {
    ('alpaca', 0.0): 'γ4: 2.10 / 3.20, γ5: 2.16 / 3.49, 4x2x2x1: 2.42 / 3.87',
    ('alpaca', 1.0): 'γ3: 1.43 / 2.05, γ2: 1.47 / 1.90, 8x2x2: 1.85 / 2.79',
    ('wmt', 0.0): 'γ4: 1.54 / 2.42, γ3: 1.57 / 2.25, 8x2x1x1: 1.81 / 2.96',
    ('wmt', 1.0): 'γ2: 1.22 / 1.62, 16x2: 1.52 / 2.14',
  },
  'vicuna-33b+llama-160m': {
    ('alpaca', 0.0): 'γ3: 1.33 / 1.97, γ2: 1.40 / 1.81, 8x2x2: 1.72 / 2.59',
    ('alpaca', 1.0): 'γ2: 1.24 / 1.60, 16x2: 1.62 / 2.21',
    ('wmt', 0.0): 'γ1: 1.06 / 1.25, 32: 1.33 / 1.66',
    ('wmt', 1.0): 'γ1: 1.06 / 1.25, 32: 1.30 / 1.63',
  },
  'llama-13b+llama-68m': {
    ('alpaca', 0.0): 'γ5: 2.46 / 3.35, γ7: 2.57 / 3.72, 2x2x2x1x1: 2.75 / 3.89',
    ('alpaca', 1.0): 'γ3: 1.54 / 1.93, γ2: 1.56 / 1.79, 4x2x2: 1.91 / 2.45',
    ('wmt', 0.0): 'γ3: 1.69 / 2.05, 4x2x1: 1.88 / 2.37',
    ('wmt', 1.0): 'γ2: 1.30 / 1.55, γ3: 1.31 / 1.63, 8x2: 1.57 / 1.95',
  },
  'vicuna-13b+llama-68m': {
    ('alpaca', 0.0): 'γ2: 1.49 / 1.72, 8x2: 1.82 / 2.18',
    ('alpaca', 1.0): 'γ2: 1.30 / 1.50, 16x1: 1.64 / 2.00',
    ('wmt', 0.0): 'γ2: 1.29 / 1.52, γ4: 1.31 / 1.63, 8x1: 1.54 / 1.85',
    ('wmt', 1.0): 'γ2: 1.14 / 1.34, γ1: 1.15 / 1.25, 16x1: 1.39 / 1.72',
  },
  'llama-13b+llama-160m': {
    ('alpaca', 0.0): 'γ3: 1.53 / 2.91, 4x2x2: 1.70 / 3.36',
    ('alpaca', 1.0): 'γ2: 1.17 / 1.90, γ1: 1.19 / 1.57, 8x2: 1.41 / 2.37',
    ('wmt', 0.0): 'γ2: 1.18 / 1.94, 16x1: 1.34 / 2.31',
    ('wmt', 1.0): 'γ1: 1.04 / 1.43, 32: 1.27 / 1.81',
  },
  'vicuna-13b+llama-160m': {
    ('alpaca', 0.0): 'γ2: 1.15 / 1.83, γ1: 1.16 / 1.54, 4x4: 1.39 / 2.25',
    ('alpaca', 1.0): 'γ1: 1.09 / 1.42, 32: 1.29 / 1.83',
    ('wmt', 0.0): 'γ1: 1.07 / 1.39, 16: 1.25 / 1.68',
    ('wmt', 1.0): 'γ1: 0.99 / 1.29, 32: 1.20 / 1.68',
  },
}
_FIRST = 'llama-33b+llama-68m'  # whose figures the embedded pair is shown with
_BRANCHINGS = (
  *((1,) * length for length in (2, 3, 4, 5, 6, 8)),
  (2, 1, 1, 1),
  (2, 2, 1, 1, 1, 1),
  (8, 2, 1, 1),
  (4, 2, 2, 1, 1),
  (4, 2, 2, 1, 1, 1),
  (3, 2, 2, 1, 1, 1, 1, 1),
)
_FEW = (
  *((1,) * length for length in (2, 4, 6)),
  *((2, 2, 1, 1), (4, 2, 1, 1), (8, 2, 1, 1)),
)


def get_config(arg: str | None = None):
  size = config.parse(arg)
  pair = size.pair or _FIRST
  methods = []
  for temperature in (0.0, 1.0):
    figures: dict[tuple, dict[str, str]] = {}  # of each branching, by task
    for (task, at), row in _PAPER.get(pair, {}).items():
      if at != temperature or size.smoke:
        continue
      for shape, figure in (cell.split(': ') for cell in row.split(', ')):
        branching = tuple(map(int, shape.lstrip('γ').split('x')))
        branching = (1,) * branching[0] if shape[0] == 'γ' else branching
        figures.setdefault(branching, {})[task] = figure
    few = {'small': _FEW, 'smoke': ((1, 1), (2, 2))}
    branchings = few.get(size.name, _BRANCHINGS)
    for branching in sorted({*branchings, *figures}):
      paper = figures.get(branching, {})
      is_chain = max(branching) == 1
      methods.append(
        dict(
          name='speculative (SD)' if is_chain else 'multi-candidate',
          branching=branching,
          temperature=temperature,
          verifier='token' if is_chain else 'multi_candidate',
          law='iid' if is_chain else 'without_replacement',
          paper=paper if size.pair else paper.get('alpaca', ''),
        )
      )
  if not size.pair:
    note = f'The paper: {pair}, Alpaca, speedup / τ.'
  elif pair in _PAPER:
    note = f'The paper: {pair}, on A6000s.'
  else:
    note = f'The paper has no figures of {pair}.'
  return size.comparison(
    num_prompts=16,
    title='Multi-candidate speculative decoding: table 2',
    methods=tuple(methods),
    tasks=('alpaca', 'wmt') if size.pair else ('code',),
    passes=not size.smoke,
    note=note,
  )
