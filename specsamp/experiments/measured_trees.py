"""The best static trees of a pair on this machine: measured, then searched.

The search is Sequoia's (Chen et al. 2402.12374), for the multi-candidate rule
without replacement. It needs the acceptance of each rank and the pass times.
"""

import contextlib
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
) -> tuple[list[TokenTree], list[Part]]:
  """Measures acceptance by rank and pass times, and searches the best trees.

  Args:
    target: the target.
    drafter_of: (tree, law) -> the drafter of this tree.
    prompts: token ids of each prompt, decoded as one batch.
    sampling: sampling of target and draft, scalars.
    max_depth: upper bound on the depth of a tree.
    max_new_tokens: see `specsamp.generate`.
    seed: see `specsamp.generate`.
    folder: folder of the measurements, which a resumed run reads.

  Returns:
    The tree of the most tokens per millisecond, if it drafts at all, then those
    of the four largest `SIZES` with the most tokens per round; and a section of
    a report.
  """
  times = _measured_once(
    folder / 'passes.json',
    dict.fromkeys(map(str, SIZES), float),
    lambda: timing.pass_times(target, SIZES, prompts[0], max_new_tokens),
  )
  pass_ms = {int(size): ms for size, ms in times.items()}
  chain = TokenTree.chain(min(4, max_depth))
  measured = _measured_once(
    folder / f'acceptance-{sampling.temperature:g}.json',
    {'acceptance': list[float], 'draft_ms': float},
    lambda: {
      'acceptance': _acceptance(
        target, drafter_of, prompts, sampling, max_new_tokens, seed
      ),
      'draft_ms': timing.level_time(
        target, drafter_of(chain, 'iid'), sampling, prompts[0], max_new_tokens
      ),
    },
  )
  acceptance, draft_ms = measured['acceptance'], measured['draft_ms']
  fastest, rate = tree_search.fastest_tree(
    acceptance, pass_ms, draft_ms, max_depth
  )
  largest = [
    tree_search.best_tree(acceptance, n, max_depth) for n in SIZES[-4:]
  ]
  trees = [tree for tree in dict.fromkeys([fastest, *largest]) if tree.depth]
  ranks = {str(i): p for i, p in enumerate(acceptance, start=1)}
  rows = [
    {
      'tree': tree_name(tree),
      'nodes': tree.size,
      'expected τ': tree_search.expected_tokens(tree, acceptance),
      'parents': '' if tree.is_chain else ' '.join(map(str, tree.parents)),
    }
    for tree in trees
  ]
  return trees, [
    f'## Best static trees at t={sampling.temperature:g}',
    Table([{'rank': 'acceptance', **ranks}], digits=3),
    Table([{'nodes': 'pass ms', **times}]),
    f'A level of the draft takes {draft_ms:.2f} ms on a chain. The fastest '
    f'tree is expected to emit at most {rate:.3f} tokens per ms, without the '
    'costs of wider levels and of verification.',
    Table(rows),
  ]


def _measured_once(
  path: pathlib.Path, fields: dict[str, Any], measure: Callable[[], dict]
) -> dict[str, Any]:
  """Reads measurements of these fields from a file, or measures and writes."""
  kind = TypedDict('_Measured', fields)
  with contextlib.suppress(FileNotFoundError, ValueError):
    return from_plain(kind, files.read_json(path))
  measured = measure()  # by all processes together
  distributed.first_does(lambda: files.replace_json(path, measured), f'{path}')
  return {str(name): value for name, value in measured.items()}


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
