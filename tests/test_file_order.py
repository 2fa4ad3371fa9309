"""Files and fingerprints keep the order of axes that old versions wrote."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from testing import tiny

from specsamp import file_order, fingerprint, zoo
from specsamp.drafting import trained
from specsamp.models import Transformer, TransformerConfig, param_shapes
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules
from specsamp.training import run

# Axes in files, for parameters whose axes have another order in programs.
_FILE_AXES = {
  'q': ('width', 'heads', 'head_dim'),
  'kv': ('width', 'key_or_value', 'kv_heads', 'head_dim'),
  'o': ('heads', 'head_dim', 'width'),
  'relative': ('width', 'heads', 'head_dim'),
  'up': ('width', 'gate_or_up', 'mlp'),
  'down': ('mlp', 'width'),
  'head': ('width', 'vocab'),
  'fuse': ('parts', 'width'),
}
_BIASES = dict(norm='layer', positions='relative', biases='all', padding=2)
_LEARNED = dict(positions='learned', qk_norm=True, num_heads=4, num_kv_heads=2)


def _in_file_order(tree):
  """Returns numpy arrays as files hold them, by the table above alone."""

  def leaf(path, value):
    value, name = np.asarray(value), getattr(path[-1], 'key', '')
    if name not in _FILE_AXES:
      return value
    axes = rules.PARAM_AXES.get(name, ('width', 'parts'))  # of fuse
    return value.transpose([axes.index(axis) for axis in _FILE_AXES[name]])

  return jax.tree_util.tree_map_with_path(leaf, tree)


def _assert_equal(tree, wanted):
  assert jax.tree.structure(tree) == jax.tree.structure(wanted)
  for got, value in zip(
    jax.tree.leaves(tree), jax.tree.leaves(wanted), strict=True
  ):
    assert got.dtype == value.dtype
    np.testing.assert_array_equal(got, value)


def _trees():
  yield tiny.model(11, 0, **_BIASES).params
  yield tiny.model(11, 0, **_LEARNED).params
  target = tiny.model(11, 0, num_layers=6)
  for kind in trained.KINDS:
    yield tiny.trained(target, kind).params
  for kind in ('medusa', 'eagle', 'eagle3', 'peagle'):
    yield tiny.published(target, kind).params


def test_every_parameter_has_the_axes_of_files():
  for name, axes in rules.PARAM_AXES.items():
    order = file_order.axes(name, len(axes))
    assert tuple(axes[i] for i in order) == _FILE_AXES.get(name, axes), name


def test_parameters_round_trip():
  for params in _trees():
    stored = file_order.to_files(params)
    _assert_equal(stored, _in_file_order(params))
    _assert_equal(file_order.from_files(stored), params)
    shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), stored
    )
    assert file_order.shapes(jax.eval_shape(lambda p=params: p)) == shapes


def test_biases_and_lookups_keep_their_axes():
  for ndim in (1, 2, 3):
    same = tuple(range(ndim))
    for name in ('q_bias', 'kv_bias', 'up_bias', 'fuse_bias', 'content_bias'):
      assert file_order.axes(name, ndim) == same
  for name in ('embedding', 'position_embedding', 'mask_embedding'):
    assert file_order.axes(name, 2) == (0, 1)
  for name in ('scale', 'head', 'o', ''):
    assert file_order.axes(name, 1) == (0,)
    assert file_order.axes(name, 0) == ()


def test_shardings_are_those_of_the_arrays():
  mesh = meshes.make(2, 4)
  config = TransformerConfig(
    vocab_size=64,
    width=24,
    num_layers=1,
    num_heads=8,
    num_kv_heads=4,
    head_dim=6,
    mlp_width=40,
    max_length=32,
    **_BIASES,
  )
  module = Transformer(config)
  shardings = rules.param_shardings(param_shapes(module), mesh)
  params = jax.device_put(tiny.noise(module, 0), shardings)
  stored = file_order.to_files(params)
  for (path, shape), leaf in zip(
    jax.tree_util.tree_leaves_with_path(file_order.shapes(params)),
    jax.tree.leaves(stored),
    strict=True,
  ):
    assert leaf.sharding.is_equivalent_to(shape.sharding, leaf.ndim), path
    name = path[-1].key
    axes = _FILE_AXES.get(name, rules.PARAM_AXES[name])
    wanted = rules.sharding(mesh)(leaf, *axes)
    assert shape.sharding.is_equivalent_to(wanted, leaf.ndim), path
  _assert_restored(file_order.from_files(stored), params)


def _fingerprint(params, num_tokens=None):
  """Returns the fingerprint of parameters in the order of files."""
  digest = hashlib.sha256()
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    shape, row = leaf.shape, leaf
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
      row = leaf[(0,) * (leaf.ndim - 1)].astype(jnp.bfloat16)
    if num_tokens is not None:
      name = path[-1].key
      axes = _FILE_AXES.get(name, rules.PARAM_AXES[name])
      shape = tuple(
        num_tokens if axis == 'vocab' else size
        for axis, size in zip(axes, shape, strict=True)
      )
      row = row[: shape[-1]]
    digest.update(jax.tree_util.keystr(path).encode())
    digest.update(str(shape).encode())
    digest.update(row.tobytes())
  return digest.hexdigest()[:16]


def test_fingerprints_are_those_of_files():
  for params in _trees():
    wanted = _fingerprint(_in_file_order(params))
    assert fingerprint.of(params) == wanted
  model = tiny.model(11, 0, **_BIASES)
  wanted = _fingerprint(_in_file_order(model.params), model.config.num_tokens)
  assert model.fingerprint == wanted
  # An old version has written this one.
  assert zoo.load('pycode').target.fingerprint == '5e3ef1d2982e1f08'


def _state(mesh=None):
  """Returns the state of a run with Adam after a step."""
  params = tiny.model(24, 0, num_heads=4, num_kv_heads=2, **_BIASES).params
  if mesh:
    params = meshes.shard(params, mesh)
  tx = optax.adam(0.1)
  optimizer = tx.init(params)
  with jax.numpy_dtype_promotion('standard'):
    grads = jax.tree.map(jnp.sin, params)
    _, optimizer = tx.update(grads, optimizer, params)
  return run.TrainState(jnp.ones((), jnp.int32), params, optimizer)


def test_a_state_of_adam_round_trips():
  state = _state()
  stored = file_order.to_files(state)
  _assert_equal(stored, _in_file_order(state))
  adam = stored.optimizer[0]
  assert adam.mu['head'].shape == adam.nu['head'].shape == (16, 24)
  _assert_equal(file_order.from_files(stored), state)
  shapes = jax.tree.map(lambda s: s.shape, file_order.shapes(state))
  assert shapes == jax.tree.map(np.shape, stored)


@pytest.mark.parametrize('shape', [None, (2, 4)], ids=str)
def test_an_old_checkpoint_is_restored(tmp_path, shape):
  """Old versions wrote trees without a change, in the order of files."""
  state = _state(meshes.make(*shape) if shape else None)
  with run.checkpoints(tmp_path / 'old', 1) as manager:
    old = jax.tree.map(jnp.asarray, _in_file_order(state))
    manager.save(1, args=ocp.args.StandardSave(old), force=True)
  with run.checkpoints(tmp_path / 'old', 1) as manager:
    _assert_restored(run.restore(manager, state), state)
  with run.checkpoints(tmp_path / 'new', 1) as manager:
    run.save(manager, 1, state, force=True)
    manager.wait_until_finished()
    _assert_restored(run.restore(manager, state), state)
    # An old version reads files of a new one.
    args = ocp.args.StandardRestore(jax.tree.map(jnp.zeros_like, old))
    _assert_equal(manager.restore(1, args=args), old)


def _assert_restored(tree, wanted):
  _assert_equal(tree, wanted)
  for got, value in zip(
    jax.tree.leaves(tree), jax.tree.leaves(wanted), strict=True
  ):
    assert got.sharding.is_equivalent_to(value.sharding, got.ndim)
