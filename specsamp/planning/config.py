"""Config of a plan: models, slices, and figures that papers report."""

import dataclasses

from specsamp.errors import UserError, check_name, check_range
from specsamp.models import TransformerConfig
from specsamp.planning.prices import PriceConfig

MODELS = ('target', 'draft', 'alternative')


@dataclasses.dataclass(frozen=True)
class PlanConfig:
  """Models and slices of a plan.

  Attributes:
    title: title of the report.
    target: shape of the target.
    draft: shape of the draft.
    alternative: shape of another draft, which has its own slices.
    gamma: γ, number of draft tokens of the compiled programs.
    context: cache slots.
    batch: number of rows.
    alphas: acceptance rates to predict speedups at.
    compare: slices to predict, in addition to the compiled ones. Models that
      do not fit a slice are noted in the report.
    alternative_on: slices of the alternative; () omits it.
    measured: JSON file of measured times, see `latency.measured`, which replace
      the predicted ones on every slice; '' for none.
    paper_ms: reported times by model and slice, ((model, slice, ms), ...).
    paper_speedups: reported speedups, ((task, speedup), ...), of γ draft tokens
      on the first slice of `paper_ms`.
    compile: True compiles the programs, which takes minutes for each slice.
    prices: price list of every slice.
  """

  title: str
  target: TransformerConfig
  draft: TransformerConfig
  alternative: TransformerConfig
  gamma: int
  context: int
  batch: int
  alphas: tuple[float, ...]
  compare: tuple[str, ...]
  alternative_on: tuple[str, ...]
  measured: str
  paper_ms: tuple[tuple[str, str, float], ...]
  paper_speedups: tuple[tuple[str, float], ...]
  compile: bool
  prices: PriceConfig

  def __post_init__(self):
    check_range(self, 'gamma', 'context', 'batch', least=1, kind=int)
    for alpha in self.alphas:
      if not 0 <= alpha <= 1:
        raise UserError(f'alphas: got {alpha!r}, expected 0 to 1')
    longest = min(self.target.max_length, self.draft.max_length)
    for context in (self.context, *self.prices.contexts):
      if context > longest:
        raise UserError(
          f'context: got {context}, but the models have {longest} positions'
        )
    if self.gamma + 1 > self.context:
      raise UserError(
        f'gamma: got {self.gamma}, expected below the context, {self.context}'
      )
    for model, _, _ in self.paper_ms:
      check_name('model of paper_ms', model, MODELS)
    if self.paper_speedups and not self.paper_ms:
      raise UserError('paper_speedups: expected paper_ms to name their slice')
    if self.target.vocab_size != self.draft.vocab_size:
      raise UserError(
        f'draft and target must share a vocabulary; the draft has '
        f'{self.draft.vocab_size} tokens, the target {self.target.vocab_size}'
      )
