"""Sharding rules: the axes of every parameter, and how they are split."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.layout import Format
from jax.sharding import NamedSharding, PartitionSpec

from specsamp.drafting.eagle3 import Eagle3Layer, PEagleLayers
from specsamp.drafting.trained import KINDS, make
from specsamp.errors import UserError
from specsamp.models import Transformer, TransformerConfig, param_shapes
from specsamp.planning import topology
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules

_CONFIG = TransformerConfig(
  vocab_size=64,
  width=24,
  num_layers=6,
  num_heads=8,
  num_kv_heads=4,
  head_dim=6,
  mlp_width=40,
  max_length=32,
)
_ALL_BIASES = dict(norm='layer', positions='relative', biases='all')
_SIZES = dict(
  vocab=64,
  width=24,
  heads=8,
  kv_heads=4,
  head_dim=6,
  mlp=40,
  position=32,
  key_or_value=2,
  gate_or_up=2,
)
_P = PartitionSpec


@pytest.fixture(scope='module')
def mesh():
  return meshes.make(2, 4)


def _shapes(**changes):
  return param_shapes(Transformer(dataclasses.replace(_CONFIG, **changes)))


def _named(tree):
  return [
    (path[-1].key, leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  ]


def test_the_table_has_the_axes_of_every_target_and_no_others():
  layer = dataclasses.replace(_CONFIG, num_layers=1)
  modules = [make(kind, _CONFIG, 3) for kind in KINDS]
  modules.append(Eagle3Layer(layer, 5, True, tap_norm='each'))
  modules.append(PEagleLayers(layer, 5))
  targets = [_shapes(**_ALL_BIASES), _shapes(positions='learned', qk_norm=True)]
  targets = _named(targets)
  drafters = _named([param_shapes(module) for module in modules])
  for name, leaf in targets:
    assert tuple(_SIZES[axis] for axis in rules.PARAM_AXES[name]) == leaf.shape
  for name, leaf in drafters:
    # Parameters of drafters that are not listed are whole.
    assert len(rules.PARAM_AXES.get(name, leaf.shape)) == leaf.ndim, name
  assert {*dict(targets), 'draft_rows'} == rules.PARAM_AXES.keys()


def test_matmuls_are_split_as_in_megatron(mesh):
  shardings = rules.param_shardings(_shapes(**_ALL_BIASES), mesh)
  assert {name: sharding.spec for name, sharding in _named(shardings)} == {
    'embedding': _P('model', None),
    'head': _P('model', None),
    'scale': _P(None),
    'bias': _P(None),
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


@pytest.mark.parametrize(
  ('axes', 'shape', 'message'),
  [
    (('heads', 'mlp'), (8, 8), "'heads', 'mlp'.*'model', 'model'"),
    (('batch',), (8, 8), r"\('batch',\) for shape \(8, 8\)"),
  ],
)
def test_axes_that_do_not_fit_an_array_are_refused(mesh, axes, shape, message):
  with pytest.raises(ValueError, match=message):
    rules.spec(axes, shape, mesh)


@pytest.mark.parametrize('axis', ['heads', 'mlp'])
def test_heads_and_hidden_units_must_divide(mesh, axis):
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
def test_other_axes_are_whole_where_they_do_not_divide(mesh, axis, size, part):
  assert rules.spec(('width', axis), (24, size), mesh) == _P(None, part)


def test_a_parameter_without_a_rule_is_whole(mesh):
  shardings = rules.param_shardings({'gamma': np.zeros((4, 8))}, mesh)
  assert shardings['gamma'].is_fully_replicated


def test_the_state_of_an_optimizer_is_split_like_the_parameters(mesh):
  shapes = _shapes(biases='all')
  expected = rules.param_shardings(shapes, mesh)
  state = jax.eval_shape(optax.adamw(1e-3).init, shapes)
  adam, *_ = rules.param_shardings(state, mesh)
  assert adam.mu == adam.nu == expected
  assert adam.count == NamedSharding(mesh, _P())
  # Formats differ from shardings on TPUs only.
  assert rules.param_formats(shapes, mesh) == expected


@pytest.mark.tpu_aot
def test_tpus_have_the_order_in_memory_that_matmuls_read():
  devices = topology.parse('v5e:2x4').devices()
  mesh = meshes.make(2, 4, devices)
  shapes = _shapes()
  formats = rules.param_formats(shapes, mesh)
  plain = rules.param_shardings(shapes, mesh)
  for i in range(_CONFIG.num_layers):
    output = formats[f'layers_{i}']['attention'].pop('o')
    assert isinstance(output, Format)
    assert output.layout.major_to_minor == (1, 0, 2)  # heads outside
    assert output.sharding == plain[f'layers_{i}']['attention'].pop('o')
  assert formats == plain


def test_constrain_needs_a_mesh(mesh):
  array = jnp.zeros((4, 8))
  assert rules.mesh_in_use() is None
  assert rules.constrain(array, 'batch', 'vocab') is array
  with meshes.use(mesh):
    split = jax.jit(lambda x: rules.constrain(x, 'batch', 'vocab'))(array)
  assert split.sharding.spec == _P('data', 'model')
