"""A training run: its steps, metrics and checkpoints, whatever it trains.

It goes on where it was cut off, and ends with the weights it would have had.
"""

import json
import pathlib
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from specsamp import file_order
from specsamp.errors import UserError
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules
from specsamp.training.optimizer import make_optimizer
from specsamp.training.run_config import RunConfig
from specsamp.utils import distributed, files, progress


class TrainState(NamedTuple):
  step: jax.Array
  params: Any
  optimizer: Any


def fit(
  config: RunConfig,
  workdir: pathlib.Path,
  mesh: Mesh | None,
  *,
  init: Callable[[jax.Array], Any],
  loss: Callable[[Any, Any, Any], tuple[jax.Array, dict[str, jax.Array]]],
  data: Callable[[], tuple[Any, Any, Any]],
) -> Any:
  """Trains, or goes on where a run in this workdir was cut off.

  Writes `workdir`/metrics.jsonl (a line a log or validation) and checkpoints/
  (optimizer and weights). On a mesh batches are split over 'data', weights and
  the optimizer's state over 'model'; every process reads the data and feeds its
  own shards. A run may go on on another mesh than the one it was cut off on.

  Args:
    config: of the run.
    workdir: an absolute path that all processes see.
    mesh: where to train; None is one device.
    init: (key) -> parameters, nested dicts of arrays.
    loss: (parameters, frozen, batch) -> what to lessen and metrics, scalars
      with a 'loss' among them.
    data: () -> training and validation, each with the methods of
      `packing.Packed`; batches are trees of arrays, rows on the first axis. And
      what is frozen: a tree of arrays, such as a teacher's parameters, or None;
      no gradient is taken to it. Called once the parameters are known to fit
      the mesh.

  Returns:
    The trained parameters, in float32.

  Raises:
    UserError: the config does not fit the mesh, or the last checkpoint cannot
      be read.
    FloatingPointError: loss, gradient or parameters are no longer finite.
  """
  programs = _programs(config, mesh, init, loss)
  # What does not fit the mesh is known by now; reading takes a while.
  train, validation, frozen = data()

  def validate(state):
    found = [
      programs.evaluate(state.params, frozen, programs.feed(batch))
      for batch in validation.in_order(config.eval_batches)
    ]
    return {k: float(np.mean([float(f[k]) for f in found])) for k in found[0]}

  with (
    meshes.use(mesh),
    checkpoints(workdir / 'checkpoints', config.checkpoint_every) as manager,
  ):
    state = _begin(programs, manager)
    start = int(state.step)
    batch_tokens = config.batch_size * config.length
    log = _Log(workdir / 'metrics.jsonl', start, batch_tokens)
    if start < config.steps:
      programs.compile(state, frozen, next(iter(validation.in_order(1))))
    for step in _bar(start, config.steps, batch_tokens):
      batch = programs.feed(train.batch(step - 1))
      state, metrics = programs.train(state, frozen, batch)
      is_last = step == config.steps
      is_due = lambda every, step=step: step == config.steps or not step % every
      saves = is_last or manager.should_save(step)
      if is_due(config.log_every) or is_due(config.checkpoint_every):
        _check_finite(step, metrics)
      # Loss and gradient are of the state before the step; this one must not
      # become a checkpoint, nor the model, if it is no longer finite.
      if saves and not is_finite(state):
        raise FloatingPointError(
          f'step {step}: the update left a state that is not finite'
        )
      if is_due(config.log_every):
        log.write('train', step, {k: float(v) for k, v in metrics.items()})
      if is_due(config.eval_every):
        log.write('validation', step, validate(state))
      if saves:
        save(manager, step, state, force=is_last)
  return state.params


@jax.jit
def is_finite(state) -> jax.Array:
  """Whether all numbers of a tree of arrays are: bool, a scalar."""
  leaves = jax.tree.leaves(state)
  return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()


class _Programs(NamedTuple):
  """What a run computes.

  Attributes:
    begin: () -> the state before the first step.
    shapes: of the state, with the shardings that it has throughout.
    train: (state, frozen, batch) -> state, metrics; consumes the state.
    evaluate: (params, frozen, batch) -> metrics.
    feed: lays a batch of the host on the devices.
  """

  begin: Callable[[], TrainState]
  shapes: TrainState
  train: Callable
  evaluate: Callable
  feed: Callable[[Any], Any]

  def compile(self, state: TrainState, frozen, batch) -> None:
    """What takes long, for batches such as this; shows how far it is."""
    batch = self.feed(batch)
    for program, *arguments in progress.bar(
      'compiling training',
      [
        (self.train, state, frozen, batch),
        (self.evaluate, state.params, frozen, batch),
      ],
      unit='program',
    ):
      program.lower(*arguments).compile()


def told(workdir: pathlib.Path, goal: pathlib.Path) -> str:
  """Where what was trained lies, and its loss on the held-out files; a line."""
  path = workdir / 'metrics.jsonl'
  texts = path.read_text().splitlines() if path.exists() else []
  lines = [json.loads(text) for text in texts]
  for line in reversed(lines):
    if line['kind'] == 'validation':
      return f'{goal}: {line["step"]} steps, held-out loss {line["loss"]:.3f}'
  return f'{goal}: trained'


