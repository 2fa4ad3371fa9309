"""Config of a plan: models, their shapes, and published figures."""

import dataclasses
from typing import Literal

from specsamp.errors import UserError, check_name, check_range
from specsamp.models import TransformerConfig, quantized
from specsamp.planning.prices import PriceConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConfig:
  """Models and slices of a plan.

  Attributes:
    title: title of the report.
    target: shape of the target.
    draft: shape of the draft.
    alternative: shape of another draft that `paper_ms` may name, or None.
    weights: int8 or w8a8 for weights of the target in 8 bits, '' for its
      dtype.
    draft_weights: the same for the draft.
    gamma: number of draft tokens in the compiled programs.
    context: slots of the caches.
    batch: rows.
    alphas: acceptance rates to predict speedups at.
    measured: a JSON file of measured times, which replace the predicted times
      of every slice, or ''. It is an object with any of draft_ms (a draft
      step), score_ms (a scoring pass over gamma + 1 tokens) and target_ms (a
      step of the target).
    paper_ms: published times, ((model, slice, milliseconds per token), ..).
    paper_speedups: published speedups with gamma draft tokens on the first
      slice of `paper_ms`, ((task, speedup), ..).
    compile: True to compile the programs, which takes minutes per slice.
    prefill: True to compile the prefill of a prompt that fills the context,
      too, which takes many minutes for TPUs.
    prices: entries of the predicted price list of every slice.
  """

  title: str
  target: TransformerConfig
  draft: TransformerConfig
  alternative: TransformerConfig | None = None
  weights: Literal['', quantized.Kind] = ''
  draft_weights: Literal['', quantized.Kind] = ''
  gamma: int = 4
  context: int = 2048
  batch: int = 1
  alphas: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9)
  measured: str = ''
  paper_ms: tuple[tuple[str, str, float], ...] = ()
  paper_speedups: tuple[tuple[str, float], ...] = ()
  compile: bool = True
  prefill: bool = False
  prices: PriceConfig = PriceConfig()

  def __post_init__(self):
    check_range(self, 'gamma', 'context', 'batch', min=1, kind=int)
    for alpha in self.alphas:
      if not 0 <= alpha <= 1:
        raise UserError(f'alphas: got {alpha!r}, expected 0 to 1')
    longest = min(self.target.max_length, self.draft.max_length)
    for context in (self.context, *self.prices.contexts):
      if context > longest:
        raise UserError(
          f'context: got {context}, but the models have {longest} positions'
        )
    models = ['target', 'draft'] + ['alternative'] * bool(self.alternative)
    for model, _, _ in self.paper_ms:
      check_name('model of paper_ms', model, models)
    if self.paper_speedups and not self.paper_ms:
      raise UserError('paper_speedups: expected paper_ms to name their slice')
    if self.target.vocab_size != self.draft.vocab_size:
      raise UserError(
        f'draft and target must share a vocabulary; the draft has '
        f'{self.draft.vocab_size} tokens, the target {self.target.vocab_size}'
      )
