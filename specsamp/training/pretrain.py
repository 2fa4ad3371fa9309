"""Training a language model on text, alone or with a teacher."""

import dataclasses
import json
import pathlib
import time
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import tqdm
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from specsamp.checkpoints import model_dir
from specsamp.data import corpora, packing, tokenizers
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, TransformerConfig
from specsamp.sharding import distributed, rules
from specsamp.sharding import mesh as meshes
from specsamp.training.objectives import language_model as losses


@dataclasses.dataclass(frozen=True)
class PretrainConfig:
  """What fixes a run, beside corpus and teacher: it ends with the same weights.

  Attributes:
    model: shape of the model to train.
    corpus: a folder of text, or '' for the standard library of this Python.
    pattern: the corpus' files, a glob relative to its folder.
    tokenizer: a SentencePiece model; '' trains one of `model.vocab_size`
      pieces on the corpus.
    teacher: folder of a model to distil from; its tokenizer is used. '' trains
      on the text alone.
    distillation_weight: of KL(teacher || model) in the loss; the text's
      cross-entropy has the rest.
    batch_size: sequences in a step.
    length: tokens in a sequence.
    steps: of the optimizer.
    learning_rate: at its peak, after `warmup_steps`; then a cosine to zero.
    warmup_steps: of linear warm-up.
    weight_decay: of AdamW, on matrices only.
    beta2: of AdamW; beta1 is 0.9.
    clip_norm: largest global norm of a gradient.
    seed: of the weights and the order of the data.
    log_every: steps between lines of metrics.
    eval_every: steps between validations on the held-out files.
    eval_batches: batches in a validation.
    checkpoint_every: steps between checkpoints.
    storage: of the finished model's matrices, float32 or int8.
  """

  model: TransformerConfig
  corpus: str = ''
  pattern: str = '**/*.py'
  tokenizer: str = ''
  teacher: str = ''
  distillation_weight: float = 0.5
  batch_size: int = 16
  length: int = 256
  steps: int = 1000
  learning_rate: float = 1e-3
  warmup_steps: int = 100
  weight_decay: float = 0.1
  beta2: float = 0.95
  clip_norm: float = 1.0
  seed: int = 0
  log_every: int = 10
  eval_every: int = 200
  eval_batches: int = 8
  checkpoint_every: int = 200
  storage: Literal['float32', 'int8'] = 'float32'

  def __post_init__(self):
    for name in (
      'batch_size',
      'length',
      'steps',
      'log_every',
      'eval_every',
      'eval_batches',
      'checkpoint_every',
    ):
      if getattr(self, name) < 1:
        raise UserError(f'{name} must be at least 1, got {getattr(self, name)}')
    for name in ('seed', 'warmup_steps', 'learning_rate', 'clip_norm'):
      if getattr(self, name) < 0:
        raise UserError(f'{name} must be at least 0, got {getattr(self, name)}')
    if self.storage not in ('float32', 'int8'):
      raise UserError(f'storage must be float32 or int8, got {self.storage!r}')
    if not 0 <= self.distillation_weight <= 1:
      raise UserError(
        'distillation_weight must lie in [0, 1], '
        f'got {self.distillation_weight}'
      )
    if self.length > self.model.max_length:
      raise UserError(
        f'length {self.length} exceeds model.max_length {self.model.max_length}'
      )


def from_dict(values: dict[str, Any]) -> PretrainConfig:
  """The config of nested plain values; `UserError` on a bad key or value."""
  try:
    model = TransformerConfig.from_dict(values['model'])
    return PretrainConfig(**(values | {'model': model}))
  except KeyError as error:
    raise UserError(f'config: missing key {error}') from None
  except (TypeError, ValueError) as error:
    raise UserError(f'config: {error}') from None


class TrainState(NamedTuple):
  step: jax.Array
  params: Any
  optimizer: Any


