"""What an experiment's config holds, and what its argument means."""

import dataclasses
import re
from typing import Any, NamedTuple

from specsamp.errors import UserError, check_range
from specsamp.evaluation import metrics, runner
from specsamp.evaluation.reporting import plots
from specsamp.jobs import loading
from specsamp.models import pairs


@dataclasses.dataclass(frozen=True)
class MethodConfig:
  """One way to draft and to verify.

  Attributes:
    name: rows of one name and temperature are alternatives; the best of them
      are named in the report. Not `autoregressive`, the baseline's.
    branching: see `TokenTree.branching`; all 1 is a chain.
    temperature: of target and draft.
    verifier: a name of `specsamp.verification.make`.
    law: how candidates are chosen, see `model_drafter`.
    drafter: what drafts, see `loading.Models`; '' is the draft model.
    lookup: of drafters without a model.
    tree_attention: see `specsamp.generate`.
    paper: what the paper reports, speedup / block efficiency or the speedup
      alone: by task, and `all tasks`; a single value is of all tasks. What
      only follows from what it reports begins with ~.
  """

  name: str
  branching: tuple[int | tuple[int, ...], ...]
  temperature: float
  verifier: str = 'token'
  law: str = 'iid'
  drafter: str = ''
  lookup: loading.Lookup = loading.Lookup()
  tree_attention: bool = True
  paper: str | dict[str, str] = ''

  def __post_init__(self):
    runner.check_scalars('temperature', (self.temperature,))
    figure = r'\d+(\.\d+)?'
    for paper in self._papers().values():
      if paper and not re.fullmatch(f'~?{figure}( / {figure})?', str(paper)):
        raise UserError(
          f'paper: got {paper!r}, expected speedup / block efficiency, such '
          "as '1.92 / 2.27', or the speedup"
        )

  def _papers(self) -> dict[str, str]:
    if isinstance(self.paper, dict):
      return self.paper
    return {metrics.ALL: self.paper}

  def paper_on(self, task: str, alone: bool) -> str:
    """What the paper reports of a task, or of the only one."""
    papers = self._papers()
    return papers.get(task, papers.get(metrics.ALL, '') if alone else '')


@dataclasses.dataclass(frozen=True)
class ComparisonConfig:
  """What to compare, and on what.

  Attributes:
    title: of the report.
    target: folder of the target; '' is the embedded pair's.
    draft: folder of the draft; '' is the embedded pair's.
    methods: of `MethodConfig`, as plain values. The autoregressive baseline of
      each temperature is added.
    top_p: nucleus of the temperatures above 0.
    tasks: what to decode, names of `tasks.load`.
    data: folder with the published sets of prompts.
    chat: whether prompts are turns in the target's chat template.
    num_prompts: of each task.
    samples: of each prompt, at temperatures above 0.
    max_prompt_tokens: in each of them.
    max_new_tokens: in each answer, if its task has no bound below it.
    seed: of all draws.
    plot: by_method, by_draft_length, by_candidates, by_budget or by_masks.
    passes: whether to measure what the best trees' passes cost beside that of
      the fastest chain.
    parts: whether to measure what rounds cost of which the paper has figures.
    search: whether to search the best static trees first, of `tree_search`.
    note: for the report, such as what the paper reports.
  """

  title: str
  target: str
  draft: str
  methods: tuple[MethodConfig, ...]
  top_p: float
  tasks: tuple[str, ...]
  data: str
  chat: bool
  num_prompts: int
  samples: int
  max_prompt_tokens: int
  max_new_tokens: int
  seed: int
  plot: str
  passes: bool
  parts: bool
  search: bool
  note: str

  def __post_init__(self):
    runner.check_sizes(self)
    if self.plot not in plots.PLOTS:
      raise UserError(
        f'plot: got {self.plot!r}, expected one of {", ".join(plots.PLOTS)}'
      )
    for name in ('methods', 'tasks'):
      if not getattr(self, name):
        raise UserError(f'{name}: got none, expected at least one')
    check_range(self, 'samples', least=1, most=10_000, kind=int)

  def top_p_at(self, temperature: float) -> float:
    return self.top_p if temperature else 1.0


class Size(NamedTuple):
  """What a config's argument means.

  Attributes:
    pair: names of published models, a key of `pairs.PAIRS`; '' is the embedded
      pair.
    smoke: the smallest size.
  """

  pair: str
  smoke: bool


EMBEDDED = 'pycode'


def parse(arg: str | None) -> Size:
  """Reads `pycode`, the name of a pair, `smoke`, or one and smoke.

  Raises:
    ValueError: anything else.
  """
  name, *rest = (arg or EMBEDDED).split(',')
  if name == 'smoke':
    name, rest = EMBEDDED, ['smoke', *rest]
  if name not in (EMBEDDED, *pairs.PAIRS) or rest not in ([], ['smoke']):
    raise ValueError(
      f'expected {EMBEDDED} or one of {", ".join(pairs.PAIRS)}, with ,smoke '
      f'behind it for the smallest size, or smoke alone; got {arg!r}'
    )
  return Size('' if name == EMBEDDED else name, bool(rest))


def defaults(size: Size) -> dict[str, Any]:
  """What comparisons have in common, as plain values."""
  target, draft = '', ''
  if size.pair:
    target, draft = (f'MODELS/{name}' for name in pairs.folders(size.pair))
  small = size.smoke
  return dict(
    # Folders of models for `specsamp.load`; '' is the embedded pair's.
    target=target,
    draft=draft,
    top_p=1.0,  # of the temperatures above 0
    # code (held-out functions), code_edits, humaneval, xsum, alpaca, wmt,
    # spec_bench or spec_bench/CATEGORY, or a .json or .jsonl file of prompts.
    tasks=('code',),
    data='../shared/data',  # where the published ones are
    chat=False,  # prompts as turns in the target's chat template
    num_prompts=1 if small else 16,  # of each task
    samples=1,  # of each prompt, at temperatures above 0
    max_prompt_tokens=32 if small else (1536 if size.pair else 128),
    max_new_tokens=16 if small else (512 if size.pair else 128),
    seed=0,
    passes=False,
    parts=False,
    search=False,
    note='',
  )
