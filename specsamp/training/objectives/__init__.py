"""Losses of the drafters that `drafting.trained` names: one for each kind.

A loss is a function of a drafter's module, its parameters, a `TargetHead`, a
`depths.Batch` and a `DistillConfig`. It returns the loss to minimize and the
metrics of `depths.weighted_sum`.
"""

import importlib
from collections.abc import Callable

from specsamp.drafting.trained import KINDS


def _find(name: str) -> Callable:
  """Returns the function that is named as 'MODULE.FUNCTION'."""
  module, function = name.split('.')
  return getattr(importlib.import_module(f'{__name__}.{module}'), function)


LOSSES = {name: _find(kind.loss) for name, kind in KINDS.items()}
