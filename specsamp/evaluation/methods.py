"""Ways to decode, and what tells one from another in a report."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from specsamp import verification
from specsamp.drafting.adaptive import AdaptiveDrafter
from specsamp.drafting.draft import DynamicTree, TokenTree
from specsamp.drafting.drafter import Drafter
from specsamp.errors import UserError
from specsamp.sampling.transforms import SamplingParams
from specsamp.verification import Verifier

BASELINE = 'autoregressive'

Json = bool | int | float | str | list | dict | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Label:
  """What tells one method from another.

  Attributes:
    method: its name; `BASELINE` is what speedups are over.
    temperature: of target and draft.
    top_p: of target and draft.
    verifier: a name of `specsamp.verification.make`; '' of the baseline.
    lossless: whether it is.
    law: how candidates are chosen; '' of the baseline.
    tree: of its drafts.
    tree_attention: see `specsamp.generate`.
    depths: that each round's is chosen from; none of a method of one tree.
    top_k: of target and draft; 0 keeps all tokens.
  """

  method: str
  temperature: float
  top_p: float
  verifier: str
  lossless: bool
  law: str
  tree: TokenTree
  tree_attention: bool
  depths: tuple[int, ...] = ()
  top_k: int = 0

  @property
  def label(self) -> 'Label':
    """Of a line or row, what it is about."""
    names = Label.__dataclass_fields__
    return Label(**{name: getattr(self, name) for name in names})

  @property
  def sampling(self) -> tuple[float, float, int]:
    return self.temperature, self.top_p, self.top_k

  @property
  def is_baseline(self) -> bool:
    return self.method == BASELINE

  @property
  def method_name(self) -> str:
    """The name, marked where the method is not lossless."""
    return self.method + ('' if self.lossless else ' (NOT lossless)')

  @property
  def sampling_name(self) -> str:
    return sampling_name(*self.sampling)

  @property
  def draft_name(self) -> str:
    if self.depths:
      return f'γ of {", ".join(map(str, self.depths))}'
    return tree_name(self.tree)

  def plain(self) -> dict[str, Json]:
    """Plain values of all fields, for JSON: a tree by its name and sizes."""
    found = {
      'method': self.method,
      'temperature': self.temperature,
      'top_p': self.top_p,
      'verifier': self.verifier,
      'lossless': self.lossless,
      'law': self.law,
      'draft_len': self.tree.depth,
      'branching': self.draft_name,
      'nodes': self.tree.size,
      'tree_attention': self.tree_attention,
    }
    if self.depths:
      found['depths'] = list(self.depths)
    if self.top_k:
      found['top_k'] = self.top_k
    own = Label.__dataclass_fields__
    return found | {k: v for k, v in vars(self).items() if k not in own}


class Method(NamedTuple):
  """One way to decode.

  Attributes:
    name: `BASELINE` for the one without a drafter.
    drafter: None for the baseline.
    verifier: see `specsamp.generate`.
    temperature: of target and draft.
    top_p: of target and draft.
    tree_attention: see `specsamp.generate`.
    top_k: of target and draft; 0 keeps all tokens.
  """

  name: str
  drafter: Drafter | None
  verifier: str | Verifier
  temperature: float
  top_p: float
  tree_attention: bool = True
  top_k: int = 0

  @property
  def label(self) -> Label:
    drafts, rule, name = self.drafter is not None, self.verifier, self.verifier
    if isinstance(rule, str):
      rule = verification.make(rule)
    else:
      name = type(rule).__name__
    return Label(
      method=self.name,
      temperature=self.temperature,
      top_p=self.top_p,
      verifier=name if drafts else '',
      lossless=not drafts or rule.lossless,
      law=self.drafter.law if drafts else '',
      tree=self.drafter.tree if drafts else TokenTree.chain(0),
      tree_attention=self.tree_attention,
      depths=depths_of(self.drafter),
      top_k=self.top_k,
    )

  @property
  def sampling_params(self) -> SamplingParams:
    return SamplingParams(
      temperature=self.temperature, top_p=self.top_p, top_k=self.top_k
    )


def depths_of(drafter: Drafter | None) -> tuple[int, ...]:
  """See `Label.depths`."""
  return drafter.depths if isinstance(drafter, AdaptiveDrafter) else ()


def check(methods: Sequence[Method]) -> None:
  """Raises `UserError` where a report could not tell two methods apart."""
  seen = []
  for method in methods:
    shown = method.label.plain()
    if shown in seen:
      raise UserError(
        f'methods: {method.name} {method.label.draft_name} is there twice'
      )
    seen.append(shown)
    if (method.name == BASELINE) != (method.drafter is None):
      raise UserError(f'methods: {BASELINE} is the name of the baseline')


def sampling_name(temperature: float, top_p: float, top_k: int = 0) -> str:
  if temperature == 0:
    return 'greedy'
  name = f't={temperature:g}'
  name += '' if top_p == 1 else f', top-p {top_p:g}'
  return name + (f', top-k {top_k}' if top_k else '')


def tree_name(tree: TokenTree) -> str:
  """4x2x1 for a branching, γ=4 for a chain, else nodes and depth."""
  if isinstance(tree, DynamicTree):
    return f'dynamic, {tree.size} nodes, depth {tree.depth}'
  if tree.is_chain:
    return f'γ={tree.depth}' if tree.depth else ''
  if tree.factors:
    return 'x'.join(map(str, tree.factors))
  return f'{tree.size} nodes, depth {tree.depth}'
