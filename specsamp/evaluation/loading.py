"""Models and drafters by the names that a config has for them."""

import math
import pathlib
from typing import NamedTuple

from jax.sharding import Mesh

from specsamp import zoo
from specsamp.checkpoints import drafter_dir, model_dir
from specsamp.drafting import (
  Drafter,
  DraftModule,
  TokenTree,
  model_drafter,
  modules,
  trained_drafter,
)
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel


class Models(NamedTuple):
  """A target and what may draft for it.

  Attributes:
    target: scores.
    draft: a smaller model.
    trained: by name, the embedded drafters of an embedded target; those of
      other names are in folders.
  """

  target: LanguageModel
  draft: LanguageModel
  trained: dict[str, DraftModule]

  def drafter(
    self, name: str, shape: int | TokenTree, law: str, coupled: bool = False
  ) -> Drafter:
    """The drafter of this name.

    Args:
      name: '' is the draft model, another that of an embedded drafter, or the
        folder of a trained one.
      shape: as of `model_drafter`.
      law: as of `model_drafter`.
      coupled: as of `model_drafter`, for the draft model only.

    Raises:
      UserError: no such drafter, or one for another target.
    """
    if not name:
      return model_drafter(self.draft, shape, law, coupled)
    return trained_drafter(self._trained(name), self.target, shape, law)

  def deepest(self, name: str) -> float:
    """Tokens that the drafter of this name can draft in a round."""
    if not name:
      return math.inf
    kind, ahead = modules.kind_of(self._trained(name).module)
    return math.inf if kind == 'eagle' else ahead

  def _trained(self, name: str) -> DraftModule:
    if name in self.trained:
      return self.trained[name]
    if pathlib.Path(name).is_dir():
      return drafter_dir.load(name)
    raise UserError(
      f'drafter: got {name!r}, expected '
      f'{" or ".join([*self.trained, "a folder"])}'
    )


def load(target: str, draft: str, mesh: Mesh | None) -> Models:
  """Models of these folders, or the embedded ones where a name is empty."""
  pair = None if target and draft else zoo.load('pycode')
  return Models(
    model_dir.load(target, mesh) if target else pair.target.on(mesh),
    model_dir.load(draft, mesh) if draft else pair.draft.on(mesh),
    {} if target else pair.drafters,
  )
