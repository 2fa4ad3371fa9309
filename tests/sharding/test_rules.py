"""The table of rules holds every parameter, and says what does not fit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.layout import Format
from jax.sharding import NamedSharding, PartitionSpec

from specsamp.drafting.eagle3 import Eagle3Layer
from specsamp.drafting.peagle import PEagleLayers
from specsamp.drafting.trained import KINDS, make
from specsamp.errors import UserError
from specsamp.models import Transformer, TransformerConfig, param_shapes
from specsamp.planning import topology
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules

_CONFIG = TransformerConfig(
  vocab_size=64,
  width=24,
  num_layers=2,
  num_heads=8,
  num_kv_heads=4,
  head_dim=6,
  mlp_width=40,
  max_length=32,
)
_P = PartitionSpec


@pytest.fixture(scope='module')
def mesh():
  return meshes.make(2, 4)


def _shapes(**changes):
  transformer = Transformer(dataclasses.replace(_CONFIG, **changes))
  return param_shapes(transformer)


def _specs(shapes, mesh):
  flat, _ = jax.tree_util.tree_flatten_with_path(
    rules.param_shardings(shapes, mesh)
  )
  return {path[-1].key: sharding.spec for path, sharding in flat}


@pytest.mark.parametrize('tied', [False, True])
@pytest.mark.parametrize('gated', [False, True])
@pytest.mark.parametrize('biases', ['none', 'qkv', 'all'])
@pytest.mark.parametrize('norm', ['rms', 'layer'])
@pytest.mark.parametrize('positions', ['rotary', 'learned', 'relative'])
def test_every_parameter_has_axes_of_its_rank(
  positions, norm, biases, gated, tied
):
  shapes = _shapes(
    positions=positions,
    norm=norm,
    biases=biases,
    gated=gated,
    tied_embeddings=tied,
  )
  flat, _ = jax.tree_util.tree_flatten_with_path(shapes)
  sizes = dict(
    vocab=64,
    width=24,
    heads=8,
    kv_heads=4,
    head_dim=6,
    mlp=40,
    position=32,
    key_or_value=2,
    gate_or_up=2 if gated else 1,
  )
  for path, leaf in flat:
    axes = rules.PARAMS[path[-1].key]
    # Not only as many: each axis is the one that it is called.
    assert tuple(sizes[axis] for axis in axes) == leaf.shape, path


def test_no_axes_for_parameters_that_there_are_not():
  seen = set()
  for changes in (
    dict(positions='relative', norm='layer', biases='all'),
    dict(positions='learned', qk_norm=True),
  ):
    flat, _ = jax.tree_util.tree_flatten_with_path(_shapes(**changes))
    seen |= {path[-1].key for path, _ in flat}
  deep = dataclasses.replace(_CONFIG, num_layers=6)
  trained = [make(kind, deep, 3) for kind in KINDS]
  layer = dataclasses.replace(_CONFIG, num_layers=1)
  published = (
    Eagle3Layer(layer, 5, True, tap_norm='each'),
    PEagleLayers(layer, 5),
  )
  for made in (*trained, *published):
    flat, _ = jax.tree_util.tree_flatten_with_path(param_shapes(made))
    seen |= {path[-1].key for path, _ in flat}
    for path, leaf in flat:
      assert len(rules.PARAMS[path[-1].key]) == leaf.ndim, path
  assert seen == rules.PARAMS.keys()


def test_matmuls_are_split_as_in_megatron(mesh):
  specs = _specs(_shapes(positions='relative', biases='all'), mesh)
  assert specs == {
    'embedding': _P('model', None),
    'head': _P('model', None),
    'scale': _P(None),
    'q': _P('model', None, None),
    'q_bias': _P('model', None),
    'kv': _P(None, 'model', None, None),
    'kv_bias': _P(None, 'model', None),
    'o': _P(None, 'model', None),
    'o_bias': _P(None),
    'relative': _P('model', None, None),
    'content_bias': _P('model', None),
    'distance_bias': _P('model', None),
    'up': _P(None, 'model', None),
    'up_bias': _P(None, 'model'),
    'down': _P(None, 'model'),
    'down_bias': _P(None),
  }


def test_two_axes_on_one_of_the_mesh_are_refused(mesh):
  with pytest.raises(ValueError, match="'heads', 'mlp'.*'model', 'model'"):
    rules.spec(('heads', 'mlp'), (8, 8), mesh)
  with pytest.raises(ValueError, match="'batch', 'batch'"):
    rules.spec(('batch', 'batch'), (8, 8), mesh)


def test_as_many_axes_as_the_array_has(mesh):
  with pytest.raises(ValueError, match=r"\('batch',\) for shape \(8, 8\)"):
    rules.spec(('batch',), (8, 8), mesh)


@pytest.mark.parametrize('axis', ['heads', 'mlp'])
def test_what_must_divide(mesh, axis):
  with pytest.raises(UserError) as error:
    rules.spec(('width', axis), (24, 6), mesh)
  assert str(error.value) == (
    f"{axis}: 6 do not divide into 4 shards, the size of the mesh axis 'model'"
  )


@pytest.mark.parametrize(
  ('axis', 'size', 'part'),
  [
    ('vocab', 64, 'model'),
    ('vocab', 65, None),
    ('kv_heads', 4, 'model'),
    ('kv_heads', 2, None),
    ('batch', 6, 'data'),
    ('batch', 1, None),
    (None, 8, None),
    ('slots', 8, None),
  ],
)
def test_what_is_whole_where_it_does_not_divide(mesh, axis, size, part):
  assert rules.spec(('width', axis), (24, size), mesh) == _P(None, part)


def test_a_parameter_without_a_rule_is_refused(mesh):
  with pytest.raises(KeyError, match='gamma'):
    rules.param_shardings({'gamma': np.zeros(3)}, mesh)


def test_the_optimizers_state_lies_as_its_parameters(mesh):
  shapes = _shapes(biases='all')
  expected = rules.param_shardings(shapes, mesh)
  state = jax.eval_shape(optax.adamw(1e-3).init, shapes)
  adam, *_ = rules.param_shardings(state, mesh)
  assert adam.mu == expected
  assert adam.nu == expected
  assert adam.count == NamedSharding(mesh, _P())


def test_a_cpu_is_given_no_order(mesh):
  shapes = _shapes()
  assert rules.param_formats(shapes, mesh) == rules.param_shardings(
    shapes, mesh
  )


@pytest.mark.tpu_aot
def test_a_tpu_is_given_the_order_that_matmuls_read():
  devices = topology.parse('v5e:2x4').devices()
  mesh = meshes.make(2, 4, devices)
  shapes = _shapes()
  formats = rules.param_formats(shapes, mesh)
  plain = rules.param_shardings(shapes, mesh)
  for i in range(_CONFIG.num_layers):
    found = formats[f'layers_{i}']['attention'].pop('o')
    where = plain[f'layers_{i}']['attention'].pop('o')
    assert isinstance(found, Format)
    assert found.layout.major_to_minor == (1, 0, 2)  # heads outside
    assert found.sharding == where
  assert formats == plain


def test_constrain_is_nothing_without_a_mesh(mesh):
  array = jnp.zeros((4, 8))
  assert rules.mesh_in_use() is None
  assert rules.constrain(array, 'batch', 'vocab') is array
  with meshes.use(mesh):
    laid = jax.jit(lambda x: rules.constrain(x, 'batch', 'vocab'))(array)
  assert laid.sharding.spec == _P('data', 'model')
