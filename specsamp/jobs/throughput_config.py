"""What a run of a queue of requests holds."""

import dataclasses

import numpy as np

from specsamp.errors import check_range
from specsamp.jobs.config import SampledConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThroughputConfig(SampledConfig):
  """A queue of requests, as many as prompts; the longest has `max_new_tokens`.

  Attributes:
    draft_len: drafted tokens a round.
    temperature: of all requests.
    prompts: see `tasks.load`.
    spread: how many times longer the longest text is than the shortest.
    slots: rows of the engine, and of a static batch.
    rounds: of a burst at most.
    repeats: how often the queue is decoded each way, by turns.
    soak: so many requests of all kinds go through one engine, and nothing is
      timed; 0 is none.
  """

  draft_len: int
  temperature: float
  prompts: str
  spread: float
  slots: int
  rounds: int
  repeats: int
  soak: int = 0

  def __post_init__(self):
    super().__post_init__()
    names = ('draft_len', 'slots', 'rounds', 'repeats')
    check_range(self, *names, least=1, kind=int)
    check_range(self, 'soak', least=0, kind=int)
    check_range(self, 'spread', least=1, most=self.max_new_tokens)
    check_range(self, 'temperature', least=0)
    check_range(self, 'top_p', least=0, most=1, open_least=True)

  @property
  def budgets(self) -> list[int]:
    """New tokens of each request: evenly spread logarithms, shuffled."""
    shortest = self.max_new_tokens / self.spread
    spaced = np.geomspace(shortest, self.max_new_tokens, self.num_prompts)
    order = np.random.default_rng(self.seed).permutation(self.num_prompts)
    return spaced.round().astype(int)[order].tolist()
