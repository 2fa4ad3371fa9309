r"""Tables 1, 5 and 8 of multi-candidate speculative decoding: acceptance rates.

Yang et al. 2401.06706: the share of rounds that accept one drafted token, of 1
and of 32 candidates, at temperatures 0 and 1. On held-out code about two
minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/papers/mcsd/table1.py \
    --workdir=runs/mcsd_table1

A pair of the paper (`:llama-13b+llama-68m`, on MODELS/..) decodes Alpaca and
WMT; `:smoke`, or `,smoke` behind a pair, is the smallest size.
"""

import ml_collections

from specsamp.experiments import config

# α of 1 and of 32 candidates (None: not reported), at temperatures 0 and 1: of
# Alpaca, of WMT.
_PAPER = {
  'llama-13b+llama-68m': (
    ((0.76, 0.88), (0.51, 0.72)), ((0.55, 0.68), (0.39, 0.56))),
  'vicuna-13b+llama-68m': (
    ((0.49, 0.67), (0.35, 0.57)), ((0.36, 0.51), (0.25, 0.41))),
  'llama-2-13b+llama-68m': (
    ((0.75, 0.88), (0.51, 0.71)), ((0.57, 0.71), (0.38, 0.57))),
  'llama-2-13b-chat+llama-68m': (
    ((0.47, 0.66), (0.35, 0.57)), ((0.30, 0.44), (0.25, 0.39))),
  'llama-13b+vicuna-68m': (
    ((0.75, 0.90), (0.48, 0.69)), ((0.56, 0.69), (0.38, 0.55))),
  'vicuna-13b+vicuna-68m': (
    ((0.56, 0.76), (0.46, 0.68)), ((0.38, 0.57), (0.29, 0.45))),
  'llama-2-13b+vicuna-68m': (
    ((0.74, 0.89), (0.49, 0.69)), ((0.56, 0.69), (0.38, 0.56))),
  'llama-2-13b-chat+vicuna-68m': (
    ((0.55, 0.75), (0.46, 0.69)), ((0.32, 0.53), (0.30, 0.49))),
  'llama-13b+llama-160m': (
    ((0.80, 0.91), (0.57, 0.76)), ((0.59, 0.72), (0.43, 0.61))),
  'vicuna-13b+llama-160m': (
    ((0.54, 0.73), (0.42, 0.63)), ((0.39, 0.54), (0.29, 0.45))),
  'llama-2-13b+llama-160m': (
    ((0.78, 0.90), (0.57, 0.75)), ((0.61, 0.74), (0.43, 0.61))),
  'llama-2-13b-chat+llama-160m': (
    ((0.52, 0.72), (0.41, 0.63)), ((0.32, 0.48), (0.29, 0.44))),
  'llama-13b+vicuna-160m': (
    ((0.78, 0.91), (0.54, 0.73)), ((0.59, 0.72), (0.41, 0.58))),
  'vicuna-13b+vicuna-160m': (
    ((0.62, 0.81), (0.53, 0.74)), ((0.40, 0.58), (0.31, 0.48))),
  'llama-2-13b+vicuna-160m': (
    ((0.77, 0.90), (0.54, 0.73)), ((0.59, 0.72), (0.41, 0.59))),
  'llama-2-13b-chat+vicuna-160m': (
    ((0.61, 0.81), (0.54, 0.75)), ((0.33, 0.54), (0.33, 0.51))),
  'opt-13b+opt-125m': (
    ((0.86, 0.95), (0.63, 0.81)), ((0.97, 0.99), (0.59, 0.78))),
  'opt-30b+opt-125m': (
    ((0.83, 0.94), (0.60, 0.79)), ((0.80, 0.89), (0.56, 0.76))),
  'opt-iml-30b+opt-125m': (
    ((0.81, 0.93), (0.61, 0.78)), ((0.40, 0.77), (0.44, 0.68))),
  'llama-33b+llama-68m': (
    ((0.75, None), (0.51, None)), ((0.58, None), (0.38, None))),
  'vicuna-33b+llama-68m': (
    ((0.52, None), (0.35, None)), ((0.22, None), (0.24, None))),
  'llama-33b+llama-160m': (
    ((0.78, None), (0.57, None)), ((0.61, None), (0.42, None))),
  'vicuna-33b+llama-160m': (
    ((0.54, None), (0.42, None)), ((0.25, None), (0.25, None))),
}  # fmt: skip
_FIRST = 'llama-13b+llama-68m'  # stands beside the embedded pair


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: `smoke`, a pair of published models, or both: `PAIR,smoke`."""
  size = config.parse(arg)
  smoke = size.smoke
  methods = [
    dict(
      name=f'{count} candidate{"s" * (count > 1)}',
      branching=(count,),
      temperature=temperature,
      verifier='multi_candidate',
      law='without_replacement',
    )
    for temperature in (0.0, 1.0)
    for count in ((1, 2) if smoke else (1, 32))
  ]
  figures = [
    f'{task} t={temperature} {one:.2f} -> {"?" if many is None else many}'
    for task, rates in zip(
      ('Alpaca', 'WMT'), _PAPER.get(size.pair or _FIRST, ()), strict=False
    )
    for temperature, (one, many) in zip((0, 1), rates, strict=True)
  ]
  return ml_collections.ConfigDict(
    dict(
      title='Multi-candidate speculative decoding: table 1',
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target=size.target,
      draft=size.draft,
      dtype='',  # the target computes in; '' is its folder's
      # Each a `experiments.method_config.MethodConfig`; the baseline is added.
      methods=tuple(methods),
      top_p=1.0,  # of the temperatures above 0
      tasks=('alpaca', 'wmt') if size.pair else ('code',),
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      num_prompts=1 if smoke else 16,  # of each task
      samples=1,  # of each prompt, at temperatures above 0
      max_prompt_tokens=32 if smoke else 1536 if size.pair else 128,
      max_new_tokens=16 if smoke else 64,
      seed=0,
      plot='by_candidates',
      passes=False,  # time what a pass over the best trees costs
      parts=False,  # time rounds of which the paper has figures
      bounds=False,  # find the most that any rule could accept
      search=False,  # search the best static trees, and try them
      note=(
        f'α of 1 and of 32 candidates in the paper, {size.pair or _FIRST}: '
        f'{", ".join(figures) or "not reported"}.'
      ),
    )
  ).lock()
