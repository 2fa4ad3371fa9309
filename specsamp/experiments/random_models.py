"""Models of published shapes with random weights, made where they compute.

Their times are those of trained ones; what they emit, and what they accept of
a draft, is noise.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from specsamp.checkpoints import weights
from specsamp.drafting import model_drafter, trained_drafter
from specsamp.drafting.draft import Law, TokenTree
from specsamp.drafting.drafter import Drafter
from specsamp.drafting.features import DraftModule
from specsamp.drafting.trained import make
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, TransformerConfig, param_shapes


def target(config: TransformerConfig, seed: int) -> LanguageModel:
  """A model of this shape; it has no tokenizer."""
  transformer = Transformer(config)
  return LanguageModel(transformer, _params(transformer, seed), tokenizer=None)


def eagle(model: LanguageModel, gamma: int, seed: int) -> Drafter:
  """An EAGLE drafter for a model of this module."""
  module = make('eagle', model.config, gamma)
  trained = DraftModule(module, _params(module, seed), target='')
  return trained_drafter(trained, model, gamma)


def draft(models, tree: TokenTree, law: Law) -> Drafter:
  """A model of the draft's shape, of which next to nothing is accepted.

  What a config has as its drafter: `..random_models:draft`.

  Args:
    models: a `loading.Models`.
    tree: of its drafts.
    law: how candidates are chosen, see `model_drafter`.
  """
  model = models.draft
  made = dataclasses.replace(model, params=_params(model.transformer, 0))
  return model_drafter(made.on(model.mesh), tree, law)


def _params(module, seed: int):
  """Parameters of a module, matrices in the type that it computes in."""
  shapes = param_shapes(module)
  count = len(jax.tree.leaves(shapes))
  keys = iter(jax.random.split(jax.random.key(seed), count))

  def leaf(path, shape):
    key, name = next(keys), path[-1].key
    if weights.is_matrix(name, shape):
      return _normal(key, shape.shape, module.config.dtype)
    fill = jnp.ones if name.endswith('scale') else jnp.zeros
    return fill(shape.shape, shape.dtype)

  # One by one: all at once an initialisation holds 32 bits of many of them.
  return jax.tree_util.tree_map_with_path(leaf, shapes)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _normal(key, shape, dtype):
  """As large as leaves a sum over all axes but the first at 1."""
  scale = math.prod(shape[1:]) ** -0.5
  return jax.random.normal(key, shape, dtype) * jnp.asarray(scale, dtype)
