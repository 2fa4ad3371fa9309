"""A model with random weights: plain decoding, passes, an EAGLE draft."""

from typing import NamedTuple

import numpy as np

from specsamp.drafting.draft import TokenTree
from specsamp.evaluation import timing
from specsamp.experiments.accelerator import random_models, static_cache
from specsamp.experiments.accelerator.config import (
  AcceleratorConfig,
  ShapeConfig,
)
from specsamp.experiments.accelerator.results import Program, Results
from specsamp.experiments.transformers_baseline import THEIRS
from specsamp.language_model import LanguageModel
from specsamp.planning import rounds, work
from specsamp.planning.gpu import Nodes
from specsamp.sampling.transforms import SamplingParams
from specsamp.verification.token import TokenVerifier

_PLAIN, _STEP = 'plain decoding', 'EAGLE draft step'


class Shape(NamedTuple):
  """What is timed of a model.

  Attributes:
    own: its shape, and what of it.
    config: what holds for all of them.
    transformers: whether to time its plain decoding beside ours.
  """

  own: ShapeConfig
  config: AcceleratorConfig
  transformers: bool

  @property
  def name(self) -> str:
    return self.own.name

  @property
  def _round(self) -> str:
    return f'EAGLE round γ={self.own.gamma}'

  @property
  def _eagle(self) -> list[str]:
    return [_STEP, self._round] if self.own.gamma else []

  @property
  def _prompt(self) -> list[int]:
    rng = np.random.default_rng(self.config.seed)
    most, count = self.own.shape.num_tokens, self.config.prompt_tokens
    return rng.integers(0, most, count).tolist()

  @property
  def _new_tokens(self) -> int:
    return self.config.context - self.config.prompt_tokens

  def programs(self, topology: Nodes | None) -> list[Program]:
    """All that is timed, and what is predicted of it."""
    shape, context = self.own.shape, self.config.context
    eagle = lambda tokens: rounds.eagle_pass(shape, tokens, context)
    sizes = {_PLAIN: 1} | {_pass(size): size for size in self.own.sizes}
    passes = {
      name: [work.of_pass(shape, shards=1, tokens=size, context=context)]
      for name, size in sizes.items()
    }
    if self.own.gamma:
      tree = TokenTree.chain(self.own.gamma)
      passes[_STEP] = [eagle(1)]
      passes[self._round] = rounds.of_round(shape, tree, eagle, context)
    return [
      Program(self.name, name, topology and rounds.of_passes(each, topology))
      for name, each in passes.items()
    ]

  def time(self, results: Results) -> None:
    """Times what has no time yet."""
    theirs = [_PLAIN] if self.transformers else []
    theirs = results.missing(self.name, theirs, THEIRS)
    plain = results.missing(self.name, [_PLAIN])
    passes = [
      size
      for size in self.own.sizes
      if results.missing(self.name, [_pass(size)])
    ]
    eagle = results.missing(self.name, self._eagle)
    if not any((theirs, plain, passes, eagle)):
      return
    with results.noting(self.name):
      target = random_models.target(self.own.shape, self.config.seed)
      if theirs:
        self._beside_theirs(target, results)
        static_cache.free()
      # If one of the two failed: ours may have room alone.
      if results.missing(self.name, [_PLAIN]):
        with results.noting(f'{self.name}, {_PLAIN}'):
          self._plain([self._decoding(target)], results)
      if passes:
        with results.noting(f'{self.name}, passes'):
          self._passes(target, passes, results)
      if eagle:
        with results.noting(f'{self.name}, EAGLE'):
          self._eagle_round(target, results)

  def _decoding(self, target: LanguageModel):
    return timing.decoding(target, self._prompt, self._new_tokens)

  def _plain(self, steps, results: Results) -> None:
    """Ours, and theirs if it is there, in turns."""
    times = timing.in_turns(steps, self.config.repeats)
    packages = [{}, {'package': THEIRS}]
    for package, each in zip(packages, times, strict=False):
      results.add(self.name, _PLAIN, np.median(each), **package)

  def _beside_theirs(self, target: LanguageModel, results: Results) -> None:
    # The error's name tells whose it is.
    what = f'{self.name}, {_PLAIN} beside {THEIRS}'
    with results.noting(what, static_cache.TransformersError):
      their_step = static_cache.decoding(
        self.own.shape, self._prompt, self.config.context, timing.ROUNDS
      )
      self._plain([self._decoding(target), their_step], results)

  def _passes(self, target: LanguageModel, sizes, results: Results) -> None:
    found = timing.pass_times(
      target, sizes, self._prompt, self._new_tokens, self.config.repeats
    )
    for size, ms in found.items():
      results.add(self.name, _pass(size), ms)

  def _eagle_round(self, target: LanguageModel, results: Results) -> None:
    gamma, seed = self.own.gamma, self.config.seed
    (cost,) = timing.measure(
      target,
      random_models.eagle(target, gamma, seed + 1),
      TokenVerifier(),
      [SamplingParams(temperature=0.0)],
      self._prompt,
      self._new_tokens,
      self.config.repeats,
    )
    results.add(self.name, _STEP, cost.draft_ms / gamma)
    results.add(self.name, self._round, cost.round_ms)


def _pass(size: int) -> str:
  return f'pass over {size} token{"s" * (size > 1)}'
