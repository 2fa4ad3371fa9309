"""The best static trees of a pair on this machine: measured, then searched.

Sequoia (Chen et al. 2402.12374) for the multi-candidate rule without
replacement: acceptance by candidate rank, and the time of a pass by its size.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from specsamp.decoding.generate import generate
from specsamp.drafting import TokenTree
from specsamp.drafting.draft import Law
from specsamp.drafting.drafter import Drafter
from specsamp.evaluation import timing
from specsamp.evaluation.methods import tree_name
from specsamp.evaluation.reporting.report import Part, Table
from specsamp.evaluation.reporting.run_log import from_plain
from specsamp.language_model import LanguageModel
from specsamp.planning import tree_search
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import distributed, files

CANDIDATES = 12  # later candidates are hardly ever accepted
SIZES = (1, 2, 4, 8, 16, 32, 64)


@dataclasses.dataclass(frozen=True)
class _Measured:
  """Measurements of a drafter: a JSON file.

  Attributes:
    acceptance: acceptance by the rank of a candidate.
    draft_ms: milliseconds of one level of a chain.
  """

  acceptance: list[float]
  draft_ms: float


@dataclasses.dataclass(frozen=True)
class Found:
  """The best trees, and the measurements.

  Attributes:
    trees: the tree of the most tokens per millisecond, if it drafts at all,
      then those of the four largest `SIZES` with the most tokens per round.
    temperature: temperature at which acceptance was measured.
    acceptance: acceptance by the rank of a candidate.
    pass_ms: milliseconds of the target's pass by the number of nodes.
    draft_ms: milliseconds of one level of a chain.
    rate: expected tokens per millisecond of the fastest tree.
  """

  trees: list[TokenTree]
  temperature: float
  acceptance: list[float]
  pass_ms: dict[int, float]
  draft_ms: float
  rate: float

  def section(self) -> list[Part]:
    """Returns a section of a report."""
    acceptance = {str(i): p for i, p in enumerate(self.acceptance, start=1)}
    times = {str(size): ms for size, ms in self.pass_ms.items()}
    trees = [
      {
        'tree': tree_name(tree),
        'nodes': tree.size,
        'expected τ': tree_search.expected_tokens(tree, self.acceptance),
        'parents': '' if tree.is_chain else ' '.join(map(str, tree.parents)),
      }
      for tree in self.trees
    ]
    return [
      f'## Best static trees at t={self.temperature:g}',
      Table([{'rank': 'acceptance', **acceptance}], digits=3),
      Table([{'nodes': 'pass ms', **times}]),
      f'A level of the draft takes {self.draft_ms:.2f} ms on a chain. The '
      f'fastest tree is expected to emit at most {self.rate:.3f} tokens per '
      'ms, without the costs of wider levels and of verification.',
      Table(trees),
    ]


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
    prompts: token ids of each prompt, decoded as one batch.
    sampling: sampling of target and draft, scalars.
    max_depth: upper bound on the depth of a tree.
    max_new_tokens: upper bound on the tokens of each completion.
    seed: seed of the first prompt.
    folder: folder of the measurements, which a resumed run reads.
  """
  pass_ms = _measured_once(
    folder / 'passes.json',
    TypedDict('_Passes', dict.fromkeys(map(str, SIZES), float)),
    lambda: timing.pass_times(target, SIZES, prompts[0], max_new_tokens),
  )
  pass_ms = {int(size): ms for size, ms in pass_ms.items()}
  chain = TokenTree.chain(min(4, max_depth))
  measured = _measured_once(
    folder / f'acceptance-{sampling.temperature:g}.json',
    _Measured,
    lambda: {
      'acceptance': _acceptance(
        target, drafter_of, prompts, sampling, max_new_tokens, seed
      ),
      'draft_ms': timing.level_time(
        target, drafter_of(chain, 'iid'), sampling, prompts[0], max_new_tokens
      ),
    },
  )
  fastest, rate = tree_search.fastest_tree(
    measured.acceptance, pass_ms, measured.draft_ms, max_depth
  )
  largest = [
    tree_search.best_tree(measured.acceptance, n, max_depth) for n in SIZES[-4:]
  ]
  return Found(
    [tree for tree in dict.fromkeys([fastest, *largest]) if tree.depth],
    sampling.temperature,
    measured.acceptance,
    pass_ms,
    measured.draft_ms,
    rate,
  )


def _measured_once(path: pathlib.Path, kind: Any, measure: Callable) -> Any:
  """Reads measurements of a type, or measures and writes them."""
  try:
    found = from_plain(kind, files.read_json(path))
  except (FileNotFoundError, ValueError):
    found = None
  distributed.wait(f'{path.name} is read')
  if found is None:
    measured = measure()  # by all processes together
    distributed.first_does(
      lambda: files.replace_json(path, measured), f'{path}'
    )
    found = from_plain(
      kind, {str(name): value for name, value in measured.items()}
    )
  return found


def _acceptance(
  target, drafter_of, prompts, sampling, max_new_tokens, seed
) -> list[float]:
  """Returns the acceptance of candidates of the root, by rank."""
  star = TokenTree.branching((CANDIDATES,))
  out = generate(
    target,
    prompts,
    drafter=drafter_of(star, 'without_replacement'),
    verifier='multi_candidate',
    sampling=sampling,
    max_new_tokens=max_new_tokens,
    seed=seed,
    stop_tokens=(),
  )
  accepted = out.num_accepted_per_rank.sum(axis=0)
  return (accepted / out.num_tried_per_rank.sum(axis=0)).tolist()
