"""What is timed on a device."""

import dataclasses
from typing import Any

from specsamp.errors import UserError, check_fields, check_range
from specsamp.evaluation import timing
from specsamp.experiments.accelerator import static_cache
from specsamp.experiments.config import SampledConfig, reading
from specsamp.experiments.method_config import MethodConfig
from specsamp.models import TransformerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShapeConfig:
  """A model with random weights, and what of it is timed.

  Attributes:
    name: of it.
    shape: of it.
    sizes: tokens of the passes.
    gamma: γ of the EAGLE rounds; 0 is none of them.
  """

  name: str
  shape: TransformerConfig
  sizes: tuple[int, ...]
  gamma: int

  def __post_init__(self):
    check_range(self, 'gamma', min=0, max=64, kind=int)
    for size in self.sizes:
      if type(size) is not int or not 1 <= size <= self.shape.max_length:
        raise UserError(
          f'sizes: got {size!r}, expected 1 to {self.shape.max_length} tokens'
        )

  @classmethod
  def read(cls, values: dict[str, Any]) -> 'ShapeConfig':
    """The model of plain values."""
    check_fields('shape', values, cls)
    try:
      shape = TransformerConfig.from_dict(values['shape'])
    except ValueError as error:
      raise UserError(f'shapes: {error}') from None
    return cls(**values | {'shape': shape, 'sizes': tuple(values['sizes'])})


@dataclasses.dataclass(frozen=True, kw_only=True)
class AcceleratorConfig(SampledConfig):
  """What to time: a pair of trained models, and shapes with random weights.

  Attributes:
    title: of the report.
    methods: of the pair; the autoregressive baselines are added.
    shapes: models with random weights.
    prompt_tokens: of the shapes, before what is timed.
    context: of the shapes, slots of the caches.
    repeats: turns.
  """

  title: str
  methods: tuple[MethodConfig, ...]
  shapes: tuple[ShapeConfig, ...]
  prompt_tokens: int
  context: int
  repeats: int

  def __post_init__(self):
    super().__post_init__()
    check_range(self, 'prompt_tokens', 'repeats', min=1, kind=int)
    # A token a round at least, and those before the first that is timed.
    untimed = 1 + static_cache.UNTIMED
    least = self.prompt_tokens + untimed + timing.ROUNDS
    check_range(self, 'context', min=least, kind=int)
    names = [each.name for each in self.shapes]
    if len(set(names)) < len(names):
      raise UserError(f'shapes: got {names}, expected no name twice')
    for each in self.shapes:
      if self.context > each.shape.max_length:
        raise UserError(
          f'context: got {self.context}, expected at most the '
          f'{each.shape.max_length} positions of {each.name}'
        )

  @classmethod
  def read(cls, values: dict[str, Any]) -> 'AcceleratorConfig':
    """The config of plain values."""
    with reading():
      own = {
        'methods': tuple(map(MethodConfig.read, values['methods'])),
        'shapes': tuple(map(ShapeConfig.read, values['shapes'])),
      }
      return cls(**values | own)
