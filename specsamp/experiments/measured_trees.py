"""The best static trees of a pair on this machine: measured, then searched.

Sequoia (Chen et al. 2402.12374) for the multi-candidate rule without
replacement: acceptance by candidate rank, the time of a pass by its size.
"""

import functools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tabulate

from specsamp.decoding.generate import generate
from specsamp.drafting import TokenTree
from specsamp.drafting.draft import Law
from specsamp.drafting.drafter import Drafter
from specsamp.evaluation import timing
from specsamp.evaluation.methods import tree_name
from specsamp.language_model import LanguageModel
from specsamp.planning import tree_search
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import distributed, files

CANDIDATES = 12  # beyond, they are hardly ever accepted
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Found(NamedTuple):
  """What was measured, and the trees.

  Attributes:
    trees: the one of the most tokens a millisecond, if it drafts at all, then
      those of the four largest `SIZES` of the most tokens a round.
    temperature: at which acceptance was measured.
    acceptance: by the rank of a candidate.
    pass_ms: of the target over so many nodes.
    draft_ms: of a level of a chain.
    rate: tokens a millisecond that are expected of the fastest tree.
  """

  trees: list[TokenTree]
  temperature: float
  acceptance: list[float]
  pass_ms: dict[int, float]
  draft_ms: float
  rate: float

  def section(self, style: str) -> str:
    """The same for people, tables in a style of tabulate's."""
    table = functools.partial(tabulate.tabulate, tablefmt=style)
    ranks = ['rank', *range(1, len(self.acceptance) + 1)]
    rank = table([['acceptance', *self.acceptance]], ranks, floatfmt='.3f')
    size = table(
      [['pass ms', *self.pass_ms.values()]],
      ['nodes', *self.pass_ms],
      floatfmt='.2f',
    )
    shapes = table(
      [
        [
          tree_name(tree),
          tree.size,
          tree_search.expected_tokens(tree, self.acceptance),
          ' '.join(map(str, tree.parents)) if not tree.is_chain else '',
        ]
        for tree in self.trees
      ],
      ['tree', 'nodes', 'expected τ', 'parents'],
      floatfmt='.2f',
    )
    return (
      f'## Best static trees at t={self.temperature:g}\n\n{rank}\n\n{size}'
      f'\n\nA level of the draft takes {self.draft_ms:.2f} ms on a chain. '
      f'The fastest tree is expected to emit {self.rate:.3f} tokens a ms at '
      'most: what wider levels and verification cost is not counted.'
      f'\n\n{shapes}\n\n{_best_branchings(self.acceptance)}'
    )


def search(
  target: LanguageModel,
  drafter_of: Callable[[TokenTree, Law], Drafter],
  prompts: Sequence[list[int]],
  sampling: SamplingParams,
  *,
  max_depth: int,
  max_new_tokens: int,
  seed: int,
  folder: pathlib.Path,
) -> Found:
  """Measures acceptance by rank and pass times, and searches the best trees.

  Args:
    target: the target.
    drafter_of: (tree, law) -> the drafter of this tree.
    prompts: token ids of each, decoded as one batch.
    sampling: of target and draft, scalars.
    max_depth: of a tree.
    max_new_tokens: of each text.
    seed: of the first prompt.
    folder: what was measured is kept here and not measured again.
  """
  pass_ms = _kept(
    folder / 'passes.json',
    {str(size): float for size in SIZES},
    lambda: timing.pass_times(target, SIZES, prompts[0], max_new_tokens),
  )
  measured = _kept(
    folder / f'acceptance-{sampling.temperature:g}.json',
    {'acceptance': [float], 'draft_ms': float},
    lambda: _measure(
      target,
      drafter_of,
      prompts,
      sampling,
      min(4, max_depth),
      max_new_tokens,
      seed,
    ),
  )
  acceptance = measured['acceptance']
  pass_ms = {int(size): ms for size, ms in pass_ms.items()}
  fastest, rate = tree_search.fastest_tree(
    acceptance, pass_ms, measured['draft_ms'], max_depth
  )
  largest = [
    tree_search.best_tree(acceptance, n, max_depth) for n in SIZES[-4:]
  ]
  found = [tree for tree in dict.fromkeys([fastest, *largest]) if tree.depth]
  return Found(
    found,
    sampling.temperature,
    acceptance,
    pass_ms,
    measured['draft_ms'],
    rate,
  )


def _kept(path: pathlib.Path, shape, measure: Callable[[], Any]) -> Any:
  """The content of a JSON file, measured and written if it is not there."""
  try:
    found = files.read_json(path)
  except FileNotFoundError:
    is_there = False
  except ValueError:
    is_there, found = True, None
  else:
    is_there = True
  distributed.wait(f'{path.name} looked for')
  if is_there and files.has_shape(found, shape):
    return found
  made = measure()  # by all processes together
  if distributed.is_first():
    if is_there:
      files.set_aside(path, 'holds something else than was measured')
    files.replace_json(path, made)
  return json.loads(json.dumps(made))  # as it will be read: keys are strings


def _measure(
  target, drafter_of, prompts, sampling, length, max_new_tokens, seed
):
  star = TokenTree.branching((CANDIDATES,))
  found = generate(
    target,
    prompts,
    drafter=drafter_of(star, 'without_replacement'),
    verifier='multi_candidate',
    sampling=sampling,
    max_new_tokens=max_new_tokens,
    seed=seed,
    stop_tokens=(),
  )
  taken, tried = (
    found.num_accepted_per_rank.sum(axis=0),
    found.num_tried_per_rank.sum(axis=0),
  )
  return {
    'acceptance': (taken / tried).tolist(),
    'draft_ms': timing.level_time(
      target,
      drafter_of(TokenTree.chain(length), 'iid'),
      sampling,
      prompts[0],
      max_new_tokens,
    ),
  }


def _best_branchings(acceptance) -> str:
  """The branching of the most tokens for each number of paths.

  It never increases: where acceptance depends on the rank alone, an order that
  does can't be better (the monotonic rule of Yang et al. 2401.06706, 4.4).
  """
  lines = []
  for budget in (8, 16, 32):
    branchings = [
      factors
      for factors in tree_search.branchings(budget, 6)
      if max(factors) <= len(acceptance)
    ]
    value = lambda factors: tree_search.expected_tokens(
      TokenTree.branching(factors), acceptance
    )
    best = max(branchings, key=value)
    shape = 'x'.join(map(str, best))
    lines.append(
      f'- at most {budget} paths, 6 levels: {shape}, expected τ '
      f'{value(best):.2f}, of {len(branchings)} branchings of at most '
      f'{len(acceptance)} candidates'
    )
  return '\n'.join(lines)
