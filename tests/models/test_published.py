"""The list of published models: those of the pairs, of their sizes."""

import dataclasses
import math

import jax
import pytest

from specsamp.models import Transformer, pairs, param_shapes
from specsamp.models.published import MODELS, NEVER_PUBLISHED

_SHAPES = {
  name: shape
  for pair, value in pairs.PAIRS.items()
  for name, shape in zip(pairs.folders(pair), value[:2], strict=True)
}


def _count(shape, num_layers):
  transformer = Transformer(dataclasses.replace(shape, num_layers=num_layers))
  params = param_shapes(transformer)
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def test_all_models_of_pairs_are_listed():
  assert sorted(_SHAPES) == sorted([*MODELS, *NEVER_PUBLISHED])


@pytest.mark.parametrize('name', MODELS)
def test_parameters(name):
  shape = _SHAPES[name]
  one, two = (_count(shape, num_layers) for num_layers in (1, 2))
  count = one + (shape.num_layers - 1) * (two - one)
  assert MODELS[name].billions == pytest.approx(count / 1e9, rel=0.01)
