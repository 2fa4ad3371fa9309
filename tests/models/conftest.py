"""Tiny models of every family, with no parameter left at zero or one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specsamp import file_order
from specsamp.models import (
  Transformer,
  TransformerConfig,
  param_shapes,
  presets,
)
from specsamp.models.config import RopeScaling

_TINY = dict(vocab_size=29, max_length=32, dtype='float32')
_GROUPED = dict(num_layers=2, num_heads=4, num_kv_heads=2, mlp_width=20)

FAMILIES = {
  'llama': TransformerConfig(
    width=24,
    head_dim=6,
    rope_theta=500.0,
    rope_scaling=RopeScaling('linear', 2.0),
    biases='attention',
    **_GROUPED,
    **_TINY,
  ),
  # Queries and keys with norms and biases; wavelengths that are stretched in
  # full, in part and not at all.
  'qwen': TransformerConfig(
    width=24,
    head_dim=8,
    rope_theta=50.0,
    rope_scaling=RopeScaling('llama3', 4.0, 1.0, 3.0, 40),
    qk_norm=True,
    biases='qkv',
    padding=3,
    **_GROUPED,
    **_TINY,
  ),
  'gemma': TransformerConfig(
    width=24,
    head_dim=8,
    rope_theta=50.0,
    rope_scaling=RopeScaling('linear', 2.0),
    windows=(3, 0),
    window_rope_theta=10.0,
    query_scale=0.3,
    score_cap=2.0,
    logit_cap=5.0,
    embedding_scale=24**0.5,
    qk_norm=True,
    output_norms=True,
    activation='gelu_tanh',
    tied_embeddings=True,
    **_GROUPED,
    **_TINY,
  ),
  # YaRN with wavelengths that are stretched in full, in part and not at all,
  # on three of four pairs; queries that grow within the text.
  'ministral': TransformerConfig(
    width=24,
    head_dim=16,
    rope_theta=50.0,
    rope_scaling=RopeScaling('yarn', 4.0, 0.3, 0.9, 8, False, 1.2),
    rotary_fraction=0.75,
    query_growth=0.5,
    windows=(6,),
    **_GROUPED,
    **_TINY,
  ),
  # The second of three layers is dense; a tree's nodes choose other experts.
  'experts': TransformerConfig(
    width=24,
    head_dim=6,
    num_experts=5,
    experts_per_token=2,
    expert_width=12,
    router='softmax',
    dense_layers=(1,),
    **(_GROUPED | dict(num_layers=3)),
    **_TINY,
  ),
  'gpt2': presets.gpt2(16, 2, 2, **_TINY),
  'chinchilla': presets.chinchilla(16, 3, 2, head_dim=6, **_TINY),
  # No preset has relative positions with grouped keys and biases, whose head
  # axes are the easiest to confuse. An odd width cuts the last sinusoid.
  'mixed': TransformerConfig(
    width=15,
    head_dim=5,
    norm='layer',
    positions='relative',
    activation='relu',
    biases='all',
    **_GROUPED,
    **_TINY,
  ),
}


def random_params(config, seed=0):
  """Draws parameters away from their initial zeros and ones."""
  shapes = file_order.shapes(param_shapes(Transformer(config)))
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    is_scale = path[-1].key in ('scale', 'q_norm', 'k_norm')
    return rng.normal(is_scale, 0.3, leaf.shape).astype(leaf.dtype)

  params = jax.tree.map_with_path(draw, shapes)
  return jax.tree.map(jnp.asarray, file_order.from_files(params))


@pytest.fixture(scope='package', params=FAMILIES)
def model(request):
  """Returns (Transformer, params) of one family."""
  config = FAMILIES[request.param]
  return Transformer(config), random_params(config)
