"""Models that come with the package, to try everything at once."""

import functools
import pathlib
from typing import NamedTuple

from specsamp.checkpoints import drafter_dir, model_dir
from specsamp.drafting.features import DraftModule
from specsamp.errors import check_name
from specsamp.language_model import LanguageModel

_HERE = pathlib.Path(__file__).parent


class Pair(NamedTuple):
  """A target with its draft model and its trained drafters.

  Attributes:
    target: the larger model.
    draft: a smaller model with the target's tokenizer.
    drafters: name -> drafter trained on the target's features, for
      `specsamp.drafting.trained_drafter`.
  """

  target: LanguageModel
  draft: LanguageModel
  drafters: dict[str, DraftModule]


def names() -> list[str]:
  return sorted(p.parent.name for p in _HERE.glob('*/target'))


def load(name: str, dtype: str = '') -> Pair:
  """Loads an embedded pair: `pycode` completes Python code.

  Args:
    name: one of `names()`.
    dtype: dtype that the target computes in; '' is that of its training.

  Raises:
    UserError: the name or the dtype is unknown.
  """
  check_name('zoo', name, names())
  return _load(name, dtype)


@functools.cache
def _load(name: str, dtype: str) -> Pair:
  folder = _HERE / name
  return Pair(
    model_dir.load(folder / 'target', dtype=dtype or None),
    model_dir.load(folder / 'draft'),
    {
      path.name: drafter_dir.load(path)
      for path in sorted((folder / 'drafters').glob('*'))
    },
  )
