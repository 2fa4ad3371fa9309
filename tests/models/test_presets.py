"""Published shapes have the published numbers of parameters."""

import dataclasses
import math

import jax
import pytest

from specsamp.drafting.trained import make
from specsamp.evaluation.pairs import PAIRS, TARGETS
from specsamp.models import Transformer, param_shapes, presets
from specsamp.models.published import MODELS, NEVER_PUBLISHED

_PAIRED = {
  name: shape
  for names, pair in PAIRS.items()
  for name, shape in zip(
    names.split('+'), (pair.target, pair.draft), strict=True
  )
} | TARGETS


def _count(config):
  """Returns the number of parameters; traces two layers of a model at most."""

  def count(num_layers):
    module = Transformer(dataclasses.replace(config, num_layers=num_layers))
    leaves = jax.tree.leaves(param_shapes(module))
    return sum(math.prod(leaf.shape) for leaf in leaves)

  return count(1) + (config.num_layers - 1) * (count(2) - count(1))


def test_numbers_of_parameters():
  assert sorted(_PAIRED) == sorted([*MODELS, *NEVER_PUBLISHED])
  for config, published, tolerance in (
    (presets.chinchilla_70b(), 70e9, 0.01),
    (presets.chinchilla_draft_4b(), 4e9, 0.05),
    (presets.mixtral_8x7b(), 46.7e9, 0.001),
    (presets.gpt2(768, 12, 12), 124.4e6, 0.001),
    *((_PAIRED[name], 1e9 * m.billions, 0.01) for name, m in MODELS.items()),
  ):
    assert _count(config) == pytest.approx(published, rel=tolerance)


def test_a_parallel_drafter_is_as_large_as_the_papers():
  """See Xiao et al. 2410.05589, 5.1."""
  params = param_shapes(make('medusa_parallel', presets.llama_7b(), 5))
  assert round(sum(leaf.size for leaf in jax.tree.leaves(params)) / 1e6) == 202
