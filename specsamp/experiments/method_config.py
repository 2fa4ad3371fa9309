"""What a config holds of a method: how to draft, and how to verify."""

import dataclasses
import re
from typing import Any

from specsamp.errors import UserError, check_fields, check_range, check_scalars
from specsamp.evaluation import metrics
from specsamp.evaluation.metrics import PaperFigure
from specsamp.experiments import loading

Branching = tuple[int | tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class MethodConfig:
  """One way to draft and to verify.

  Attributes:
    name: rows of one name and temperature are alternatives; the best of them
      are named in the report. Not `autoregressive`, the baseline's.
    branching: see `TokenTree.branching`; all 1 is a chain.
    dynamic_tree: (nodes, depth, children), see `DynamicTree.of`, in place of
      a branching.
    depths: that each round's is chosen from, the last that of the branching;
      see `adaptive_drafter`. Empty drafts all of it.
    least_confidence: see `adaptive_drafter`.
    temperature: of target and draft.
    top_p: likewise; None is the comparison's.
    top_k: likewise; 0 keeps all tokens.
    verifier: a name of `specsamp.verification.make`; '' is the default one of
      the drafter, see `default_name` there.
    law: how candidates are chosen, see `model_drafter`; '' is what the drafter
      and the verifier need.
    drafter: what drafts, see `loading.Models`; '' is the draft model.
    lookup: of drafters without a model.
    tree_attention: see `specsamp.generate`.
    paper: what the paper reports by task, and of `all tasks`. A config has
      texts: speedup / block efficiency, or the speedup alone; ~ before it marks
      what only follows from what the paper reports. A single one is of all
      tasks.
  """

  name: str
  temperature: float
  branching: Branching = ()
  dynamic_tree: tuple[int, ...] = ()
  depths: tuple[int, ...] = ()
  least_confidence: float | None = None
  top_p: float | None = None
  top_k: int = 0
  verifier: str = ''
  law: str = ''
  drafter: str = ''
  lookup: loading.Lookup = loading.Lookup()
  tree_attention: bool = True
  paper: dict[str, PaperFigure | None] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    check_scalars('temperature', (self.temperature,))
    if self.top_p is not None:
      check_scalars('top_p', (self.top_p,))
    check_range(self, 'top_k', min=0, kind=int)
    if not self.temperature and (self.top_k or self.top_p is not None):
      raise UserError(
        f'method {self.name}: got top_p or top_k at temperature 0, expected '
        'neither'
      )
    if bool(self.branching) == bool(self.dynamic_tree):
      raise UserError(
        f'method {self.name}: expected a branching or a dynamic_tree'
      )

  @classmethod
  def read(cls, values: dict[str, Any]) -> 'MethodConfig':
    """The method of plain values."""
    check_fields('method', values, cls)
    paper = values.get('paper', '')
    papers = paper if isinstance(paper, dict) else {metrics.ALL: paper}
    return cls(
      **values
      | {
        'branching': tuple(values.get('branching', ())),
        'dynamic_tree': tuple(values.get('dynamic_tree', ())),
        'depths': tuple(values.get('depths', ())),
        'lookup': loading.Lookup(**values.get('lookup', {})),
        'paper': {task: _figure(text) for task, text in papers.items()},
      }
    )

  def paper_on(self, task: str, alone: bool) -> PaperFigure | None:
    """What the paper reports of a task, or of the only one."""
    return self.paper.get(task, self.paper.get(metrics.ALL) if alone else None)


def _figure(text: str) -> PaperFigure | None:
  if text == '':
    return None
  number = r'(\d+(?:\.\d+)?)'
  match = re.fullmatch(f'(~?){number}(?: / {number})?', str(text))
  if not match:
    raise UserError(
      f'paper: got {text!r}, expected speedup / block efficiency, such '
      "as '1.92 / 2.27', or the speedup"
    )
  derived, speedup, tau = match.groups()
  return PaperFigure(
    speedup=float(speedup), tau=tau and float(tau), derived=bool(derived)
  )
