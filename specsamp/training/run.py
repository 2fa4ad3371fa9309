"""Training runs that resume: steps, metrics and checkpoints.

A run that was killed continues from its last checkpoint. It ends with the
weights that it would have had without the interruption.
"""

import contextlib
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from specsamp import file_order
from specsamp.errors import UserError
from specsamp.evaluation.reporting.run_log import RunLog
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules
from specsamp.training.run_config import RunConfig, make_optimizer
from specsamp.utils import progress


class TrainState(NamedTuple):
  step: jax.Array
  params: Any
  optimizer: Any


class _Line(TypedDict):
  """A line of metrics.jsonl; other metrics of a loss are added to it."""

  kind: str
  step: int
  loss: float
  seconds: float
  tokens_per_second: float


def fit(
  config: RunConfig,
  workdir: pathlib.Path,
  mesh: Mesh | None,
  *,
  init: Callable[[jax.Array], Any],
  loss: Callable[[Any, Any, Any], tuple[jax.Array, dict[str, jax.Array]]],
  data: Callable[[], tuple[Any, Any, Any]],
) -> Any:
  """Minimizes a loss over batches, resuming a run of the workdir.

  On a mesh batches are split over 'data', weights and the optimizer's state
  over 'model'. Every process reads the data and feeds its shards. A run may
  resume on another mesh.

  Args:
    config: settings of the run.
    workdir: see `resume`.
    mesh: where to train; None is one device.
    init: (key) -> parameters, nested dicts of arrays in float32.
    loss: (parameters, frozen, batch) -> the loss to minimize and metrics,
      scalars by name with 'loss' among them.
    data: () -> training data, validation data, frozen. Both data have the
      methods of `packing.Packed`; a batch is a tree of arrays, rows on the
      first axis. `frozen` is a tree of arrays without gradient, or None. `data`
      is called after the parameters are known to fit the mesh, because reading
      may take long.

  Returns:
    The trained parameters.

  Raises:
    UserError: see `resume`; or the config does not fit the mesh.
    FloatingPointError: see `resume`.
  """
  if mesh and config.batch_size % mesh.shape[rules.DATA]:
    raise UserError(
      f'batch_size {config.batch_size} does not divide into '
      f"{mesh.shape[rules.DATA]} shards, the size of the mesh axis 'data'"
    )
  optimizer = make_optimizer(config)
  key = jax.random.key(config.seed)

  def init_state(key):
    params = init(key)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

  def train_step(state, frozen, batch):
    grads, metrics = jax.grad(loss, has_aux=True)(state.params, frozen, batch)
    metrics['grad_norm'] = optax.tree.norm(grads)
    updates, moments = optimizer.update(grads, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    return TrainState(state.step + 1, params, moments), metrics

  shapes = _shapes(init_state, key, mesh)
  shardings = jax.tree.map(lambda x: x.sharding, shapes)
  train = jax.jit(train_step, donate_argnums=0, out_shardings=(shardings, None))
  evaluate = jax.jit(lambda *args: loss(*args)[1])
  train_data, validation_data, frozen = data()

  def feed(batch):
    if mesh is None:
      return jax.tree.map(jnp.asarray, batch)
    rows = NamedSharding(mesh, PartitionSpec(rules.DATA))
    return jax.tree.map(lambda array: meshes.put(array, rows), batch)

  def prepare(state):
    batch = feed(next(iter(validation_data.in_order(1))))
    programs = [(train, state), (evaluate, state.params)]
    for program, tree in progress.bar(
      'compiling training', programs, unit='program'
    ):
      program.lower(tree, frozen, batch).compile()

  def validate(state):
    metrics = [
      evaluate(state.params, frozen, feed(batch))
      for batch in validation_data.in_order(config.eval_batches)
    ]
    return {
      name: np.mean([float(row[name]) for row in metrics])
      for name in metrics[0]
    }

  with meshes.use(mesh):
    state = resume(
      config,
      workdir,
      begin=lambda: jax.jit(init_state, out_shardings=shardings)(key),
      shapes=shapes,
      prepare=prepare,
      advance=lambda step, state: train(
        state, frozen, feed(train_data.batch(step - 1))
      ),
      validate=validate,
    )
  return state.params


def _shapes(init, key, mesh: Mesh | None) -> TrainState:
  """Returns the shapes of the state, with shardings."""
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


def resume(
  config: RunConfig,
  workdir: pathlib.Path,
  *,
  begin: Callable[[], Any],
  shapes: Any,
  prepare: Callable[[Any], None],
  advance: Callable[[int, Any], tuple[Any, dict[str, Any]]],
  validate: Callable[[Any], dict[str, float]] | None = None,
) -> Any:
  """Takes the steps of a run that its last checkpoint does not have.

  Writes `workdir`/metrics.jsonl, a line for each log or validation, and
  `workdir`/checkpoints. Lines after the checkpoint are dropped.

  Args:
    config: settings of the run.
    workdir: an absolute path that all processes see.
    begin: () -> the state before the first step, a tree of arrays.
    shapes: arrays or shapes of the state, with shardings.
    prepare: (state) -> None, called before the first remaining step.
    advance: (number of the step, from 1; state) -> state, metrics. The metrics
      are scalars with 'loss' and 'grad_norm' among them.
    validate: (state) -> metrics; None for a run without validation.

  Returns:
    The state after the last step.

  Raises:
    UserError: the last checkpoint cannot be read.
    FloatingPointError: a loss, a gradient or the state is not finite.
  """
  folder = workdir / 'checkpoints'
  with checkpoints(folder, config.checkpoint_every) as manager:
    start = manager.latest_step() or 0
    state = restore(manager, shapes) if start else begin()
    batch_tokens = config.batch_size * config.length
    key = lambda line: (line['kind'], line['step'])
    log = RunLog(workdir / 'metrics.jsonl', _Line, key)
    log.keep([(kind, step) for kind, step in log.records if step <= start])
    start_time = time.monotonic()

    def write(kind, step, metrics):
      seconds = time.monotonic() - start_time
      tokens = (step - start) * batch_tokens
      speed = {
        'seconds': round(seconds, 3),
        'tokens_per_second': round(tokens / seconds, 1),
      }
      log.append({'kind': kind, 'step': step, **metrics, **speed})

    if start < config.steps:
      prepare(state)
    for step in progress.bar(
      'training',
      range(start + 1, config.steps + 1),
      initial=start,
      total=config.steps,
      unit='tok',
      unit_scale=batch_tokens,
    ):
      state, metrics = advance(step, state)
      is_last = step == config.steps
      saves = is_last or manager.should_save(step)
      logs = is_last or step % config.log_every == 0
      if saves or logs:
        for name in ('loss', 'grad_norm'):
          if not np.isfinite(metrics[name]):
            raise FloatingPointError(f'step {step}: {name} {metrics[name]}')
      # Loss and gradient are those before the step. The state after it must not
      # become a checkpoint or the result if it is not finite.
      if saves and not is_finite(state):
        raise FloatingPointError(
          f'step {step}: the update left a state that is not finite'
        )
      if logs:
        write('train', step, {k: float(v) for k, v in metrics.items()})
      if validate and (is_last or step % config.eval_every == 0):
        write('validation', step, validate(state))
      if saves:
        save(manager, step, state, force=is_last)
  return state


@jax.jit
def is_finite(state) -> jax.Array:
  """Returns True if all numbers of a tree of arrays are finite."""
  leaves = jax.tree.leaves(state)
  return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()


def read_metrics(workdir: pathlib.Path, kind: str) -> list[dict[str, Any]]:
  """Returns the lines of metrics.jsonl of a kind: 'train' or 'validation'."""
  text = (workdir / 'metrics.jsonl').read_text()
  lines = map(json.loads, text.splitlines())
  return [line for line in lines if line['kind'] == kind]


def summary(workdir: pathlib.Path, result: pathlib.Path) -> str:
  """Returns a line with the folder of the result and the held-out loss."""
  lines = read_metrics(workdir, 'validation')
  if not lines:
    return f'{result}: trained'
  step, loss = lines[-1]['step'], lines[-1]['loss']
  return f'{result}: {step} steps, held-out loss {loss:.3f}'


def checkpoints(folder: pathlib.Path, every: int) -> ocp.CheckpointManager:
  """Opens a folder that keeps the last two checkpoints, one per `every`."""
  options = ocp.CheckpointManagerOptions(
    save_interval_steps=every, max_to_keep=2
  )
  with _reading(folder):
    return ocp.CheckpointManager(folder, options=options)


@contextlib.contextmanager
def _reading(path: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except Exception as error:  # orbax raises the errors of its file formats
    reason = (str(error).strip().splitlines() or [''])[0]
    raise UserError(f'checkpoint {path}: cannot be read: {reason}') from error


def save(
  manager: ocp.CheckpointManager, step: int, state: Any, *, force: bool
) -> None:
  """Writes a checkpoint if one is due or `force` is True."""
  args = ocp.args.StandardSave(file_order.to_files(state))
  manager.save(step, args=args, force=force)


def restore(manager: ocp.CheckpointManager, shapes: Any) -> Any:
  """Reads the last checkpoint into the shards of `shapes`."""
  step = manager.latest_step()
  with _reading(manager.directory / str(step)):
    args = ocp.args.StandardRestore(file_order.shapes(shapes))
    state = file_order.from_files(manager.restore(step, args=args))
    return jax.tree.map(
      lambda x, s: jax.device_put(x, s.sharding), state, shapes
    )
