"""Published shapes have the published numbers of parameters."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from specsamp.drafting.trained import make
from specsamp.evaluation.pairs import PAIRS
from specsamp.models import Transformer, param_shapes, presets
from specsamp.models.published import MODELS, NEVER_PUBLISHED

_PAIRED = {
  name: shape
  for names, pair in PAIRS.items()
  for name, shape in zip(
    names.split('+'), (pair.target, pair.draft), strict=True
  )
}


def _count(config):
  """Returns the number of parameters; traces two layers of a model at most."""
  count = lambda num_layers: sum(
    math.prod(leaf.shape)
    for leaf in jax.tree.leaves(
      param_shapes(
        Transformer(dataclasses.replace(config, num_layers=num_layers))
      )
    )
  )
  return count(1) + (config.num_layers - 1) * (count(2) - count(1))


@pytest.mark.parametrize(
  ('config', 'published', 'tolerance'),
  [
    (presets.chinchilla_70b(), 70e9, 0.01),
    (presets.chinchilla_draft_4b(), 4e9, 0.05),
    (presets.llama_7b(), 6.738e9, 0.001),
    (presets.llama31_8b(), 8.03e9, 0.001),
    (presets.llama32_1b(), 1.236e9, 0.001),
    (presets.opt_125m(), 125.2e6, 0.001),
    (presets.gpt2(768, 12, 12), 124.4e6, 0.001),
  ],
)
def test_number_of_parameters(config, published, tolerance):
  assert _count(config) == pytest.approx(published, rel=tolerance)


def test_the_models_of_all_pairs_are_listed():
  assert sorted(_PAIRED) == sorted([*MODELS, *NEVER_PUBLISHED])
  for name, model in MODELS.items():
    count = _count(_PAIRED[name]) / 1e9
    assert model.billions == pytest.approx(count, rel=0.01), name


def test_shapes_are_float32_whatever_the_first_caller_enables():
  config = presets.gpt2(64, 2, 2, max_length=9)
  with jax.enable_x64(True):
    first = param_shapes(Transformer(config))
  assert {leaf.dtype for leaf in jax.tree.leaves(first)} == {np.dtype('f4')}
  assert param_shapes(Transformer(config)) is first
  other = dataclasses.replace(config, max_length=8)
  assert param_shapes(Transformer(other)) != first


@pytest.mark.parametrize(
  ('target', 'millions'),
  [(presets.llama_7b(), 202), (presets.llama_13b(), 317)],
)
def test_a_parallel_drafter_is_as_large_as_the_papers(target, millions):
  """See Xiao et al. 2410.05589, 5.1."""
  params = param_shapes(make('medusa_parallel', target, 5))
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  assert round(count / 1e6) == millions
