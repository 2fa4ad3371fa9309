"""Models that come with the package, for trying everything at once."""

import functools
import pathlib
from typing import NamedTuple

from specsamp.checkpoints import drafter_dir, model_dir
from specsamp.drafting.features import DraftModule
from specsamp.errors import check_name
from specsamp.language_model import LanguageModel

_HERE = pathlib.Path(__file__).parent


class Pair(NamedTuple):
  """A target and what drafts for it.

  Attributes:
    target: deep.
    draft: shallower and narrower, with the target's tokenizer.
    drafters: by name, those trained on the target's features, for
      `specsamp.drafting.trained_drafter`.
  """

  target: LanguageModel
  draft: LanguageModel
  drafters: dict[str, DraftModule]


def names() -> list[str]:
  return sorted(p.parent.name for p in _HERE.glob('*/target'))


def load(name: str, dtype: str = '') -> Pair:
  """The embedded pair of this name: `pycode` completes Python code.

  Args:
    name: of `names()`.
    dtype: that the target computes in; '' is what it was trained in.

  Raises:
    UserError: there is none, or no such dtype.
  """
  check_name('zoo', name, names())
  return _load(name, dtype)


@functools.cache
def _load(name: str, dtype: str) -> Pair:
  here = _HERE / name
  return Pair(
    model_dir.load(here / 'target', dtype=dtype or None),
    model_dir.load(here / 'draft'),
    {
      path.name: drafter_dir.load(path)
      for path in sorted((here / 'drafters').glob('*'))
    },
  )
