"""Files and fingerprints keep the order of axes that old versions wrote."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from testing import tiny

from specsamp import file_order, fingerprint, zoo
from specsamp.drafting import trained
from specsamp.models import param_shapes
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
  'router': ('width', 'expert'),
}
_BIASES = dict(norm='layer', positions='relative', biases='all', padding=2)
_EXPERTS = dict(num_experts=4, experts_per_token=2, expert_width=6)
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
  def check(got, value):
    assert got.dtype == value.dtype
    np.testing.assert_array_equal(got, value)

  jax.tree.map(check, tree, wanted)


def _assert_restored(tree, wanted):
  _assert_equal(tree, wanted)
  is_same = lambda x, y: x.sharding.is_equivalent_to(y.sharding, x.ndim)
  assert all(jax.tree.leaves(jax.tree.map(is_same, tree, wanted)))


def _trees():
  yield tiny.model(11, 0, **_BIASES).params
  yield tiny.model(11, 0, **_LEARNED).params
  yield tiny.model(11, 0, **_EXPERTS).params
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
    params = jax.tree.map(np.asarray, params)  # compiles no transpositions
    stored = file_order.to_files(params)
    _assert_equal(stored, _in_file_order(params))
    _assert_equal(file_order.from_files(stored), params)
    shapes = jax.eval_shape(lambda p=stored: p)
    assert file_order.shapes(jax.eval_shape(lambda p=params: p)) == shapes


def test_shardings_are_those_of_the_arrays():
  mesh = meshes.make(2, 4)
  model = tiny.model(64, 0, num_heads=8, num_kv_heads=4, **_BIASES)
  shardings = rules.param_shardings(param_shapes(model.transformer), mesh)
  params = jax.device_put(model.params, shardings)
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


def test_fingerprints_are_those_of_files():
  params = tiny.model(11, 0, **_BIASES).params
  digest = hashlib.sha256()
  for path, leaf in jax.tree_util.tree_leaves_with_path(_in_file_order(params)):
    row = leaf[(0,) * (leaf.ndim - 1)].astype(jnp.bfloat16)
    digest.update(jax.tree_util.keystr(path).encode())
    digest.update(str(leaf.shape).encode())
    digest.update(row.tobytes())
  assert fingerprint.of(params) == digest.hexdigest()[:16]
  # An old version has written this one.
  assert zoo.load('pycode').target.fingerprint == '5e3ef1d2982e1f08'


def test_an_old_checkpoint_is_restored(tmp_path):
  """Old versions wrote trees without a change, in the order of files."""
  shape = dict(num_heads=4, num_kv_heads=2, num_layers=1)
  params = tiny.model(24, 0, **shape, **_BIASES).params
  params = meshes.shard(params, meshes.make(2, 4))
  adam, *others = optax.adam(0.1).init(params)
  optimizer = (adam._replace(mu=params), *others)
  state = run.TrainState(jnp.ones((), jnp.int32), params, optimizer)
  stored = _in_file_order(state)
  assert stored.optimizer[0].mu['head'].shape == (16, 24)
  _assert_equal(file_order.to_files(state), stored)
  with run.checkpoints(tmp_path / 'old', 1) as manager:
    old = jax.tree.map(jnp.asarray, stored)
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
