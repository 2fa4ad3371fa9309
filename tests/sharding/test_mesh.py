"""Meshes: their flags, and models and arrays placed on them."""

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
    *(
      (text, f"mesh: got '{text}', expected DATAxMODEL such as 2x4")
      for text in ('2x', 'axb', '2x4x1', '-2x4', '8')
    ),
    ('0x8', 'mesh 0x8 takes 0 devices, got 8'),
    ('3x3', 'mesh 3x3 takes 9 devices, got 8'),
  ],
)
def test_a_bad_mesh_is_refused_in_one_line(text, message):
  with pytest.raises(UserError) as error:
    meshes.parse(text, 'data')
  assert str(error.value) == message


def test_the_mesh_of_a_flag():
  mesh = meshes.parse('2x4', 'data')
  assert mesh.axis_names == ('data', 'model')
  assert mesh.devices.shape == (2, 4)
  # jax.make_mesh makes them Explicit since 0.9.
  assert mesh.axis_types == (AxisType.Auto, AxisType.Auto)
  devices = jax.devices()[2:6]
  assert list(meshes.make(2, 2, devices).devices.flat) == devices


def test_by_default_only_several_processes_have_a_mesh(monkeypatch):
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


def test_a_model_on_a_mesh():
  model = tiny.model(32, 0, **_SHAPES)
  assert model.mesh is None
  assert model.on(None) is model
  mesh = meshes.make(2, 4)
  sharded = model.on(mesh)
  assert sharded.mesh == mesh
  assert sharded.num_params == model.num_params
  jax.tree.map(np.testing.assert_array_equal, sharded.params, model.params)
  q = sharded.params['layers_0']['attention']['q']
  assert q.addressable_shards[0].data.shape == (1, 8, 16)  # one of four heads
  with pytest.raises(UserError, match='^heads: 4 do not divide into 8 shards'):
    model.on(meshes.make(1, 8))


def test_fetched_arrays_are_whole_and_on_the_host():
  mesh = meshes.make(2, 4)
  expected = np.arange(64, dtype=np.float32).reshape(8, 8)
  sharded = meshes.put(
    expected, NamedSharding(mesh, PartitionSpec('data', 'model'))
  )
  assert sharded.addressable_shards[0].data.shape == (4, 2)
  got = meshes.fetch({'sharded': sharded, 'host': expected, 'number': 3})
  for name in ('sharded', 'host'):
    assert type(got[name]) is np.ndarray
    np.testing.assert_array_equal(got[name], expected)
  assert got['number'] == 3
