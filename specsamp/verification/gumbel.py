"""Gumbel coupling: a completion depends on its seed and the target alone.

Source: Daliri, Musco and Suresh, arXiv 2408.07978.

Drafts: any static or dynamic tree, of any law.

At every position the target emits the winner of a random race (see
`sampling.coupling`), and the rule accepts a draft while it has the winners. A
drafter that runs its q in the same race often proposes the winner. It is exact
over random seeds, because each winner is a draw from p. With a given seed
nothing is left to draw, so every draft leads to the same completion.
"""

import dataclasses
from typing import ClassVar

from specsamp.verification.naive import NaiveVerifier


@dataclasses.dataclass(frozen=True)
class GumbelVerifier(NaiveVerifier):
  """The naive rule with the one-hot of each race's winner for p.

  The decoding loop runs the races and passes p as
  `sampling.coupling.winner_one_hot` returns it.
  """

  coupled: ClassVar[bool] = True
