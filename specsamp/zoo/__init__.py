"""Models that come with the package, for trying everything at once."""

import functools
import pathlib
from typing import NamedTuple

from specsamp.checkpoints import model_dir
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel

_HERE = pathlib.Path(__file__).parent


class Pair(NamedTuple):
  """A deep target, and a wide and shallow draft with its tokenizer."""

  target: LanguageModel
  draft: LanguageModel


def names() -> list[str]:
  return sorted(p.parent.name for p in _HERE.glob('*/target'))


@functools.cache
def load(name: str) -> Pair:
  """The embedded pair of this name: `pycode` completes Python code.

  Raises:
    UserError: there is none.
  """
  if name not in names():
    raise UserError(f'zoo: got {name!r}, expected one of {names()}')
  return Pair(
    model_dir.load(_HERE / name / 'target'),
    model_dir.load(_HERE / name / 'draft'),
  )
