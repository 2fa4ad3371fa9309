"""Config of a plan: models, slices, and figures that papers report."""

import dataclasses

from specsamp.errors import UserError, check_name, check_range
from specsamp.models import TransformerConfig
from specsamp.planning.prices import PriceConfig

MODELS = ('target', 'draft', 'alternative')


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConfig:
  """Models and slices of a plan.

  Attributes:
    title: title of the report.
    target: shape of the target.
    draft: shape of the draft.
    alternative: shape of another draft, on its own slices; None is no such
      draft.
    gamma: draft tokens of the compiled programs.
    context: slots of the caches.
    batch: rows.
    alphas: acceptance rates to predict speedups at.
    compare: slices to predict in addition to the compiled ones. The report
      names those that are too small.
    alternative_on: slices of the alternative draft.
    measured: a JSON file of measured times, which replace predicted ones on
      every slice: an object with any of draft_ms (a draft step), score_ms (a
      scoring pass over gamma + 1 tokens) and target_ms (a step of the target).
      '' is none.
    paper_ms: reported times, ((model, slice, milliseconds a token), ..).
    paper_speedups: reported speedups with gamma draft tokens on the first slice
      of `paper_ms`, ((task, speedup), ..).
    compile: compile the programs, which takes minutes for each slice.
    prices: price list of every slice, predicted.
  """

  title: str
  target: TransformerConfig
  draft: TransformerConfig
  alternative: TransformerConfig | None = None
  gamma: int = 4
  context: int = 2048
  batch: int = 1
  alphas: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9)
  compare: tuple[str, ...] = ()
  alternative_on: tuple[str, ...] = ()
  measured: str = ''
  paper_ms: tuple[tuple[str, str, float], ...] = ()
  paper_speedups: tuple[tuple[str, float], ...] = ()
  compile: bool = True
  prices: PriceConfig = PriceConfig()

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
    models = [name for name in MODELS if getattr(self, name)]
    for model, _, _ in self.paper_ms:
      check_name('model of paper_ms', model, models)
    if self.alternative_on and not self.alternative:
      raise UserError(
        f'alternative: got None, expected the shape for {self.alternative_on}'
      )
    if self.paper_speedups and not self.paper_ms:
      raise UserError('paper_speedups: expected paper_ms to name their slice')
    if self.target.vocab_size != self.draft.vocab_size:
      raise UserError(
        f'draft and target must share a vocabulary; the draft has '
        f'{self.draft.vocab_size} tokens, the target {self.target.vocab_size}'
      )
