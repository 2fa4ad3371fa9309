r"""Tables 1, 5 and 8 of multi-candidate speculative decoding: acceptance rates.

Yang et al. 2401.06706: the share of rounds that accept one draft token, of 1
and of 32 candidates, at temperatures 0 and 1. On held-out code two minutes on 2
CPU cores.

  python launch/evaluate.py --config=configs/papers/mcsd/table1.py \
    --workdir=runs/mcsd_table1

A pair of the paper (`:llama-13b+llama-68m`, in MODELS/..) decodes Alpaca and
WMT; `:smoke` or `:PAIR,smoke` is the smallest size.
"""

from specsamp.experiments import config

LAUNCHER = 'evaluate'

# α of 1 and of 32 candidates (? is not reported), on Alpaca at temperatures 0
# and 1, then on WMT.
_PAPER = {
  'llama-13b+llama-68m': '0.76 0.88 0.51 0.72 0.55 0.68 0.39 0.56',
  'vicuna-13b+llama-68m': '0.49 0.67 0.35 0.57 0.36 0.51 0.25 0.41',
  'llama-2-13b+llama-68m': '0.75 0.88 0.51 0.71 0.57 0.71 0.38 0.57',
  'llama-2-13b-chat+llama-68m': '0.47 0.66 0.35 0.57 0.30 0.44 0.25 0.39',
  'llama-13b+vicuna-68m': '0.75 0.90 0.48 0.69 0.56 0.69 0.38 0.55',
  'vicuna-13b+vicuna-68m': '0.56 0.76 0.46 0.68 0.38 0.57 0.29 0.45',
  'llama-2-13b+vicuna-68m': '0.74 0.89 0.49 0.69 0.56 0.69 0.38 0.56',
  'llama-2-13b-chat+vicuna-68m': '0.55 0.75 0.46 0.69 0.32 0.53 0.30 0.49',
  'llama-13b+llama-160m': '0.80 0.91 0.57 0.76 0.59 0.72 0.43 0.61',
  'vicuna-13b+llama-160m': '0.54 0.73 0.42 0.63 0.39 0.54 0.29 0.45',
  'llama-2-13b+llama-160m': '0.78 0.90 0.57 0.75 0.61 0.74 0.43 0.61',
  'llama-2-13b-chat+llama-160m': '0.52 0.72 0.41 0.63 0.32 0.48 0.29 0.44',
  'llama-13b+vicuna-160m': '0.78 0.91 0.54 0.73 0.59 0.72 0.41 0.58',
  'vicuna-13b+vicuna-160m': '0.62 0.81 0.53 0.74 0.40 0.58 0.31 0.48',
  'llama-2-13b+vicuna-160m': '0.77 0.90 0.54 0.73 0.59 0.72 0.41 0.59',
  'llama-2-13b-chat+vicuna-160m': '0.61 0.81 0.54 0.75 0.33 0.54 0.33 0.51',
  'opt-13b+opt-125m': '0.86 0.95 0.63 0.81 0.97 0.99 0.59 0.78',
  'opt-30b+opt-125m': '0.83 0.94 0.60 0.79 0.80 0.89 0.56 0.76',
  'opt-iml-30b+opt-125m': '0.81 0.93 0.61 0.78 0.40 0.77 0.44 0.68',
  'llama-33b+llama-68m': '0.75 ? 0.51 ? 0.58 ? 0.38 ?',
  'vicuna-33b+llama-68m': '0.52 ? 0.35 ? 0.22 ? 0.24 ?',
  'llama-33b+llama-160m': '0.78 ? 0.57 ? 0.61 ? 0.42 ?',
  'vicuna-33b+llama-160m': '0.54 ? 0.42 ? 0.25 ? 0.25 ?',
}
_FIRST = 'llama-13b+llama-68m'  # whose figures the embedded pair is shown with


def get_config(arg: str | None = None):
  """Returns the config of a size, see `config.parse`."""
  size = config.parse(arg)
  pair = size.pair or _FIRST
  rates = _PAPER.get(pair, '').split()
  columns = ('Alpaca t=0', 'Alpaca t=1', 'WMT t=0', 'WMT t=1')
  figures = [
    f'{column} {one} -> {many}'
    for column, one, many in zip(columns, rates[::2], rates[1::2], strict=False)
  ]
  return size.comparison(
    num_prompts=16,
    max_new_tokens=64,
    title='Multi-candidate speculative decoding: table 1',
    methods=tuple(
      dict(
        name=f'{count} candidate{"s" * (count > 1)}',
        branching=(count,),
        temperature=temperature,
        verifier='multi_candidate',
        law='without_replacement',
      )
      for temperature in (0.0, 1.0)
      for count in ((1, 2) if size.smoke else (1, 32))
    ),
    tasks=('alpaca', 'wmt') if size.pair else ('code',),
    plot='by_candidates',
    note=(
      f'α of 1 and of 32 candidates in the paper, {pair}: '
      f'{", ".join(figures) or "not reported"}.'
    ),
  )