def optimizer(config: PretrainConfig) -> optax.GradientTransformation:
  """AdamW under a warm-up and a cosine, gradients clipped by global norm."""
  schedule = optax.warmup_cosine_decay_schedule(
    init_value=0.0,
    peak_value=config.learning_rate,
    warmup_steps=config.warmup_steps,
    decay_steps=max(config.steps, config.warmup_steps + 1),
  )
  return optax.chain(
    optax.clip_by_global_norm(config.clip_norm),
    optax.adamw(
      schedule,
      b2=config.beta2,
      weight_decay=config.weight_decay,
      mask=lambda params: jax.tree_util.tree_map_with_path(
        lambda path, p: model_dir.is_matrix(path[-1].key, p), params
      ),
    ),
  )


def make_loss(
  transformer: Transformer,
  teacher: LanguageModel | None,
  distillation_weight: float,
):
  """(params, teacher's params, tokens [B, T + 1]) -> loss, metrics."""

  def loss(params, teacher_params, tokens):
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    logits = transformer.apply({'params': params}, inputs).logits
    text = losses.next_token(logits, labels)
    if teacher is None:
      return text, {'loss': text}
    wanted = teacher.transformer.apply({'params': teacher_params}, inputs)
    kl = losses.distillation(logits, wanted.logits)
    total = (1 - distillation_weight) * text + distillation_weight * kl
    return total, {
      'loss': text,
      'kl': kl,
      'agreement': losses.agreement(logits, wanted.logits),
    }

  return loss


