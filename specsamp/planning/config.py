"""What a plan is of: models, slices, and what others report of them."""

import dataclasses

from specsamp.errors import UserError, check_range, describe_unknown
from specsamp.models import TransformerConfig
from specsamp.planning.prices import PriceConfig
from specsamp.utils import files

MODELS = ('target', 'draft', 'alternative')


@dataclasses.dataclass(frozen=True)
class PlanConfig:
  """What to plan.

  Attributes:
    title: of the report.
    target: the target's shape.
    draft: the draft's shape.
    alternative: another draft, on slices of its own.
    gamma: γ, drafted tokens of the compiled programs.
    context: slots of the caches.
    batch: rows.
    alphas: chances of acceptance to predict speedups at.
    compare: slices to predict beside the compiled ones; what does not fit
      one of them is left out, and the report notes it.
    alternative_on: slices of the alternative; none leaves it out.
    measured: a JSON of measured times for `latency.measured`, or ''; they
      stand for every slice.
    paper_ms: reported times by model and slice: ((model, slice, ms), ...).
    paper_speedups: reported ones, ((task, speedup), ...), of γ drafted tokens
      on the first slice of `paper_ms`.
    compile: whether to compile at all, minutes for each slice.
    prices: the price list of every slice, predicted.
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
    check_range(self, 'gamma', 'context', 'batch', min=1, kind=int)
    _check_entries('alphas', self.alphas, float)
    _check_entries('compare', self.compare, str)
    _check_entries('alternative_on', self.alternative_on, str)
    _check_entries('paper_ms', self.paper_ms, str, str, float)
    _check_entries('paper_speedups', self.paper_speedups, str, float)
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
    for model, *_ in self.paper_ms:
      if model not in MODELS:
        raise UserError(describe_unknown('model of paper_ms', model, MODELS))
    if self.paper_speedups and not self.paper_ms:
      raise UserError('paper_speedups: expected paper_ms to name their slice')
    if self.target.vocab_size != self.draft.vocab_size:
      raise UserError(
        f'draft and target must share a vocabulary; the draft has '
        f'{self.draft.vocab_size} tokens, the target {self.target.vocab_size}'
      )


def _check_entries(name: str, entries, *kinds: type) -> None:
  """Refuses what is no tuple of values of these kinds, or of tuples of them."""
  for entry in entries if isinstance(entries, list | tuple) else (entries,):
    fields = (entry,) if len(kinds) == 1 else entry
    if (
      not isinstance(fields, list | tuple)
      or len(fields) != len(kinds)
      or not all(map(files.has_shape, fields, kinds))
    ):
      wanted = ', '.join(kind.__name__ for kind in kinds)
      raise UserError(f'{name}: got {entry!r}, expected ({wanted})')
