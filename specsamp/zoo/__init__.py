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
    draft: wide and shallow, with the target's tokenizer.
    drafters: by name, those trained on the target's features, for
      `specsamp.drafting.trained_drafter`.
  """

  target: LanguageModel
  draft: LanguageModel
  drafters: dict[str, DraftModule]


def names() -> list[str]:
  return sorted(p.parent.name for p in _HERE.glob('*/target'))


def folder(name: str) -> pathlib.Path:
  """Of an embedded pair: target, draft and drafters are in it."""
  check_name('zoo', name, names())
  return _HERE / name


@functools.cache
def load(name: str) -> Pair:
  """The embedded pair of this name: `pycode` completes Python code.

  Raises:
    UserError: there is none.
  """
  here = folder(name)
  return Pair(
    model_dir.load(here / 'target'),
    model_dir.load(here / 'draft'),
    {
      path.name: drafter_dir.load(path)
      for path in sorted((here / 'drafters').glob('*'))
    },
  )
