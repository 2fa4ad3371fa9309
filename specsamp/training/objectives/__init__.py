"""Losses of the drafters that `drafting.trained` names: one for each kind."""

import importlib
from collections.abc import Callable
from typing import NamedTuple

from specsamp.drafting.trained import KINDS, Kind
from specsamp.training.objectives.batch import Weights


class Objective(NamedTuple):
  """Loss of a kind of drafters.

  Attributes:
    loss: (module, params, target_head, batch, weights) -> the loss to minimize
      and metrics, see `depths.weighted_sum`. The module is a drafter's, params
      are its parameters, `target_head` is a `TargetHead`; see `batch.Batch` and
      `batch.Weights`.
    drafts_from_features: True if the drafter reads the target's features.
  """

  loss: Callable
  drafts_from_features: bool = True

  def reads_features(self, weights: Weights) -> bool:
    """Returns True if the drafter or the loss needs the target's features."""
    return self.drafts_from_features or weights.read_p


def _objective(kind: Kind) -> Objective:
  module, function = kind.loss.split('.')
  module = importlib.import_module(f'{__name__}.{module}')
  return Objective(getattr(module, function), kind.reads_features)


OBJECTIVES = {name: _objective(kind) for name, kind in KINDS.items()}
