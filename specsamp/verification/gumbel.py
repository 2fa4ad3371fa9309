"""Gumbel coupling: the text depends on the seed and the target alone.

Daliri, Musco and Suresh, arXiv 2408.07978: target and drafter emit the winner
of the same race at every position (`sampling.coupling`), and a draft is kept
while the two agree. No q is needed, and whatever was drafted, by whatever
drafter, the text is the same.
"""

import dataclasses
from typing import ClassVar

from specsamp.verification.naive import NaiveVerifier


@dataclasses.dataclass(frozen=True)
class GumbelVerifier(NaiveVerifier):
  """The naive rule on the winner of each race, a one-hot distribution.

  It takes p as `sampling.coupling.winner_one_hot` makes it; the decoding loop
  runs the races. Lossless over seeds: with one seed given, nothing is left to
  draw. Right for any `Draft.law`, for of a one-hot every rule emits the same.
  """

  coupled: ClassVar[bool] = True
