"""Models with random weights, made on the device that computes.

They are as fast as trained models of their shape. Their completions and their
acceptance rates mean nothing.
"""

import functools
import math

import jax
import jax.numpy as jnp

from specsamp.checkpoints import weights
from specsamp.drafting import Drafter, DraftModule, trained_drafter
from specsamp.drafting.trained import make
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, TransformerConfig, param_shapes


def target(config: TransformerConfig, seed: int) -> LanguageModel:
  """Returns a model of this shape, without a tokenizer."""
  transformer = Transformer(config)
  return LanguageModel(transformer, _params(transformer, seed), tokenizer=None)


def eagle(model: LanguageModel, gamma: int, seed: int) -> Drafter:
  """Returns an EAGLE drafter for a target."""
  module = make('eagle', model.config, gamma)
  trained = DraftModule(module, _params(module, seed), target='')
  return trained_drafter(trained, model, gamma)


def _params(module, seed: int):
  """Returns parameters, with matrices in the dtype of the computation."""
  shapes = param_shapes(module)
  count = len(jax.tree.leaves(shapes))
  keys = iter(jax.random.split(jax.random.key(seed), count))

  def leaf(path, shape):
    key, name = next(keys), path[-1].key
    if weights.is_matrix(name, shape):
      return _normal(key, shape.shape, module.config.dtype)
    fill = jnp.ones if name.endswith('scale') else jnp.zeros
    return fill(shape.shape, shape.dtype)

  # One at a time: an initialization of all holds many of them in 32 bits.
  return jax.tree_util.tree_map_with_path(leaf, shapes)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _normal(key, shape, dtype):
  """Draws values whose sums over all axes but the first have variance 1."""
  scale = math.prod(shape[1:]) ** -0.5
  return jax.random.normal(key, shape, dtype) * jnp.asarray(scale, dtype)
