"""Methods of decoding, and the labels that distinguish them in a report."""

import dataclasses
from collections.abc import Sequence

from specsamp import verification
from specsamp.drafting.adaptive import AdaptiveDrafter
from specsamp.drafting.adaptive_tree import AdaptiveTreeDrafter
from specsamp.drafting.draft import DynamicTree, TokenTree
from specsamp.drafting.drafter import Drafter
from specsamp.errors import UserError
from specsamp.sampling.transforms import SamplingParams
from specsamp.verification import Verifier

BASELINE = 'autoregressive'

Json = bool | int | float | str | list | dict | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Label:
  """Fields that distinguish one method from another.

  Attributes:
    method: name of the method; speedups are relative to `BASELINE`.
    temperature, top_p, top_k: sampling of target and draft; a top_k of 0 keeps
      all tokens.
    verifier: a name of `specsamp.verification.make`; '' for the baseline.
    lossless: True if the verifier is lossless.
    law: how candidates are chosen, see `Draft.law`; '' for the baseline.
    tree: tree of the drafts.
    tree_attention: see `specsamp.generate`.
    depths: the draft depths that an adaptive drafter chooses from, else empty.
    sizes: the tree sizes that an adaptive drafter chooses from, else empty.
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
  sizes: tuple[int, ...] = ()
  top_k: int = 0

  @property
  def label(self) -> 'Label':
    """The label alone, without the other fields of a line or row."""
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
    """The name, marked if the method is not lossless."""
    return self.method + ('' if self.lossless else ' (NOT lossless)')

  @property
  def sampling_name(self) -> str:
    return sampling_name(*self.sampling)

  @property
  def draft_name(self) -> str:
    if self.depths:
      return f'γ of {", ".join(map(str, self.depths))}'
    if self.sizes:
      sizes = ', '.join(map(str, self.sizes))
      return f'dynamic of {sizes} nodes, depth {self.tree.depth}'
    return tree_name(self.tree)

  def plain(self) -> dict[str, Json]:
    """Returns all fields as values of JSON: a tree as its name and sizes."""
    values = {
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
      values['depths'] = list(self.depths)
    if self.sizes:
      values['sizes'] = list(self.sizes)
    if self.top_k:
      values['top_k'] = self.top_k
    label = Label.__dataclass_fields__
    return values | {k: v for k, v in vars(self).items() if k not in label}


@dataclasses.dataclass(frozen=True)
class Method:
  """A way to decode; see `Label` for the sampling.

  Attributes:
    name: `BASELINE` for the method without a drafter.
    drafter: None for the baseline.
    verifier: see `specsamp.generate`.
    tree_attention: see `specsamp.generate`.
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
    drafter, rule = self.drafter, self.verifier
    about = dict(verifier='', lossless=True, law='', tree=TokenTree.chain(0))
    if drafter is not None:
      is_name = isinstance(rule, str)
      about = dict(
        verifier=rule if is_name else type(rule).__name__,
        lossless=(verification.make(rule) if is_name else rule).lossless,
        law=drafter.law,
        tree=drafter.tree,
        depths=depths_of(drafter),
        sizes=sizes_of(drafter),
      )
    return Label(
      method=self.name,
      temperature=self.temperature,
      top_p=self.top_p,
      top_k=self.top_k,
      tree_attention=self.tree_attention,
      **about,
    )

  @property
  def sampling_params(self) -> SamplingParams:
    return SamplingParams(
      temperature=self.temperature, top_p=self.top_p, top_k=self.top_k
    )


def depths_of(drafter: Drafter | None) -> tuple[int, ...]:
  """Returns the depths of an adaptive drafter, and () for all others."""
  return drafter.depths if isinstance(drafter, AdaptiveDrafter) else ()


def sizes_of(drafter: Drafter | None) -> tuple[int, ...]:
  """Returns the tree sizes of an adaptive drafter, and () for all others."""
  return drafter.sizes if isinstance(drafter, AdaptiveTreeDrafter) else ()


def check(methods: Sequence[Method]) -> None:
  """Raises `UserError` if a report could not distinguish two methods."""
  labels = [method.label.plain() for method in methods]
  for method, label in zip(methods, labels, strict=True):
    if labels.count(label) > 1:
      raise UserError(f'methods: duplicate {method.name} {label["branching"]}')
    if (method.name == BASELINE) != (method.drafter is None):
      raise UserError(f'methods: {BASELINE} is the name of the baseline')


def sampling_name(temperature: float, top_p: float, top_k: int = 0) -> str:
  """Returns a name such as `greedy` or `t=0.8, top-p 0.95`."""
  if temperature == 0:
    return 'greedy'
  name = f't={temperature:g}'
  name += '' if top_p == 1 else f', top-p {top_p:g}'
  return name + (f', top-k {top_k}' if top_k else '')


def tree_name(tree: TokenTree) -> str:
  """Returns 4x2x1 for a branching, γ=4 for a chain, else nodes and depth."""
  if isinstance(tree, DynamicTree):
    return f'dynamic, {tree.size} nodes, depth {tree.depth}'
  if tree.is_chain:
    return f'γ={tree.depth}' if tree.depth else ''
  if tree.factors:
    return 'x'.join(map(str, tree.factors))
  return f'{tree.size} nodes, depth {tree.depth}'
