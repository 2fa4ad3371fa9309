"""Published shapes have the published numbers of parameters."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import traverse_util

from specsamp.drafting.trained import make
from specsamp.models import Transformer, param_shapes, presets


def _sizes(config):
  """Name -> number of parameters; nothing is allocated."""
  params = param_shapes(Transformer(config))
  flat = traverse_util.flatten_dict(params, sep='.')
  return {name: leaf.size for name, leaf in flat.items()}


@pytest.mark.parametrize(
  ('config', 'published', 'tolerance'),
  [
    (presets.chinchilla_70b(), 70e9, 0.01),
    (presets.chinchilla_draft_4b(), 4e9, 0.05),
    (presets.llama(4096, 32, 32, 11_008), 6.738e9, 0.001),
    (presets.llama31_8b(), 8.03e9, 0.001),
    (presets.llama32_1b(), 1.236e9, 0.001),
    (presets.opt(768, 12, 12), 125.2e6, 0.001),
    (presets.gpt2(768, 12, 12), 124.4e6, 0.001),
  ],
  ids=[
    'chinchilla_70b', 'draft_4b', 'llama_7b', 'llama31_8b', 'llama32_1b',
    'opt_125m', 'gpt2_small',
  ],
)  # fmt: skip
def test_number_of_parameters(config, published, tolerance):
  assert sum(_sizes(config).values()) == pytest.approx(published, rel=tolerance)


def test_shapes_are_float32_whoever_asks_first():
  config = presets.gpt2(64, 2, 2, max_length=9)
  with jax.enable_x64(True):
    first = param_shapes(Transformer(config))
  assert {leaf.dtype for leaf in jax.tree.leaves(first)} == {np.dtype('f4')}
  assert param_shapes(Transformer(config)) is first
  other = dataclasses.replace(config, max_length=8)
  assert param_shapes(Transformer(other)) != first


def test_relative_projections_are_the_difference_to_a_plain_70b():
  sizes = _sizes(presets.chinchilla_70b())
  plain = sum(n for name, n in sizes.items() if not name.endswith('.relative'))
  assert plain == pytest.approx(64.7e9, rel=0.001)


def test_changes_reach_the_config():
  config = presets.gpt2(768, 12, 12, activation='relu', max_length=7)
  assert (config.activation, config.max_length) == ('relu', 7)
  assert config.vocab_size == 50_257


@pytest.mark.parametrize(
  ('shape', 'millions'),
  [((4096, 32, 32, 11_008), 202), ((5120, 40, 40, 13_824), 317)],
)
def test_a_parallel_drafter_is_as_large_as_the_papers(shape, millions):
  """Xiao et al. 2410.05589, 5.1, for 7B and 13B targets."""
  module = make('medusa_parallel', presets.llama(*shape), 5)
  params = param_shapes(module)
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  assert round(count / 1e6) == millions
