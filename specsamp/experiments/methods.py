"""Methods to draft and to verify, from the values of a config."""

import dataclasses
import re
from collections.abc import Sequence

from specsamp import verification
from specsamp.drafting.adaptive import adaptive_drafter
from specsamp.drafting.draft import DynamicTree, TokenTree
from specsamp.errors import UserError, check_range
from specsamp.evaluation import metrics
from specsamp.evaluation.methods import BASELINE, Method
from specsamp.evaluation.metrics import PaperFigure
from specsamp.experiments import loading
from specsamp.language_model import LanguageModel

Branching = tuple[int | tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class MethodConfig:
  """One way to draft and to verify.

  Attributes:
    name: name in the report, which lists the best of all methods of one name
      and temperature. `autoregressive` is reserved for the baseline.
    temperature: temperature of target and draft.
    branching: see `TokenTree.branching`; all 1 is a chain.
    dynamic_tree: (nodes, depth, children), see `DynamicTree.of`; replaces
      `branching`.
    depths: depths to choose from in each round, the last one being that of
      `branching`; see `adaptive_drafter`. Empty always drafts the whole tree.
    least_confidence: see `adaptive_drafter`.
    top_p: nucleus of target and draft; None is that of the comparison.
    top_k: number of tokens to sample from; 0 is all.
    verifier: a name of `specsamp.verification.make`; '' is the default of the
      drafter.
    law: how candidates are chosen, see `model_drafter`; '' fits the drafter and
      the verifier.
    drafter: name of the drafter, see `loading.Models`; '' is the draft model.
    lookup: settings of the drafters that look up.
    tree_attention: see `specsamp.generate`.
    paper: figures of the paper: speedup / block efficiency, or the speedup
      alone; ~ before it marks a figure derived from the paper's. A dict has one
      for each task, and for `all tasks`; a single text is for all tasks.
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
  paper: str | dict[str, str] = ''

  def __post_init__(self):
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
    self._figures()  # raises for an invalid one

  def make(self, models: loading.Models, top_p: float) -> Method:
    """Returns the method, with this `top_p` unless it sets one.

    Raises:
      UserError: the drafter, the verifier or the tree is invalid.
    """
    tree = make_tree(self.branching, self.dynamic_tree, models.target)
    drafter = models.drafter(
      self.drafter, tree, self.law, self.verifier, self.lookup
    )
    if self.depths:
      costs = [1.0] * len(self.depths)  # until they are measured
      drafter = adaptive_drafter(
        drafter, self.depths, costs, self.least_confidence
      )
    if self.top_p is not None:
      top_p = self.top_p
    return Method(
      name=self.name,
      drafter=drafter,
      verifier=self.verifier
      or verification.default_name(drafter.law, drafter.tree),
      temperature=self.temperature,
      top_p=top_p if self.temperature else 1.0,
      tree_attention=self.tree_attention,
      top_k=self.top_k,
    )

  def paper_on(self, task: str, alone: bool) -> PaperFigure | None:
    """Returns the paper's figure of a task, or if `alone` that of all tasks."""
    figures = self._figures()
    return figures.get(task, figures.get(metrics.ALL) if alone else None)

  def _figures(self) -> dict[str, PaperFigure | None]:
    is_dict = isinstance(self.paper, dict)
    texts = self.paper if is_dict else {metrics.ALL: self.paper}
    return {task: _figure(text) for task, text in texts.items()}


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


def baseline(sampling: tuple[float, float, int]) -> Method:
  """Returns autoregressive sampling with this temperature, top-p and top-k."""
  temperature, top_p, top_k = sampling
  return Method(BASELINE, None, 'token', temperature, top_p, top_k=top_k)


def make_tree(
  branching: Branching, dynamic_tree: Sequence[int], target: LanguageModel
) -> TokenTree:
  """Returns the tree of a branching, or the bounds of dynamic trees.

  Args:
    branching: see `TokenTree.branching`; ignored if there are dynamic trees.
    dynamic_tree: nodes, depth and children, see `DynamicTree.of`; or ().
    target: the target.

  Raises:
    UserError: the numbers are invalid, or the tree has more nodes than the
      target has positions.
  """
  name = f'branching {"x".join(map(str, branching))}'
  try:
    if dynamic_tree:
      name = f'dynamic_tree {tuple(dynamic_tree)}'
      if len(dynamic_tree) != 3:
        raise ValueError('expected (nodes, depth, children)')
      tree = DynamicTree.of(*dynamic_tree)
    else:
      tree = TokenTree.branching(branching)
  except (TypeError, ValueError) as error:
    raise UserError(f'{name}: {error}') from None
  positions = target.config.max_length
  if tree.size > positions:
    raise UserError(
      f'{name}: got {tree.size} nodes, expected at most the {positions} '
      'positions of the target'
    )
  return tree