def pretrain(
  config: PretrainConfig, workdir, mesh: Mesh | None = None
) -> LanguageModel:
  """Trains, or goes on where a run in this workdir was cut off.

  Writes `workdir`/metrics.jsonl (a line a log or validation), checkpoints/
  (optimizer and weights), tokenizer.model if it trains one, and when done
  model/ (a folder for `specsamp.load`, of `config.storage`). Returns the model
  as it was trained, in float32.

  On a mesh batches are split over 'data', weights and the optimizer's state
  over 'model'; every process reads the corpus and feeds its own shards. A run
  may go on on another mesh than the one it was cut off on.

  Args:
    config: what fixes the run.
    workdir: a folder that all processes see.
    mesh: where to train; None is one device.

  Raises:
    UserError: the corpus, tokenizer or teacher does not fit the config, the
      config not the mesh, or the last checkpoint cannot be read.
    FloatingPointError: loss or gradient is no longer finite.
  """
  workdir = pathlib.Path(workdir).absolute()
  if mesh and config.batch_size % mesh.shape[rules.DATA]:
    raise UserError(
      f'batch_size {config.batch_size} does not divide into '
      f"{mesh.shape[rules.DATA]} shards, the size of the mesh axis 'data'"
    )
  teacher = model_dir.load(config.teacher, mesh) if config.teacher else None
  transformer = Transformer(config.model)
  tx = optimizer(config)
  loss = make_loss(transformer, teacher, config.distillation_weight)
  teacher_params = teacher.params if teacher else None

  def init(key):
    params = transformer.init_params(key)
    return TrainState(jnp.zeros((), jnp.int32), params, tx.init(params))

  def train_step(state, teacher_params, tokens):
    grads, metrics = jax.grad(loss, has_aux=True)(
      state.params, teacher_params, tokens
    )
    metrics['grad_norm'] = optax.tree.norm(grads)
    updates, opt_state = tx.update(grads, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    return TrainState(state.step + 1, params, opt_state), metrics

  key = jax.random.key(config.seed)
  shapes = _shapes(init, key, mesh)
  shardings = jax.tree.map(lambda x: x.sharding, shapes)
  train_step = jax.jit(
    train_step, donate_argnums=0, out_shardings=(shardings, None)
  )
  eval_step = jax.jit(lambda *args: loss(*args)[1])
  if mesh is None:
    feed = jnp.asarray
  else:
    rows = NamedSharding(mesh, PartitionSpec(rules.DATA))
    feed = lambda tokens: meshes.put(tokens, rows)

  # What does not fit the mesh is known by now; reading takes a while.
  train, held_out = corpora.split(_corpus(config))
  tokenizer = _tokenizer(config, teacher, train.values(), workdir)
  data, validation = (
    packing.Packed(
      packing.tokenize(files.values(), tokenizer),
      config.batch_size,
      config.length,
      config.seed,
    )
    for files in (train, held_out)
  )

  def validate(state):
    found = [
      eval_step(state.params, teacher_params, feed(tokens))
      for tokens in validation.in_order(config.eval_batches)
    ]
    return {k: float(np.mean([float(f[k]) for f in found])) for k in found[0]}

  options = ocp.CheckpointManagerOptions(
    save_interval_steps=config.checkpoint_every, max_to_keep=2
  )
  with (
    meshes.use(mesh),
    ocp.CheckpointManager(workdir / 'checkpoints', options=options) as manager,
  ):
    if manager.latest_step() is None:
      state = jax.jit(init, out_shardings=shardings)(key)
    else:
      state = _restore(manager, shapes)
    start = int(state.step)
    batch_tokens = config.batch_size * config.length
    log = _Log(workdir / 'metrics.jsonl', start, batch_tokens)
    for step in tqdm.tqdm(
      range(start + 1, config.steps + 1),
      initial=start,
      total=config.steps,
      unit='tok',
      unit_scale=batch_tokens,
      disable=not distributed.is_first(),
    ):
      state, metrics = train_step(
        state, teacher_params, feed(data.batch(step - 1))
      )
      last = step == config.steps
      if (
        last
        or not step % config.log_every
        or not step % config.checkpoint_every
      ):
        # A state that is no longer finite must not become a checkpoint.
        for name in ('loss', 'grad_norm'):
          if not np.isfinite(metrics[name]):
            raise FloatingPointError(f'step {step}: {name} {metrics[name]}')
      if last or not step % config.log_every:
        metrics = {k: float(v) for k, v in metrics.items()}
        log.write('train', step, metrics)
      if last or not step % config.eval_every:
        log.write('validation', step, validate(state))
      manager.save(step, args=ocp.args.StandardSave(state), force=last)
  model = LanguageModel(transformer, state.params, tokenizer)
  model_dir.save(model, workdir / 'model', config.storage)
  return model


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


def _restore(manager: ocp.CheckpointManager, wanted: TrainState) -> TrainState:
  """The last checkpoint, straight into shards, whatever they were before."""
  step = manager.latest_step()
  try:
    return manager.restore(step, args=ocp.args.StandardRestore(wanted))
  except Exception as error:  # orbax raises what its file formats raise
    reason = (str(error).strip().splitlines() or [''])[0]
    raise UserError(
      f'checkpoint {manager.directory}/{step}: cannot be read: {reason}'
    ) from error


def _corpus(config: PretrainConfig) -> dict[str, str]:
  if config.corpus:
    return corpora.read_folder(config.corpus, config.pattern)
  return corpora.python_library()


def _tokenizer(config: PretrainConfig, teacher, texts, workdir: pathlib.Path):
  path = workdir / model_dir.TOKENIZER
  if teacher is not None:
    tokenizer = teacher.tokenizer
  elif config.tokenizer:
    tokenizer = tokenizers.Tokenizer.load(config.tokenizer)
  else:

    def train():
      if path.exists():
        return
      tokenizer = tokenizers.train(texts, config.model.vocab_size)
      workdir.mkdir(parents=True, exist_ok=True)
      partial = path.with_name(path.name + '.partial')
      tokenizer.save(partial)
      partial.rename(path)  # whole, wherever a run is cut off

    distributed.first_does(train, f'tokenizer {path}')
    tokenizer = tokenizers.Tokenizer.load(path)
  if tokenizer.vocab_size != config.model.vocab_size:
    raise UserError(
      f'model.vocab_size is {config.model.vocab_size}, but the tokenizer has '
      f'{tokenizer.vocab_size} pieces'
    )
  return tokenizer


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
    lines = path.read_text().splitlines() if path.exists() else []
    kept = [line for line in lines if _step_of(line) <= step]
    partial = path.with_name(path.name + '.partial')
    partial.write_text(''.join(line + '\n' for line in kept))
    partial.rename(path)  # whole, wherever a run is cut off

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


def _step_of(line: str) -> float:
  try:
    return json.loads(line)['step']
  except ValueError:  # cut off while it was written
    return float('inf')
