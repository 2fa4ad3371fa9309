"""What a run of a queue of requests holds."""

import dataclasses

import numpy as np

from specsamp.errors import UserError, check_range
from specsamp.experiments.config import SampledConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThroughputConfig(SampledConfig):
  """A queue of requests; the longest has `max_new_tokens`.

  Attributes:
    drafter: what drafts, see `loading.Models`; '' is the draft model.
    draft_lens: drafted tokens a round, to compare.
    adaptive: whether a length that is chosen in each round, from 0 and these,
      is compared with them.
    temperatures: every prompt is asked for at each.
    prompts: what to complete, names of `tasks.load`.
    shuffled: whether the queue is of all prompts and temperatures; else it is
      of one task and temperature after the other, each of which is timed.
    spread: how many times longer the longest text is than the shortest.
    slots: rows of the engine, and of a static batch.
    batches: whether the queue is also decoded in batches that end together.
    rounds: of a burst at most.
    repeats: how often the queue is decoded each way, by turns.
    soak: so many requests of all kinds go through one engine, and nothing is
      timed; 0 is none.
  """

  drafter: str
  draft_lens: tuple[int, ...]
  adaptive: bool
  temperatures: tuple[float, ...]
  prompts: tuple[str, ...]
  shuffled: bool
  spread: float
  slots: int
  batches: bool
  rounds: int
  repeats: int
  soak: int = 0

  def __post_init__(self):
    super().__post_init__()
    check_range(self, 'slots', 'rounds', 'repeats', min=1, kind=int)
    check_range(self, 'soak', min=0, kind=int)
    check_range(self, 'spread', min=1, max=self.max_new_tokens)
    self.check_compared('draft_lens', 'temperatures', 'prompts')
    self.check_temperatures(self.temperatures)
    for length in self.draft_lens:
      if type(length) is not int or length < 1:
        raise UserError(f'draft_lens: got {length!r}, expected at least 1')

  def budgets(self, count: int) -> list[int]:
    """New tokens of so many requests: evenly spread logarithms, shuffled."""
    shortest = self.max_new_tokens / self.spread
    spaced = np.geomspace(shortest, self.max_new_tokens, count)
    order = np.random.default_rng(self.seed).permutation(count)
    return spaced.round().astype(int)[order].tolist()
