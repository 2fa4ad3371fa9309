"""Meshes: how they are named, and what lies on them."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from testing import tiny

from specsamp.errors import UserError
from specsamp.sharding import mesh as meshes

_SHAPES = dict(num_heads=4, num_kv_heads=2)


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('2x', "mesh: got '2x', expected DATAxMODEL such as 2x4"),
    ('axb', "mesh: got 'axb', expected DATAxMODEL such as 2x4"),
    ('2x4x1', "mesh: got '2x4x1', expected DATAxMODEL such as 2x4"),
    ('-2x4', "mesh: got '-2x4', expected DATAxMODEL such as 2x4"),
    ('8', "mesh: got '8', expected DATAxMODEL such as 2x4"),
    ('0x8', 'mesh 0x8 takes 0 devices, got 8'),
    ('3x3', 'mesh 3x3 takes 9 devices, got 8'),
    ('1x4', 'mesh 1x4 takes 4 devices, got 8'),
  ],
)
def test_a_bad_mesh_is_one_line(text, message):
  with pytest.raises(UserError) as error:
    meshes.parse(text, 'data')
  assert str(error.value) == message


@pytest.mark.parametrize('sizes', [(0, 0), (-1, -8), (3, 2)])
def test_no_mesh_of_other_devices(sizes):
  with pytest.raises(UserError, match=r'^mesh \S+ takes \d+ devices, got 8$'):
    meshes.make(*sizes)


@pytest.mark.parametrize(
  ('text', 'axis', 'shape'),
  [
    ('2x4', 'data', (2, 4)),
    ('1x8', 'data', (1, 8)),
  ],
)
def test_the_mesh_of_a_flag(text, axis, shape):
  mesh = meshes.parse(text, axis)
  assert mesh.axis_names == ('data', 'model')
  assert mesh.devices.shape == shape
  # jax.make_mesh makes them Explicit since 0.9.
  assert mesh.axis_types == (AxisType.Auto, AxisType.Auto)


def test_only_processes_are_split_over_unasked(monkeypatch):
  assert meshes.parse('', 'data') is None
  assert meshes.parse('', 'model') is None
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  assert meshes.parse('', 'data').devices.shape == (8, 1)
  assert meshes.parse('', 'model').devices.shape == (1, 8)


def test_a_mesh_of_other_axes_is_not_ours():
  model = tiny.model(32, 0)
  tokens = np.zeros((1, 2), np.int32)
  with jax.set_mesh(jax.make_mesh((8,), ('x',), (AxisType.Auto,))):
    out = jax.jit(model.transformer.apply)({'params': model.params}, tokens)
  assert out.logits.shape == (1, 2, 32)


def test_a_mesh_of_some_devices():
  devices = jax.devices()[2:6]
  assert list(meshes.make(2, 2, devices).devices.flat) == devices


def test_a_model_on_a_mesh():
  model = tiny.model(32, 0, **_SHAPES)
  assert model.mesh is None
  assert model.on(None) is model
  assert meshes.of({}) is None
  mesh = meshes.make(2, 4)
  laid = model.on(mesh)
  assert laid.mesh == mesh
  assert laid.num_params == model.num_params
  for a, b in zip(
    jax.tree.leaves(laid.params), jax.tree.leaves(model.params), strict=True
  ):
    assert isinstance(a.sharding, NamedSharding)
    np.testing.assert_array_equal(a, b)
  q = laid.params['layers_0']['attention']['q']
  assert q.addressable_shards[0].data.shape == (1, 8, 16)  # of four heads


def test_a_model_that_does_not_divide():
  model = tiny.model(32, 0, **_SHAPES)
  with pytest.raises(UserError, match='^heads: 4 do not divide into 8 shards'):
    model.on(meshes.make(1, 8))


def test_fetched_arrays_are_whole_and_on_the_host():
  mesh = meshes.make(2, 4)
  expected = np.arange(64, dtype=np.float32).reshape(8, 8)
  laid = meshes.put(
    expected, NamedSharding(mesh, PartitionSpec('data', 'model'))
  )
  assert laid.addressable_shards[0].data.shape == (4, 2)
  got = meshes.fetch({'laid': laid, 'host': expected, 'number': 3})
  for name in ('laid', 'host'):
    assert type(got[name]) is np.ndarray
    np.testing.assert_array_equal(got[name], expected)
  assert got['number'] == 3


def test_the_mesh_in_use_ends_with_its_context():
  mesh = meshes.make(1, 8)
  with meshes.use(mesh):
    assert jax.sharding.get_abstract_mesh() == mesh.abstract_mesh
  assert jax.sharding.get_abstract_mesh().empty
  with meshes.use(None):
    assert jax.sharding.get_abstract_mesh().empty
