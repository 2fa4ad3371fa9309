"""Meshes, and the rules by which parameters and other arrays are split."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
from jax.experimental.layout import Format
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from testing import tiny

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
_EXPERTS = dict(num_experts=4, experts_per_token=2, expert_width=40)
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
  expert=4,
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
  targets = _named([*targets, _shapes(**_EXPERTS)])
  drafters = _named([param_shapes(module) for module in modules])
  for name, leaf in targets:
    assert tuple(_SIZES[axis] for axis in rules.PARAM_AXES[name]) == leaf.shape
  for name, leaf in drafters:
    # Parameters of drafters that are not listed are whole.
    assert len(rules.PARAM_AXES.get(name, leaf.shape)) == leaf.ndim, name
  tables = {'draft_rows', 'read_tokens'}
  assert {*dict(targets), *tables} == rules.PARAM_AXES.keys()


def test_matmuls_are_split_as_in_megatron(mesh):
  shardings = rules.param_shardings(_shapes(**_ALL_BIASES), mesh)
  split = {
    name: sharding.spec.index('model')
    for name, sharding in _named(shardings)
    if 'model' in sharding.spec
  }
  first = ('embedding', 'head', 'q', 'q_bias', 'relative')
  first += ('content_bias', 'distance_bias')
  second = ('kv', 'kv_bias', 'o', 'up', 'up_bias', 'down')
  assert split == dict.fromkeys(first, 0) | dict.fromkeys(second, 1)


@pytest.mark.parametrize(
  ('axis', 'size', 'part'),
  [
    ('vocab', 65, None),
    ('kv_heads', 2, None),
    ('batch', 6, 'data'),
    ('batch', 1, None),
    ('slots', 8, None),
  ],
)
def test_other_axes_are_whole_where_they_do_not_divide(mesh, axis, size, part):
  assert rules.spec(('width', axis), (24, size), mesh) == _P(None, part)


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


def test_the_mesh_of_a_flag(monkeypatch):
  mesh = meshes.parse('2x4', 'data')
  assert mesh.axis_names == ('data', 'model')
  assert mesh.devices.shape == (2, 4)
  # jax.make_mesh makes them Explicit since 0.9.
  assert mesh.axis_types == (AxisType.Auto, AxisType.Auto)
  # By default only several processes have a mesh.
  assert meshes.parse('', 'data') is None
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  assert meshes.parse('', 'data').devices.shape == (8, 1)
  assert meshes.parse('', 'model').devices.shape == (1, 8)


def test_a_mesh_with_other_axes_is_ignored():
  model = tiny.model(32, 0)
  tokens = np.zeros((1, 2), np.int32)
  with jax.set_mesh(jax.make_mesh((8,), ('x',), (AxisType.Auto,))):
    out = jax.jit(model.transformer.apply)({'params': model.params}, tokens)
  assert out.logits.shape == (1, 2, 32)


def test_a_model_on_a_mesh(mesh):
  model = tiny.model(32, 0, num_heads=4, num_kv_heads=2)
  assert model.mesh is None
  assert model.on(None) is model
  sharded = model.on(mesh)
  assert sharded.mesh == mesh
  assert sharded.num_params == model.num_params
  jax.tree.map(np.testing.assert_array_equal, sharded.params, model.params)
  q = sharded.params['layers_0']['attention']['q']
  assert q.addressable_shards[0].data.shape == (1, 8, 16)  # one of four heads
  few = model.on(meshes.make(1, 8)).params['layers_0']['attention']['q']
  assert few.sharding.is_fully_replicated
  many = tiny.model(32, 0, num_heads=12)
  message = '^heads: 12 do not divide into 8 shards'
  with pytest.raises(UserError, match=message):
    many.on(meshes.make(1, 8))