def _programs(config: RunConfig, mesh: Mesh | None, init, loss) -> _Programs:
  """`UserError`: the config does not fit the mesh."""
  if mesh and config.batch_size % mesh.shape[rules.DATA]:
    raise UserError(
      f'batch_size {config.batch_size} does not divide into '
      f"{mesh.shape[rules.DATA]} shards, the size of the mesh axis 'data'"
    )
  tx = make_optimizer(config)

  def init_state(key):
    params = init(key)
    return TrainState(jnp.zeros((), jnp.int32), params, tx.init(params))

  def train_step(state, frozen, batch):
    grads, metrics = jax.grad(loss, has_aux=True)(state.params, frozen, batch)
    metrics['grad_norm'] = optax.tree.norm(grads)
    updates, opt_state = tx.update(grads, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    return TrainState(state.step + 1, params, opt_state), metrics

  key = jax.random.key(config.seed)
  shapes = _shapes(init_state, key, mesh)
  shardings = jax.tree.map(lambda x: x.sharding, shapes)
  put = jnp.asarray
  if mesh:
    rows = NamedSharding(mesh, PartitionSpec(rules.DATA))
    put = lambda array: meshes.put(array, rows)
  return _Programs(
    begin=lambda: jax.jit(init_state, out_shardings=shardings)(key),
    shapes=shapes,
    train=jax.jit(
      train_step, donate_argnums=0, out_shardings=(shardings, None)
    ),
    evaluate=jax.jit(lambda *args: loss(*args)[1]),
    feed=lambda batch: jax.tree.map(put, batch),
  )


def _begin(programs: _Programs, manager: ocp.CheckpointManager) -> TrainState:
  """The state before the first step, or that of the last checkpoint."""
  if manager.latest_step() is None:
    return programs.begin()
  state = restore(manager, programs.shapes)
  if not is_finite(state):
    raise UserError(
      f'checkpoint {manager.directory}/{manager.latest_step()}: holds '
      'numbers that are not finite'
    )
  return state


def _bar(start: int, steps: int, batch_tokens: int) -> Iterable[int]:
  """The steps after `start`, and how many tokens a second they take."""
  return progress.bar(
    'training',
    range(start + 1, steps + 1),
    initial=start,
    total=steps,
    unit='tok',
    unit_scale=batch_tokens,
  )


def _check_finite(step: int, metrics) -> None:
  for name in ('loss', 'grad_norm'):
    if not np.isfinite(metrics[name]):
      raise FloatingPointError(f'step {step}: {name} {metrics[name]}')


def _shapes(init, key, mesh: Mesh | None) -> TrainState:
  """The state's shapes, with the shardings that it has throughout."""
  shapes = jax.eval_shape(init, key)
  if mesh is None:
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shardings = jax.tree.map(lambda _: device, shapes)
  else:
    shardings = rules.param_shardings(shapes, mesh)
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    shapes,
    shardings,
  )


def checkpoints(folder: pathlib.Path, every: int) -> ocp.CheckpointManager:
  """Those of a folder: the last two that `save` made at every so many steps.

  Raises:
    UserError: they cannot be read.
  """
  options = ocp.CheckpointManagerOptions(
    save_interval_steps=every, max_to_keep=2
  )
  try:
    return ocp.CheckpointManager(folder, options=options)
  except Exception as error:  # orbax raises what its file formats raise
    raise _unreadable(folder, error) from error


def _unreadable(path, error: Exception) -> UserError:
  reason = (str(error).strip().splitlines() or [''])[0]
  return UserError(f'checkpoint {path}: cannot be read: {reason}')


def save(
  manager: ocp.CheckpointManager, step: int, state: Any, *, force: bool
) -> None:
  """Writes a checkpoint if one is due, or if `force` is True."""
  args = ocp.args.StandardSave(file_order.to_files(state))
  manager.save(step, args=args, force=force)


def restore(manager: ocp.CheckpointManager, wanted: Any) -> Any:
  """The last checkpoint, straight into shards, whatever they were before.

  Args:
    manager: it has one.
    wanted: a tree of arrays, or of their shapes with shardings.

  Raises:
    UserError: it cannot be read.
  """
  step = manager.latest_step()
  try:
    args = ocp.args.StandardRestore(file_order.shapes(wanted))
    state = file_order.from_files(manager.restore(step, args=args))
    return jax.tree.map(
      lambda x, w: jax.device_put(x, w.sharding), state, wanted
    )
  except Exception as error:  # orbax raises what its file formats raise
    raise _unreadable(manager.directory / str(step), error) from error


class _Log:
  """metrics.jsonl; lines past the checkpoint of a resumed run are dropped.

  Of several processes the first one writes it.
  """

  def __init__(self, path: pathlib.Path, step: int, batch_tokens: int):
    self._path = path
    self._first = step
    self._batch_tokens = batch_tokens
    self._began = time.monotonic()
    if not distributed.is_first():
      return
    lines = files.read_lines(
      path,
      lambda line: files.has_shape(line, _LINE),
      key=lambda line: (line['kind'], line['step']),
    )
    lines.rewrite([line for line in lines.kept if line['step'] <= step])

  def write(self, kind: str, step: int, metrics) -> None:
    """Adds a line; its seconds and tokens a second are this process's."""
    if not distributed.is_first():
      return
    seconds = time.monotonic() - self._began
    tokens = (step - self._first) * self._batch_tokens
    line = {'kind': kind, 'step': step, **metrics}
    line['seconds'] = round(seconds, 3)
    line['tokens_per_second'] = round(tokens / seconds, 1)
    with self._path.open('a') as file:
      file.write(json.dumps(line) + '\n')


_LINE = {
  'kind': str,
  'step': int,
  'loss': float,
  'seconds': float,
  'tokens_per_second': float,
}
